//! What the code that runs right now is running for: its worker, its deadline, its trace.
//!
//! Set while a remote function is polled or runs on the blocking pool. It belongs to the thread and to
//! that moment: a task that the function spawns by itself starts afresh.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use farref_proto::NodeId;

use crate::agent::TraceContext;
use crate::protocol::Core;

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
}

/// What a remote function runs for.
#[derive(Clone)]
pub(crate) struct Current {
    pub(crate) core: Arc<Core>,
    pub(crate) caller: NodeId,
    /// Nested calls inherit it (D3).
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
}

impl Current {
    /// What this code runs for, if it runs inside a remote function.
    pub(crate) fn get() -> Option<Self> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Runs `f` as part of a remote function.
    pub(crate) fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        struct Restore(Option<Current>);

        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.set(self.0.take());
            }
        }

        let _restore = Restore(CURRENT.replace(Some(self.clone())));
        f()
    }
}
