//! Questions that need no session: what a worker does, and whether an earlier life of one is still there.

mod observe;
mod presence;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use observe::hear_anything;
pub(crate) use observe::{MAX_OBSERVERS, ObserverConnection, ObserverConnectionError, show};
pub(crate) use presence::Predecessors;
