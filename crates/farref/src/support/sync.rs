//! What the files are built on that are also compiled against a controlled scheduler, by `farref-schedules`: there a module
//! in the place of this one has that scheduler's locks, counters, threads and tasks. Here they are the usual ones.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;

pub(crate) use tokio::runtime::Handle;
