//! What a worker answers to the questions of the native wire: where peers are, whom it has met, a snapshot.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref_proto::NodeId;

use crate::native::{Rejection, WIRE_VERSION, WireCallbacks};
use crate::rendezvous::{Card, RendezvousError};
use crate::report::snapshot::{Snapshot, Wanted};
use crate::runtime::trace;
use crate::runtime::{Core, WorkerStage};

/// The questions go to the worker's [`Core`].
#[derive(Debug)]
pub(super) struct CoreCallbacks {
    pub(super) core: Weak<Core>,
}

impl WireCallbacks for CoreCallbacks {
    fn lookup(
        &self,
        node: NodeId,
    ) -> Pin<Box<dyn Future<Output = Result<Card, String>> + Send + '_>> {
        Box::pin(async move {
            let core = self.core.upgrade().ok_or("this worker is gone")?;
            let directory = core.names.directory().ok_or("there is no directory")?;
            directory
                .lookup(node)
                .await
                .map_err(|error| error.to_string())
        })
    }

    fn name(&self, node: NodeId) -> Option<Arc<str>> {
        self.core.upgrade()?.names.of(node)
    }

    fn met(&self, card: &Card, max_calls: u32) {
        if let Some(core) = self.core.upgrade() {
            if core.names.prove(card.node, &card.name) {
                core.learned(card.clone());
            }
            core.rejections.remove(card.node);
            core.met(card.node, max_calls);
        }
    }

    fn is_live(&self, node: NodeId) -> bool {
        let is_live = |core: Arc<Core>| core.look(|own| own.membership().view().is_live(node));
        self.core.upgrade().is_some_and(is_live)
    }

    fn unmet(&self, nodes: &[NodeId], forget: &mut dyn FnMut(NodeId) -> bool) {
        if let Some(core) = self.core.upgrade() {
            core.unmet(nodes, forget);
        }
    }

    fn is_member(&self) -> bool {
        self.core.upgrade().is_some_and(|core| core.is_member())
    }

    fn rejected(&self, by: NodeId, rejection: Rejection) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        let is_here = matches!(
            *core.stage.borrow(),
            WorkerStage::Joining | WorkerStage::Member
        );
        if is_here {
            let is_its_own = !matches!(rejection, Rejection::Elsewhere(_));
            let why = explained(&core, by, rejection);
            core.rejections.insert(by, why, is_its_own);
        }
    }

    fn is_here(&self) -> bool {
        self.core.upgrade().is_some_and(|core| {
            matches!(
                *core.stage.borrow(),
                WorkerStage::Joining | WorkerStage::Member
            )
        })
    }

    fn starving(&self, lasted: Duration) {
        if let Some(core) = self.core.upgrade() {
            core.starving(lasted);
        }
    }

    fn snapshot(&self, wanted: Wanted) -> Option<Snapshot> {
        if wanted.calls > 0 {
            trace::watch();
        }
        let core = self.core.upgrade()?;
        Some(Snapshot::of(&core, wanted))
    }
}

/// Why two workers cannot connect, and what to do.
fn explained(core: &Core, by: NodeId, rejection: Rejection) -> RendezvousError {
    let name = core.name.to_string();
    let by = core.name_of(by).to_string();
    match rejection {
        Rejection::Token => RendezvousError::WrongToken { name, by },
        Rejection::User => RendezvousError::OtherUser { name, by },
        Rejection::Certificate(reason) | Rejection::Elsewhere(reason) => {
            RendezvousError::Certificate { name, by, reason }
        }
        Rejection::Version(theirs) => RendezvousError::WireVersion {
            worker: by,
            theirs,
            ours: WIRE_VERSION,
        },
    }
}
