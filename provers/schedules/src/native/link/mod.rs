//! `farref`'s `native::link`, as far as scenarios need it.

#[path = "../../../../../crates/farref/src/native/link/timer.rs"]
pub(crate) mod timer;
#[path = "../../../../../crates/farref/src/native/link/writer_lock.rs"]
pub(crate) mod writer_lock;
