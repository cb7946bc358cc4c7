//! Who may call what: the program's word on each call of a peer.
//!
//! # Invariants
//!
//! - **AU-1** The program is asked once for each call of a function or method by another worker: where the function
//!   is to run, before anything of its arguments is read, and never by whoever brought the call (UC-1). While it is
//!   asked, no lock is held.
//! - **AU-2** What is refused, or panicked over, is answered with [`Failure::NotAuthorized`], and nothing of it is run.
//! - **AU-3** A peer that is refused again and again does not fill the log.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use farref_proto::NodeId;

use super::current::Current;
use super::registry::FunctionEntry;
use crate::agent::Failure;
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::user_code;

/// How often a worker complains of calls that it refuses (AU-3).
const COMPLAIN_EVERY: Duration = Duration::from_secs(10);

/// A call that another worker asks for, as the closure of [`WorkerBuilder::authorize`](crate::WorkerBuilder::authorize)
/// sees it.
///
/// ```
/// use farref::CallRequest;
///
/// /// All may look, and only the workers whose names say so may change anything.
/// fn is_allowed(call: &CallRequest) -> bool {
///     call.caller().starts_with("trainer") || call.function() == "shop::price"
/// }
///
/// let builder = farref::Worker::builder("ps").authorize(is_allowed);
/// # drop(builder);
/// ```
#[derive(Clone, Debug)]
pub struct CallRequest {
    caller: Arc<str>,
    node: NodeId,
    function: &'static str,
}

impl CallRequest {
    /// The name of the worker that calls: of the one that made this very call, for whomever it works. It is the name
    /// that the worker gave when it connected.
    pub fn caller(&self) -> &str {
        &self.caller
    }

    /// Which life of that worker it is.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// What is called, as errors and snapshots name it: the function's path in the program, such as `shop::Till::put`
    /// for a method, or what `#[farref::remote(name = "..")]` says. Those of farref itself begin with `farref`.
    pub fn function(&self) -> &'static str {
        self.function
    }
}

/// What the program says to calls of others.
#[derive(Clone)]
pub(crate) struct Authorize(Arc<dyn Fn(&CallRequest) -> bool + Send + Sync>);

impl Authorize {
    pub(crate) fn new(is_allowed: impl Fn(&CallRequest) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_allowed))
    }
}

impl fmt::Debug for Authorize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorize")
    }
}

impl Current {
    /// Whether the call may be carried out (AU-1).
    #[inline]
    pub(super) fn authorize(self: &Arc<Self>) -> Result<(), Failure> {
        match &self.core.settings.authorize {
            None => Ok(()),
            Some(authorize) => self.ask(authorize),
        }
    }

    #[inline(never)]
    fn ask(self: &Arc<Self>, authorize: &Authorize) -> Result<(), Failure> {
        let core = &self.core;
        // A value that is fetched is no function.
        let Some(function) = self.entry.map(FunctionEntry::name) else {
            return Ok(());
        };
        if self.caller == core.me && !mutated!(AskOwnCalls) {
            return Ok(());
        }
        debug_assert!(!user_code::is_barred(), "UC-1");
        let caller = if mutated!(NameItself) {
            core.me
        } else {
            self.caller
        };
        let request = CallRequest {
            caller: core.name_of(caller),
            node: caller,
            function,
        };
        let asked = catch_unwind(AssertUnwindSafe(|| self.enter(|| (authorize.0)(&request))));
        let panic = match &asked {
            Ok(true) => return Ok(()),
            Ok(false) if mutated!(IgnoreRefusal) => return Ok(()),
            Ok(false) => None,
            Err(panic) => Some(user_code::panic_message(&**panic).unwrap_or("without a message")),
        };
        core.metrics.refused.increment(1);
        let (worker, caller) = (&core.name, request.caller());
        if let Some(refused) = core.refusals.count(Instant::now()) {
            match panic {
                None => tracing::warn!(%worker, caller, function, refused,
                    "calls are refused because `authorize` says so"),
                Some(panic) => tracing::error!(%worker, caller, function, refused, panic,
                    "calls are refused because `authorize` panicked"),
            }
        }
        Err(Failure::NotAuthorized)
    }
}

/// When the last complaint was, and how many calls were refused since then.
#[derive(Default)]
pub(crate) struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    /// Counts one. If it is time to say so, how many there were since that was said last.
    fn count(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.0);
        let (said, count) = &mut *state;
        *count += 1;
        if said.is_some_and(|said| now.saturating_duration_since(said) < COMPLAIN_EVERY) {
            return None;
        }
        *said = Some(now);
        Some(std::mem::take(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn au_3_refusals_are_told_at_once_and_then_now_and_again_with_how_many_there_were() {
        let (refusals, began) = (Refusals::default(), Instant::now());
        assert_eq!(refusals.count(began), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.count(began), None);
        }
        let before = began + COMPLAIN_EVERY - Duration::from_nanos(1);
        assert_eq!(refusals.count(before), None);
        assert_eq!(refusals.count(began + COMPLAIN_EVERY), Some(1002));
        assert_eq!(refusals.count(began + COMPLAIN_EVERY), None);
    }
}
