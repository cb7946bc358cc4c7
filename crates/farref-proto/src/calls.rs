//! The calls between this node and one peer that have not been answered.
//!
//! # Invariants
//!
//! - **CA-1** A request stays in the table until it is answered or its peer departs, cancelled or
//!   not; until then it keeps the reference that it fetches. So a release never overtakes a fetch; nor does,
//!   if the owner has declined the reference, the word to the parent that it need not wait any longer.
//! - **CA-2** A request id is not used again while the request is outstanding, and differs by its
//!   generation from all that used the same slot before, also if the slot was given back meanwhile.
//! - **CA-3** Slots that only a crowd of calls needed are given back, at a cost that does not grow with
//!   the crowd.

use std::collections::hash_map::Entry;

use crate::error::PeerMisbehaved;
use crate::hash::{IdMap, id_map, in_order};
use crate::ids::{ContextId, MessageId, RRefId};

/// A request made of the peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct OutgoingRequest<O> {
    /// Whether the program still waits for the answer.
    pub(crate) wanted: bool,
    /// The reference that it fetches and holds a handle of.
    pub(crate) fetches: Option<RRefId>,
    /// What the driver keeps of it.
    pub(crate) record: Option<O>,
}

/// A request of the peer being worked on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IncomingRequest<I> {
    pub(crate) context: Option<ContextId>,
    pub(crate) fetches: Option<RRefId>,
    /// What the driver keeps of it.
    pub(crate) record: Option<I>,
}

impl<I> IncomingRequest<I> {
    pub(crate) fn new(context: Option<ContextId>, fetches: Option<RRefId>) -> Self {
        Self {
            context,
            fetches,
            record: None,
        }
    }
}

/// All calls that were open with a peer.
pub(crate) struct Open<O, I> {
    pub(crate) outgoing: Vec<(MessageId, OutgoingRequest<O>)>,
    pub(crate) incoming: Vec<(MessageId, IncomingRequest<I>)>,
}

/// The open calls with one peer, in both directions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Calls<O, I> {
    slots: Vec<Slot<O>>,
    /// Slots that are free, the one to be used next last. Some of these may be in use, or be gone.
    free: Vec<u32>,
    /// How many slots are in use.
    used: u32,
    /// The first generation of a new slot: none that was given back has had it (CA-2).
    first_generation: u32,
    incoming: IdMap<MessageId, IncomingRequest<I>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Slot<O> {
    generation: u32,
    call: Option<OutgoingRequest<O>>,
}

impl<O> Slot<O> {
    /// What the request is called whose slot is at this index.
    fn id(&self, index: usize) -> MessageId {
        MessageId(u64::from(self.generation) << 32 | index as u64)
    }
}

/// So many slots are kept in any case.
const SPARE: usize = 64;

