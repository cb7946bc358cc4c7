//! Whether an earlier life of a worker is still there. Who asks it, and how, is not the rendezvous' business.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use super::card::Card;
use super::error::RendezvousError;

/// What was found where a card leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sign {
    /// That very life, which has proved it.
    Present,
    /// Somebody who takes connections and says nothing: a worker that waits for its group, one that is
    /// stopped, or somebody else.
    Silent,
    /// Nobody, or certainly somebody else.
    Absent,
}

/// Asks a worker whether it is there.
pub trait Presence: fmt::Debug + Send + Sync {
    /// Whether that life is there. An error if it is, and has another token or another wire.
    fn ask<'a>(
        &'a self,
        card: &'a Card,
        patience: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Sign, RendezvousError>> + Send + 'a>>;
}
