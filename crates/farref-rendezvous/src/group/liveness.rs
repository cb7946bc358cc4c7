//! Whether an earlier life of a worker is still there. Who asks it, and how, is not the rendezvous' business.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::card::Card;
use crate::error::RendezvousError;

/// What was found at the addresses of a card.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Liveness {
    /// That very life, which has proved it.
    Alive,
    /// Somebody who takes connections and says nothing: a worker that waits for its group, one that is
    /// stopped, or somebody else.
    Silent,
    /// Nobody, or certainly somebody else.
    Gone,
}

/// Finds out whether an earlier life of a worker is still there.
pub trait LivenessProbe: fmt::Debug + Send + Sync {
    /// Whether that life is there. An error if it is, and has another token or another wire.
    fn probe<'a>(
        &'a self,
        card: &'a Card,
        timeout: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>>;
}