impl<O, I> Calls<O, I> {
    /// No calls. The peer chooses the ids of its own: the seed keeps it from choosing those that collide.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            used: 0,
            first_generation: 0,
            incoming: id_map(seed),
        }
    }

    pub(crate) fn start(&mut self, call: OutgoingRequest<O>) -> MessageId {
        self.used += 1;
        while let Some(index) = self.free.pop() {
            if let Some(slot) = self.slots.get_mut(index as usize)
                && slot.call.is_none()
            {
                slot.call = Some(call);
                return MessageId(u64::from(slot.generation) << 32 | u64::from(index));
            }
        }
        let index = self.slots.len() as u64;
        self.slots.push(Slot {
            generation: self.first_generation,
            call: Some(call),
        });
        MessageId(u64::from(self.first_generation) << 32 | index)
    }

    pub(crate) fn outgoing(&mut self, request: MessageId) -> Option<&mut OutgoingRequest<O>> {
        self.slot(request)?.call.as_mut()
    }

    pub(crate) fn finish(&mut self, request: MessageId) -> Option<OutgoingRequest<O>> {
        let slot = self.slot(request)?;
        let call = slot.call.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(request.0 as u32);
        self.used -= 1;
        self.give_back();
        Some(call)
    }

    /// CA-3: drops free slots at the end when most are free. What is left of them among the free ones
    /// is sorted out when it is more than half.
    fn give_back(&mut self) {
        if self.slots.len() <= SPARE || self.used as usize > self.slots.len() / 4 {
            return;
        }
        let before = self.slots.len();
        while self.slots.len() > SPARE
            && let Some(Slot {
                call: None,
                generation,
            }) = self.slots.last()
        {
            self.first_generation = self.first_generation.max(*generation);
            self.slots.pop();
        }
        let kept = self.slots.len();
        if kept == before {
            return;
        }
        if self.slots.capacity() > 4 * kept {
            self.slots.shrink_to(2 * kept);
        }
        if self.free.len() > 2 * kept {
            self.free.retain(|index| (*index as usize) < kept);
            self.free.sort_unstable_by(|a, b| b.cmp(a));
            self.free.dedup();
            self.free.shrink_to(2 * kept);
        }
    }

    fn slot(&mut self, request: MessageId) -> Option<&mut Slot<O>> {
        let slot = self.slots.get_mut(request.0 as u32 as usize)?;
        (u64::from(slot.generation) == request.0 >> 32).then_some(slot)
    }

    pub(crate) fn receive(
        &mut self,
        request: MessageId,
        call: IncomingRequest<I>,
    ) -> Result<(), PeerMisbehaved> {
        match self.incoming.entry(request) {
            Entry::Occupied(_) => Err(PeerMisbehaved::RequestTwice { request }),
            Entry::Vacant(place) => {
                place.insert(call);
                Ok(())
            }
        }
    }

    pub(crate) fn incoming(&self, request: MessageId) -> Option<&IncomingRequest<I>> {
        self.incoming.get(&request)
    }

    pub(crate) fn incoming_mut(&mut self, request: MessageId) -> Option<&mut IncomingRequest<I>> {
        self.incoming.get_mut(&request)
    }

    /// What the driver keeps of the peer's requests, in the order of their ids.
    pub(crate) fn incoming_records(&self) -> impl Iterator<Item = (MessageId, &I)> {
        let calls = self.incoming.iter();
        let records = calls.filter_map(|(request, call)| Some((*request, call.record.as_ref()?)));
        in_order(records).into_iter()
    }

    /// What the driver keeps of requests made of the peer.
    pub(crate) fn outgoing_records(&self) -> impl Iterator<Item = (MessageId, &O)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(index, slot)| {
            let record = slot.call.as_ref()?.record.as_ref()?;
            Some((slot.id(index), record))
        })
    }

    pub(crate) fn open_incoming(&self) -> usize {
        self.incoming.len()
    }

    /// Takes out all that the driver keeps.
    pub(crate) fn take_records(&mut self, outgoing: &mut Vec<O>, incoming: &mut Vec<I>) {
        let calls = self.slots.iter_mut().filter_map(|slot| slot.call.as_mut());
        outgoing.extend(calls.filter_map(|call| call.record.take()));
        let calls = self.incoming.iter_mut();
        let records = calls.filter_map(|(request, call)| Some((*request, call.record.take()?)));
        incoming.extend(in_order(records).into_iter().map(|(_, record)| record));
    }

    pub(crate) fn answered(&mut self, request: MessageId) -> Option<IncomingRequest<I>> {
        self.incoming.remove(&request)
    }

    /// How many calls are open in either direction.
    pub(crate) fn len(&self) -> usize {
        self.used as usize + self.incoming.len()
    }

    /// How many calls of this node are open whose answers the program still waits for.
    pub(crate) fn wanted(&self) -> usize {
        let calls = self.slots.iter().filter_map(|slot| slot.call.as_ref());
        calls.filter(|call| call.wanted).count()
    }

    /// Takes everything out: the peer is gone.
    pub(crate) fn drain(self) -> Open<O, I> {
        let slots = self.slots.into_iter().enumerate();
        let outgoing = slots.filter_map(|(index, slot)| {
            let id = slot.id(index);
            slot.call.map(|call| (id, call))
        });
        Open {
            outgoing: outgoing.collect(),
            incoming: in_order(self.incoming.into_entries()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Calls = super::Calls<(), ()>;

    const CALL: OutgoingRequest<()> = OutgoingRequest {
        wanted: true,
        fetches: None,
        record: None,
    };

    #[test]
    fn a_request_is_answered_once() {
        let mut calls = Calls::new(0);
        let request = calls.start(CALL);
        assert_eq!(calls.finish(request), Some(CALL));
        assert_eq!(calls.finish(request), None);
        assert_eq!(calls.len(), 0);
    }

    /// CA-2
    #[test]
    fn a_reused_slot_gives_another_id() {
        let mut calls = Calls::new(0);
        let first = calls.start(CALL);
        calls.finish(first);
        let second = calls.start(CALL);
        assert_ne!(first, second);
        assert_eq!(calls.outgoing(first), None);
        assert!(calls.outgoing(second).is_some());
    }

    #[test]
    fn a_peer_cannot_open_one_request_twice() {
        let mut calls = Calls::new(0);
        let call = || IncomingRequest::new(None, None);
        let request = MessageId(7);
        assert_eq!(calls.receive(request, call()), Ok(()));
        assert_eq!(
            calls.receive(request, call()),
            Err(PeerMisbehaved::RequestTwice { request })
        );
    }

    #[test]
    fn an_id_that_was_never_given_out_is_unknown() {
        assert_eq!(Calls::new(0).finish(MessageId(u64::MAX)), None);
    }

    /// CA-2, CA-3: what a crowd of calls took is given back, and none of its ids comes again.
    #[test]
    fn slots_are_given_back_and_their_ids_are_not_used_again() {
        const CALLS: usize = 10_000;
        let mut calls = Calls::new(0);
        let mut seen = std::collections::BTreeSet::new();
        let mut open = Vec::new();
        for _ in 0..3 {
            for _ in 0..CALLS {
                let request = calls.start(CALL);
                assert!(seen.insert(request), "{request:?} was there before");
                open.push(request);
            }
            // One of them stays, wherever it is.
            let late = open.swap_remove(CALLS / 2);
            for request in open.drain(..) {
                assert_eq!(calls.finish(request), Some(CALL));
                assert_eq!(calls.finish(request), None);
            }
            assert_eq!(calls.len(), 1);
            // A few at a time, as a program that has calmed down has them.
            for _ in 0..2 * CALLS {
                let request = calls.start(CALL);
                assert!(seen.insert(request), "{request:?} was there before");
                assert_eq!(calls.finish(request), Some(CALL));
            }
            assert!(calls.outgoing(late).is_some());
            assert_eq!(calls.finish(late), Some(CALL));
        }
        let request = calls.start(CALL);
        assert_eq!(calls.finish(request), Some(CALL));
        assert_eq!(calls.len(), 0);
        assert!(calls.slots.len() <= 64, "{} slots", calls.slots.len());
        assert!(calls.slots.capacity() + calls.free.capacity() <= 8 * SPARE);
    }
}
