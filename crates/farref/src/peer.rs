//! A handle to another worker, or to oneself.

use std::fmt;
use std::sync::Arc;

use farref_proto::{NodeId, WorkerId};

use crate::error::{Error, FunctionName, Result};
use crate::protocol::Core;

/// A worker that functions can be called on.
///
/// It stands for the name, not for one life of it: when the worker dies and comes back under the same
/// name, calls go to the new life. (References lead to the life that has the value.)
#[derive(Clone)]
pub struct Peer {
    pub(crate) core: Arc<Core>,
    worker: WorkerId,
    name: Arc<str>,
}

impl Peer {
    pub(crate) fn of(core: &Arc<Core>, node: NodeId) -> Self {
        Self {
            core: Arc::clone(core),
            worker: node.worker,
            name: core.name_of(node),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the group: the rank, if the group was made with ranks.
    pub fn rank(&self) -> u32 {
        self.worker.0
    }

    /// Whether this is the worker that the handle was made by.
    pub fn is_me(&self) -> bool {
        self.worker == self.core.me.worker
    }

    /// Whether it is a member of the group, as far as this worker knows.
    pub fn is_alive(&self) -> bool {
        self.core.current_life(self.worker).is_some()
    }

    /// The life that a call would go to.
    pub(crate) fn life(&self, function: FunctionName) -> Result<NodeId> {
        self.core.current_life(self.worker).ok_or_else(|| {
            let stage = *self.core.stage.borrow();
            if stage == crate::protocol::Stage::Member {
                Error::PeerLost {
                    peer: Arc::clone(&self.name),
                    function,
                }
            } else {
                self.core.not_member()
            }
        })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} {})", self.name, self.worker)
    }
}
