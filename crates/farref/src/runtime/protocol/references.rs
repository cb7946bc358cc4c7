//! References of this worker's: made of values that it has, received in messages, confirmed, given back.

use std::sync::Arc;

use farref_proto::{Carried, Fingerprint, NodeId, RRefId, RefError};
use tokio::sync::oneshot;

use super::work::Work;
use crate::agent::Origins;
use crate::error::Result;
use crate::runtime::core::{Core, ProtocolState};
use crate::runtime::handle::Handle;
use crate::tables::holds::HoldRecord;
use crate::values::Value;

impl Core {
    /// Makes a reference to a value of this worker's own.
    pub(crate) fn create_local(
        self: &Arc<Self>,
        value: Value,
        fingerprint: Fingerprint,
        made: HoldRecord,
    ) -> Result<Arc<Handle>> {
        self.check_member()?;
        let created = self.input(|node, _| node.create_local(value, fingerprint));
        let rref = created.map_err(|error| self.explain(error))?;
        self.metrics.created.add(1);
        Ok(Handle::counted(self, rref, self.me, fingerprint, made))
    }

    /// Gives a handle back. Its release is sent soon, together with others.
    pub(crate) fn drop_handle(self: &Arc<Self>, rref: RRefId) {
        self.holds.remove(rref);
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        node.drop_handle(rref, out);
        let mut work = Work::new();
        self.handle_events(&mut state, &mut work);
        if state.out.controls() > 0 {
            self.wake_clock.notify_one();
        }
        drop(state);
        self.carry_out(work);
    }

    /// Where references were made that are about to be sent.
    pub(super) fn origins(&self, references: &[RRefId]) -> Origins {
        if references.is_empty() {
            return Origins::default();
        }
        Origins::new(references.iter().map(|rref| self.holds.line(*rref)))
    }

    /// Takes over the references that came with a message, to a function or as its result.
    pub(super) fn receive_references(
        self: &Arc<Self>,
        from: NodeId,
        carried: &[Carried],
        origins: &Origins,
        function: &'static str,
        returned: bool,
    ) -> Vec<Arc<Handle>> {
        if carried.is_empty() {
            return Vec::new();
        }
        let sources = self.holds.sources(origins, from, function, returned);
        let received = carried.iter().enumerate();
        received
            .map(|(index, carried)| Handle::received(self, carried, sources.of(index)))
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
