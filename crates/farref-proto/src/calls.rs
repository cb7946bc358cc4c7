//! The calls between this node and one peer that have not been answered.
//!
//! # Invariants
//!
//! - **CA-1** A request stays in the table until it is answered or its peer departs, cancelled or
//!   not; until then it keeps the reference that it fetches. So a release never overtakes a fetch.
//! - **CA-2** A request id is not used again while the request is outstanding, and differs by its
//!   generation from all that used the same slot before.

use std::collections::BTreeMap;

use crate::error::PeerMisbehaved;
use crate::ids::{ContextId, MessageId, RRefId};

/// A request made of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Outgoing {
    /// Whether the program still waits for the answer.
    pub(crate) wanted: bool,
    /// The reference that it fetches and holds a handle of.
    pub(crate) fetches: Option<RRefId>,
}

/// A request of the peer being worked on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Incoming {
    pub(crate) context: Option<ContextId>,
    pub(crate) fetches: Option<RRefId>,
}

/// All calls that were open with a peer.
pub(crate) struct Open {
    pub(crate) outgoing: Vec<(MessageId, Outgoing)>,
    pub(crate) incoming: Vec<(MessageId, Incoming)>,
}

/// The open calls with one peer, in both directions.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Calls {
    slots: Vec<Slot>,
    free: Vec<u32>,
    incoming: BTreeMap<MessageId, Incoming>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot {
    generation: u32,
    call: Option<Outgoing>,
}

impl Calls {
    pub(crate) fn start(&mut self, call: Outgoing) -> MessageId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                call: None,
            });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.call = Some(call);
        MessageId(u64::from(slot.generation) << 32 | u64::from(index))
    }

    pub(crate) fn outgoing(&mut self, request: MessageId) -> Option<&mut Outgoing> {
        self.slot(request)?.call.as_mut()
    }

    pub(crate) fn finish(&mut self, request: MessageId) -> Option<Outgoing> {
        let slot = self.slot(request)?;
        let call = slot.call.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(request.0 as u32);
        Some(call)
    }

    fn slot(&mut self, request: MessageId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(request.0 as u32 as usize)?;
        (u64::from(slot.generation) == request.0 >> 32).then_some(slot)
    }

    pub(crate) fn receive(
        &mut self,
        request: MessageId,
        call: Incoming,
    ) -> Result<(), PeerMisbehaved> {
        if self.incoming.contains_key(&request) {
            return Err(PeerMisbehaved::RequestTwice { request });
        }
        self.incoming.insert(request, call);
        Ok(())
    }

    pub(crate) fn incoming(&self, request: MessageId) -> Option<Incoming> {
        self.incoming.get(&request).copied()
    }

    pub(crate) fn answered(&mut self, request: MessageId) -> Option<Incoming> {
        self.incoming.remove(&request)
    }

    /// How many calls are open in either direction.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len() + self.incoming.len()
    }

    /// Takes everything out: the peer is gone.
    pub(crate) fn drain(self) -> Open {
        let outgoing = self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = MessageId(u64::from(slot.generation) << 32 | index as u64);
            slot.call.map(|call| (id, call))
        });
        Open {
            outgoing: outgoing.collect(),
            incoming: self.incoming.into_iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Outgoing = Outgoing {
        wanted: true,
        fetches: None,
    };

    #[test]
    fn a_request_is_answered_once() {
        let mut calls = Calls::default();
        let request = calls.start(CALL);
        assert_eq!(calls.finish(request), Some(CALL));
        assert_eq!(calls.finish(request), None);
        assert_eq!(calls.len(), 0);
    }

    /// CA-2
    #[test]
    fn a_reused_slot_gives_another_id() {
        let mut calls = Calls::default();
        let first = calls.start(CALL);
        calls.finish(first);
        let second = calls.start(CALL);
        assert_ne!(first, second);
        assert_eq!(calls.outgoing(first), None);
        assert!(calls.outgoing(second).is_some());
    }

    #[test]
    fn a_peer_cannot_open_one_request_twice() {
        let mut calls = Calls::default();
        let call = Incoming {
            context: None,
            fetches: None,
        };
        let request = MessageId(7);
        assert_eq!(calls.receive(request, call), Ok(()));
        assert_eq!(
            calls.receive(request, call),
            Err(PeerMisbehaved::RequestTwice { request })
        );
    }

    #[test]
    fn an_id_that_was_never_given_out_is_unknown() {
        assert_eq!(Calls::default().finish(MessageId(u64::MAX)), None);
    }
}
