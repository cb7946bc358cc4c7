//! In the place of `farref`'s module of this name: there is no code of a program here.

/// From now on this thread runs no code of the program.
pub(crate) fn reserve_thread() {}
