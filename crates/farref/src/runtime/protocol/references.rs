//! References of this worker's: made of values that it has, received in messages, confirmed, given back.

use std::panic::Location;
use std::sync::Arc;

use farref_proto::{Carried, Fingerprint, NodeId, RRefId, RefError};
use tokio::sync::oneshot;

use super::work::Work;
use crate::agent::Origins;
use crate::error::Result;
use crate::runtime::core::{Core, ProtocolState, WorkerNode};
use crate::runtime::handle::Handle;
use crate::support::clock::Instant;
use crate::support::mutation::mutated;
use crate::values::Value;

/// Where references were made that are about to be sent.
pub(super) fn origins(node: &WorkerNode, references: &[RRefId]) -> Origins {
    if references.is_empty() || mutated!(ForgetOrigins) {
        return Origins::default();
    }
    let line = |rref: &RRefId| node.refs(*rref).hold(*rref)?.line();
    Origins::new(references.iter().map(line))
}

impl Core {
    /// Makes a reference to a value of this worker's own.
    pub(crate) fn create_local(
        self: &Arc<Self>,
        value: Value,
        fingerprint: Fingerprint,
        location: &'static Location<'static>,
    ) -> Result<Arc<Handle>> {
        self.create_in_place_of(value, fingerprint, location, None)
    }

    /// The same. Whoever asks where it was made is told where `made_as` was, if that is known.
    pub(crate) fn create_in_place_of(
        self: &Arc<Self>,
        value: Value,
        fingerprint: Fingerprint,
        location: &'static Location<'static>,
        made_as: Option<RRefId>,
    ) -> Result<Arc<Handle>> {
        self.check_member()?;
        let hold = self.holds.made(location, Instant::now());
        let created = self.input(|node, _| {
            let before = made_as.and_then(|rref| node.refs(rref).hold(rref));
            let hold = match before {
                Some(before) => hold.of_origin(before),
                None => hold,
            };
            let created = node.create_local(value, fingerprint);
            if let Ok(rref) = created {
                node.keep_hold(rref, hold);
            }
            created
        });
        let rref = created.map_err(|error| self.explain(error))?;
        self.metrics.created.add(1);
        Ok(Handle::counted(self, rref, self.me, fingerprint))
    }

    /// Gives a handle back. Its release leaves with the next input of this worker's, or, if there is none for a
    /// moment, together with others that have gathered by then.
    pub(crate) fn drop_handle(self: &Arc<Self>, rref: RRefId) {
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        node.drop_handle(rref, out);
        let mut work = Work::new();
        self.handle_events(&mut state, &mut work);
        let tell = !state.clock_told && state.out.has_controls();
        state.clock_told |= tell;
        drop(state);
        if tell {
            self.wake_clock.notify_one();
        }
        self.carry_out(work);
    }

    /// Takes over the references that came with a message: who sent it, the function that it calls, or whose result
    /// it brings.
    pub(super) fn receive_references(
        self: &Arc<Self>,
        node: &mut WorkerNode,
        carried: &[Carried],
        origins: &Origins,
        source: (NodeId, &'static str, bool),
        work: &mut Work,
    ) -> Vec<Arc<Handle>> {
        if carried.is_empty() {
            return Vec::new();
        }
        let holds = self
            .holds
            .received(origins, carried.len(), source, work.now());
        let received = carried.iter().zip(holds);
        received
            .map(|(carried, hold)| {
                let rref = carried.share.rref;
                node.keep_hold(rref, hold);
                Handle::counted(self, rref, carried.owner, carried.fingerprint)
            })
            .collect()
    }

    /// Waits until the owner has registered a reference.
    pub(crate) fn confirmation(
        &self,
        rref: RRefId,
    ) -> std::result::Result<Option<oneshot::Receiver<std::result::Result<(), RefError>>>, RefError>
    {
        let mut state = self.lock();
        let table = state.node.refs(rref);
        table.check(rref)?;
        if table.is_confirmed(rref) {
            return Ok(None);
        }
        let (sender, receiver) = oneshot::channel();
        state.confirmations.entry(rref).or_default().push(sender);
        Ok(Some(receiver))
    }
}
