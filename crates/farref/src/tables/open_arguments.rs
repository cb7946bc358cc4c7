//! How much peers have this worker keep in arguments of their calls (guarantee D5).
//!
//! # Invariants
//!
//! - **OA-1** Whoever has more bytes of arguments open here than a worker may have with another ([`MAX_OPEN_BYTES`]) is
//!   cut off. One large call of any size may be open, if it is the only one; small calls do not count, as their
//!   number is limited.
//! - **OA-2** A correct peer is never above that: a call counts here from when it has come until its answer leaves, or its
//!   result is kept, and with its caller from before that until after it (FL-2).
//!
//! [`MAX_OPEN_BYTES`]: super::flow_control::MAX_OPEN_BYTES

use std::collections::HashMap;

use farref_proto::{MessageId, NodeId};

use crate::agent::weigh;

/// The large calls of peers that are open.
#[derive(Debug, Default)]
pub(crate) struct OpenArguments {
    bytes: HashMap<NodeId, u64>,
    /// Those that are to be answered, and how large they are.
    answers: HashMap<(NodeId, MessageId), u64>,
}

impl OpenArguments {
    /// Whether a peer may have a call with so many bytes of arguments open besides what it has (OA-1).
    #[inline]
    pub(crate) fn has_room_for(&self, from: NodeId, bytes: u64, limit: u64) -> bool {
        let bytes = weigh(bytes);
        // Few are large.
        bytes == 0 || {
            let open = self.bytes.get(&from).copied().unwrap_or(0);
            open == 0 || open.saturating_add(bytes) <= limit
        }
    }

    /// A call has come that is to be answered.
    #[inline]
    pub(crate) fn called(&mut self, from: NodeId, request: MessageId, bytes: u64) {
        let bytes = weigh(bytes);
        if bytes > 0 {
            self.answers.insert((from, request), bytes);
            self.began(from, bytes);
        }
    }

    /// A call has come whose result stays.
    #[inline]
    pub(crate) fn began(&mut self, from: NodeId, bytes: u64) {
        let bytes = weigh(bytes);
        if bytes > 0 {
            *self.bytes.entry(from).or_default() += bytes;
        }
    }

    /// A call is answered.
    #[inline]
    pub(crate) fn answered(&mut self, to: NodeId, request: MessageId) {
        // As nearly always.
        if self.answers.is_empty() {
            return;
        }
        if let Some(bytes) = self.answers.remove(&(to, request)) {
            self.ended(to, bytes);
        }
    }

    /// The result of a call that stays is there.
    pub(crate) fn ended(&mut self, from: NodeId, bytes: u64) {
        let bytes = weigh(bytes);
        if bytes == 0 {
            return;
        }
        if let Some(open) = self.bytes.get_mut(&from) {
            *open = open.saturating_sub(bytes);
            if *open == 0 {
                self.bytes.remove(&from);
            }
        }
    }

    /// A peer is gone, and what it had open is nobody's.
    pub(crate) fn forget(&mut self, node: NodeId) {
        if self.bytes.remove(&node).is_some() {
            self.answers.retain(|(from, _), _| *from != node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::SMALL;

    const PEER: NodeId = NodeId::new(1, 1);
    const LIMIT: u64 = 10 * SMALL;

    /// OA-1: what is answered or kept counts no more, whoever is gone has nothing open, and others do not count.
    #[test]
    fn a_peer_has_as_much_open_as_is_not_answered_or_kept() {
        let mut open = OpenArguments::default();
        open.called(PEER, MessageId(1), 6 * SMALL);
        open.began(PEER, 4 * SMALL);
        assert!(!open.has_room_for(PEER, 2 * SMALL, LIMIT));
        assert!(open.has_room_for(PEER, SMALL, LIMIT));
        assert!(open.has_room_for(NodeId::new(2, 1), LIMIT, LIMIT));
        open.answered(PEER, MessageId(2));
        open.answered(NodeId::new(2, 1), MessageId(1));
        assert!(!open.has_room_for(PEER, 2 * SMALL, LIMIT));
        open.answered(PEER, MessageId(1));
        assert!(open.has_room_for(PEER, 6 * SMALL, LIMIT));
        assert!(!open.has_room_for(PEER, 7 * SMALL, LIMIT));
        open.ended(PEER, 4 * SMALL);
        assert!(open.has_room_for(PEER, 7 * SMALL, LIMIT));
        open.called(PEER, MessageId(3), LIMIT);
        open.forget(PEER);
        assert!(open.has_room_for(PEER, LIMIT, LIMIT));
        open.answered(PEER, MessageId(3));
        assert!(open.bytes.is_empty() && open.answers.is_empty());
    }

    /// OA-1
    #[test]
    fn one_call_of_any_size_may_be_open() {
        let mut open = OpenArguments::default();
        assert!(open.has_room_for(PEER, u64::MAX, LIMIT));
        open.called(PEER, MessageId(1), 100 * LIMIT);
        assert!(open.has_room_for(PEER, SMALL, LIMIT));
        assert!(!open.has_room_for(PEER, SMALL + 1, LIMIT));
    }
}
