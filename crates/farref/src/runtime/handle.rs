//! One program-side hold on a reference: the protocol's handle count, as an object that gives it back
//! when it is dropped.

use std::fmt;
use std::sync::Arc;

use farref_proto::{Fingerprint, NodeId, RRefId};

use super::core::Core;
use crate::error::{Error, ReferenceError, Result};
use crate::support::mutation::mutated;

/// A hold on a reference, or the reason why there is none.
pub(crate) enum Handle {
    /// A hold.
    Held(Held),
    /// `.remote()` could not even be sent. It returns a reference all the same, which says so at use.
    Broken(Box<Error>),
}

/// A hold on a reference. Clones of an `RRef` share one.
pub(crate) struct Held {
    pub(crate) core: Arc<Core>,
    pub(crate) rref: RRefId,
    pub(crate) owner: NodeId,
    pub(crate) fingerprint: Fingerprint,
}

impl Handle {
    /// A hold that the protocol has counted already.
    pub(crate) fn counted(
        core: &Arc<Core>,
        rref: RRefId,
        owner: NodeId,
        fingerprint: Fingerprint,
    ) -> Arc<Self> {
        Arc::new(Self::Held(Held {
            core: Arc::clone(core),
            rref,
            owner,
            fingerprint,
        }))
    }

    /// No hold.
    pub(crate) fn broken(error: Error) -> Arc<Self> {
        Arc::new(Self::Broken(Box::new(error)))
    }

    /// The hold, if there is one.
    pub(crate) fn held(&self) -> Result<&Held> {
        match self {
            Self::Held(held) => Ok(held),
            Self::Broken(error) => Err(Error::clone(error)),
        }
    }

    /// Whether a message of `core` may carry it.
    pub(crate) fn check_sendable(&self, core: &Arc<Core>) -> Result<()> {
        match self.held() {
            Ok(held) if Arc::ptr_eq(&held.core, core) => Ok(()),
            Ok(held) => Err(foreign(&held.core, core)),
            Err(error) => Err(ReferenceError::Broken(Box::new(error)).into()),
        }
    }
}

/// What is `held` by one worker cannot be sent by another.
pub(super) fn foreign(held: &Core, sender: &Core) -> Error {
    Error::ForeignReference {
        held_by: Arc::clone(&held.name),
        which: match held.name == sender.name {
            false => "",
            true if held.is_over() => " (an earlier one of that name, which has ended)",
            true => " (another one of that name, in another group)",
        },
        sent_by: Arc::clone(&sender.name),
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !mutated!(KeepDropped) {
            self.core.drop_handle(self.rref);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Held(held) => write!(f, "{} of {}", held.rref, held.owner),
            Self::Broken(error) => write!(f, "broken: {error}"),
        }
    }
}
