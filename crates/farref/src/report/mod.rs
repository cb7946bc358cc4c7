//! What a worker says of itself: snapshots, and the references that are still held.

pub(crate) mod calls;
pub(crate) mod leaks;
pub(crate) mod snapshot;
