//! What a thread keeps to use again: buffers and lists with their room.
//!
//! A thread that is about to end has no local state any more, and does without: destructors of other thread-locals
//! may well come here.

use std::cell::Cell;
use std::thread::LocalKey;

/// Takes what is kept, or something new.
pub(crate) fn take<T: Default>(spare: &'static LocalKey<Cell<T>>) -> T {
    spare.try_with(Cell::take).unwrap_or_default()
}

/// Keeps something for the next who takes it.
pub(crate) fn keep<T>(spare: &'static LocalKey<Cell<T>>, value: T) {
    // An error: there is no next one.
    let _ = spare.try_with(|spare| spare.set(value));
}
