//! What can become of a call of the workload besides its value: errors of farref's, by kind, and the functions' own.

use farref::Error;
use farref_autograd::engine::Cause;
use serde::{Deserialize, Serialize};

/// Of which kind an error is: as far as it matters for whether it may have come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    PeerLost,
    OwnerLost,
    CreatorLost,
    ContextLost,
    Timeout,
    Cancelled,
    /// This worker is out of its group.
    Evicted,
    Minority,
    NotMember,
    /// Any other: none of them may come, whatever happens.
    Unexpected,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PeerLost => "peer lost",
            Self::OwnerLost => "owner lost",
            Self::CreatorLost => "creator lost",
            Self::ContextLost => "context lost",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::Evicted => "evicted",
            Self::Minority => "minority",
            Self::NotMember => "not a member",
            Self::Unexpected => "unexpected",
        }
    }

    /// Whether it comes only of a worker that was lost, or took itself for lost.
    pub(super) fn is_of_a_loss(self) -> bool {
        !matches!(self, Self::Timeout | Self::Unexpected)
    }
}

/// An error of farref's, as it is noted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub(super) struct Trouble {
    pub(super) kind: Kind,
    /// Whom it names.
    pub(super) worker: Option<String>,
    pub(super) text: String,
}

impl Trouble {
    pub(super) fn of(error: &Error) -> Self {
        // What a function on the way has handed on as it was.
        if let Some(Raised::Trouble(inner)) = error.downcast_ref::<Raised>() {
            return inner.clone();
        }
        let (kind, worker) = match error {
            Error::PeerLost { peer, .. } => (Kind::PeerLost, Some(peer)),
            Error::OwnerLost { owner } => (Kind::OwnerLost, Some(owner)),
            Error::CreatorLost { creator } => (Kind::CreatorLost, Some(creator)),
            Error::ContextLost { peer } => (Kind::ContextLost, Some(peer)),
            Error::Timeout { peer, .. } => (Kind::Timeout, Some(peer)),
            Error::Cancelled { peer, .. } => (Kind::Cancelled, Some(peer)),
            Error::Evicted { name } => (Kind::Evicted, Some(name)),
            Error::Minority { name, .. } => (Kind::Minority, Some(name)),
            Error::NotMember { name, .. } => (Kind::NotMember, Some(name)),
            _ => (Kind::Unexpected, None),
        };
        Self {
            kind,
            worker: worker.map(|worker| worker.to_string()),
            text: error.to_string(),
        }
    }

    pub(super) fn of_autograd(error: &farref_autograd::Error) -> Self {
        let failure = match error {
            farref_autograd::Error::Farref(error) => return Self::of(error),
            farref_autograd::Error::Backward(failure) => failure,
            _ => {
                return Self {
                    kind: Kind::Unexpected,
                    worker: None,
                    text: error.to_string(),
                };
            }
        };
        let (kind, worker) = match &failure.cause {
            Cause::WorkerLost => (Kind::PeerLost, Some(failure.worker.clone())),
            // To whom is in the text alone.
            Cause::Delivery(_) => (Kind::PeerLost, None),
            Cause::Released => (Kind::ContextLost, None),
            Cause::NoProgress { .. } => (Kind::Timeout, None),
            Cause::Cancelled => (Kind::Cancelled, Some(failure.worker.clone())),
            _ => (Kind::Unexpected, Some(failure.worker.clone())),
        };
        Self {
            kind,
            worker,
            text: failure.to_string(),
        }
    }
}

/// What a function of the workload fails with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub(super) enum Raised {
    /// Because it was asked to.
    #[error("refused: {0}")]
    Refused(u64),
    /// Because something that it called for has failed.
    #[error("{0}")]
    Trouble(Trouble),
}

impl From<Error> for Raised {
    fn from(error: Error) -> Self {
        Self::Trouble(Trouble::of(&error))
    }
}

impl From<farref_autograd::Error> for Raised {
    fn from(error: farref_autograd::Error) -> Self {
        Self::Trouble(Trouble::of_autograd(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_and_whom_it_names() {
        let lost = Error::OwnerLost {
            owner: "worker3".into(),
        };
        let trouble = Trouble::of(&lost);
        assert_eq!(trouble.kind, Kind::OwnerLost);
        assert_eq!(trouble.worker.as_deref(), Some("worker3"));
        assert_eq!(Trouble::of(&Error::ContextReleased).kind, Kind::Unexpected);
        let of_a_step = farref_autograd::Error::Farref(lost);
        assert_eq!(Trouble::of_autograd(&of_a_step), trouble);
    }
}
