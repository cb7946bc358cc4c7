//! What the code that runs right now is running for: its worker, its deadline, its trace, its context.
//!
//! Set while a remote function is polled or runs on the blocking pool, and inside of a
//! [`ContextScope`](crate::context::ContextScope). It belongs to the thread and to that moment: a task
//! that the function spawns by itself starts afresh.

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use farref_proto::{ContextId, MessageId, NodeId};

use crate::agent::{Failure, TraceContext};
use crate::codec::Codec;
use crate::runtime::Core;
use crate::runtime::callers::CallChain;
use crate::runtime::job::Destination;
use crate::runtime::registry::FunctionEntry;
use crate::support::clock::Instant;
use crate::support::signal::{CancelSignal, Cancellable};
use crate::support::thread_scope::{Entered, Scopes, innermost};

thread_local! {
    static AMBIENT: Scopes<Ambient> = const { RefCell::new(Vec::new()) };
}

/// All that surrounds the code of this thread.
struct Ambient {
    current: Option<Arc<Current>>,
    /// An autograd context, and the worker that takes part in it.
    context: Option<(Arc<Core>, ContextId)>,
}

impl Ambient {
    fn context_of(&self, core: &Arc<Core>) -> Option<ContextId> {
        let (worker, context) = self.context.as_ref()?;
        Arc::ptr_eq(worker, core).then_some(*context)
    }
}

/// What a remote function runs for: all that it, and who supervises it, has to know of its call.
pub(crate) struct Current {
    pub(crate) core: Arc<Core>,
    pub(crate) caller: NodeId,
    /// What becomes of its result.
    pub(crate) target: Destination,
    /// When it was taken up.
    pub(crate) began: Instant,
    /// Nested calls inherit it (D3).
    pub(crate) deadline: Option<Instant>,
    /// The caller's trace and span.
    pub(crate) caller_trace: TraceContext,
    /// Its own ([`trace::of`](crate::runtime::trace::of)): found out when it is asked for, since a subscriber of the
    /// program's has a say in it.
    pub(crate) trace: OnceLock<TraceContext>,
    /// Nested calls are made in it.
    pub(crate) context: Option<ContextId>,
    /// It, and the calls that wait for it.
    pub(crate) chain: CallChain,
    /// What runs; none if a value is fetched.
    pub(crate) entry: Option<&'static FunctionEntry>,
    /// Whether it was called as another language does.
    pub(crate) foreign: bool,
    /// Tells it that nobody wants its answer any more.
    pub(crate) signal: CancelSignal,
}

impl Cancellable for Current {
    fn signal(&self) -> &CancelSignal {
        &self.signal
    }
}

impl Current {
    /// What the caller knows the call by; none if its result stays here.
    pub(crate) fn request(&self) -> Option<MessageId> {
        match self.target {
            Destination::Answer(request) => Some(request),
            Destination::Stay { .. } => None,
        }
    }

    /// How its answer is written: as it was asked for.
    pub(crate) fn codec(&self) -> &Codec {
        let codec = self.core.agent().codec();
        match self.foreign {
            true => codec.of_foreigners(),
            false => codec,
        }
    }

    /// What runs, by its id; zero if a value is fetched.
    pub(crate) fn function(&self) -> u64 {
        self.entry.map_or(0, FunctionEntry::id)
    }

    /// What this code runs for, if it runs inside a remote function.
    pub(crate) fn get() -> Option<Arc<Self>> {
        innermost(&AMBIENT, |ambient| ambient.current.clone()).flatten()
    }

    /// The same, and the context that a call of this worker is made in.
    pub(crate) fn and_context_of(core: &Arc<Core>) -> (Option<Arc<Self>>, Option<ContextId>) {
        let ambient = innermost(&AMBIENT, |ambient| {
            (ambient.current.clone(), ambient.context_of(core))
        });
        ambient.unwrap_or_default()
    }

    /// Runs `f` as part of a remote function.
    pub(crate) fn enter<T>(self: &Arc<Self>, f: impl FnOnce() -> T) -> T {
        let context = self
            .context
            .map(|context| (Arc::clone(&self.core), context));
        let entered = Entered::new(
            &AMBIENT,
            Ambient {
                current: Some(Arc::clone(self)),
                context,
            },
        );
        let result = f();
        // A panic leaves it, too.
        drop(entered.leave());
        result
    }

    /// Whether it may still be begun.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if self.signal.is_cancelled() {
            return Err(Failure::Cancelled);
        }
        if self.is_late() {
            return Err(Failure::DeadlineExceeded);
        }
        Ok(())
    }

    /// Whether its time is up.
    pub(crate) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|at| at <= Instant::now())
    }
}

/// The context that surrounds this code, and the worker that takes part in it.
pub(crate) fn context() -> Option<(Arc<Core>, ContextId)> {
    innermost(&AMBIENT, |ambient| ambient.context.clone()).flatten()
}

/// The context that a call of this worker is built in.
pub(crate) fn context_of(core: &Arc<Core>) -> Option<ContextId> {
    innermost(&AMBIENT, |ambient| ambient.context_of(core)).flatten()
}

/// Runs `f` inside of a context, or outside of any.
pub(crate) fn enter_context<T>(
    context: Option<(Arc<Core>, ContextId)>,
    f: impl FnOnce() -> T,
) -> T {
    let current = Current::get();
    let _restore = Entered::new(&AMBIENT, Ambient { current, context });
    f()
}

/// Runs `f` as part of no remote function, and in no context.
pub(crate) fn enter_nothing<T>(f: impl FnOnce() -> T) -> T {
    let (current, context) = (None, None);
    let _restore = Entered::new(&AMBIENT, Ambient { current, context });
    f()
}
