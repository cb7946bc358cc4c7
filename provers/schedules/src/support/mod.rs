//! `farref`'s `support`, as far as scenarios need it.

#[path = "../../../../crates/farref/src/support/blocking_pool.rs"]
pub(crate) mod blocking_pool;
pub(crate) mod clock;
#[path = "../../../../crates/farref/src/support/deadlines.rs"]
pub(crate) mod deadlines;
#[path = "../../../../crates/farref/src/support/lock.rs"]
pub(crate) mod lock;
#[path = "../../../../crates/farref/src/support/mutation.rs"]
pub(crate) mod mutation;
pub(crate) mod patience;
#[path = "../../../../crates/farref/src/support/signal.rs"]
pub(crate) mod signal;
pub(crate) mod simulation;
pub(crate) mod sync;
#[path = "../../../../crates/farref/src/support/task_pool.rs"]
pub(crate) mod task_pool;
pub(crate) mod user_code;
#[path = "../../../../crates/farref/src/support/waiting_threads.rs"]
pub(crate) mod waiting_threads;
