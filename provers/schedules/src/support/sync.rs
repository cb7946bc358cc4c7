//! In the place of `farref`'s module of this name: locks, counters, threads and tasks of shuttle.

pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
pub(crate) use shuttle::sync::{Mutex, MutexGuard};
pub(crate) use shuttle::thread;

pub(crate) use super::patience::Condvar;

/// A runtime: wherever it is, its tasks are shuttle's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handle;

impl Handle {
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> shuttle::future::JoinHandle<T> {
        shuttle::future::spawn(task)
    }
}
