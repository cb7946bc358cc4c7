//! What is not about remote references: where code runs, how it is cancelled, what is counted.

#[cfg(feature = "simulation")]
mod barred;
pub(crate) mod blocking_pool;
pub(crate) mod clock;
pub(crate) mod deadlines;
pub(crate) mod io_thread;
pub(crate) mod lock;
pub(crate) mod mutation;
pub(crate) mod polled;
pub(crate) mod signal;
pub(crate) mod simulation;
pub(crate) mod spare;
pub(crate) mod sync;
pub(crate) mod task_pool;
pub(crate) mod text;
pub(crate) mod thread_scope;
pub(crate) mod user_code;
pub(crate) mod waiting_threads;
pub(crate) mod warnings;
pub(crate) mod worker_metrics;
