//! Who and what: workers, their lives, references, forks, contexts, messages.
//!
//! Every id keeps PyTorch's shape, *(worker, counter)*, and adds the worker's incarnation, so that
//! an id made before a restart can never be mistaken for one made after it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A worker's place in its group. It survives a restart; the [`Incarnation`] does not.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WorkerId(pub u32);

/// Which life of a worker: each start under the same [`WorkerId`] takes a greater one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u32);

/// One life of one worker. Everything in the protocol is said to, by or about a `NodeId`, so
/// nothing meant for one life reaches the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeId {
    /// The worker.
    pub worker: WorkerId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

impl NodeId {
    /// The given life of the given worker.
    pub const fn new(worker: u32, incarnation: u32) -> Self {
        Self {
            worker: WorkerId(worker),
            incarnation: Incarnation(incarnation),
        }
    }

    /// Whether this is the given life, or an earlier one of the same worker: it is over when that one is.
    pub fn is_over_with(self, life: Self) -> bool {
        self.worker == life.worker && self.incarnation <= life.incarnation
    }
}

/// Declares an id of the shape (node that made it, counter of that node).
macro_rules! global_id {
    ($(#[$doc:meta])* $name:ident, $letter:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name {
            /// The node that made the id.
            pub origin: NodeId,
            /// Counts up on that node, never down, never twice.
            pub counter: u64,
        }

        impl $name {
            /// The id with these parts.
            pub const fn new(origin: NodeId, counter: u64) -> Self {
                Self { origin, counter }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($letter, "{}@{}"), self.counter, self.origin)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

global_id!(
    /// A value that is or was referred to across workers. `origin` is the node that *asked* for the
    /// value to exist; the node that owns it may be another.
    RRefId,
    "r"
);
global_id!(
    /// One share of a reference: what a holder was given by a parent. `origin` is the parent.
    ForkId,
    "f"
);
global_id!(
    /// An autograd context. `origin` is the node that opened it and alone may release it.
    ContextId,
    "c"
);

/// A request, unique among those that one node has sent to another in their present lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MessageId(pub u64);

/// What type a value has: a hash of its name and layout that both sides of a call compute alike.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fingerprint(pub u64);

impl Fingerprint {
    /// A value whose type another system knows, and calls by this number. It says nothing about the
    /// value's layout, so it agrees with every other fingerprint: whoever uses the value finds out.
    pub const fn foreign(label: u32) -> Self {
        Self(label as u64)
    }

    /// What the other system calls the type, if it is the one that knows it.
    pub const fn foreign_label(self) -> Option<u32> {
        match self.0 >> 32 {
            0 => Some(self.0 as u32),
            _ => None,
        }
    }

    /// The same, unless it could be taken for a foreign one.
    pub const fn native(self) -> Self {
        match self.foreign_label() {
            Some(_) => Self(self.0 | 1 << 63),
            None => self,
        }
    }

    /// Whether a value of one type may be what the other stands for.
    pub const fn agrees(self, other: Self) -> bool {
        self.0 == other.0 || self.foreign_label().is_some() || other.foreign_label().is_some()
    }
}

/// Names the group that workers belong to; a worker of another group is refused at the handshake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct GroupId(pub u64);

/// Makes ids that no other source of the same node makes.
///
/// Source `index` of `count` takes the counters that leave remainder `index`, so that tables
/// sharded by `counter % count` find their own ids in their own shard.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct IdSource {
    node: NodeId,
    next: u64,
    step: u64,
}

impl IdSource {
    pub(crate) fn new(node: NodeId, index: u32, count: u32) -> Self {
        Self {
            node,
            next: u64::from(index),
            step: u64::from(count.max(1)),
        }
    }

    /// The counter of the next id: all made so far are below it.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    fn take(&mut self) -> u64 {
        let counter = self.next;
        self.next += self.step;
        counter
    }

    pub(crate) fn rref(&mut self) -> RRefId {
        RRefId::new(self.node, self.take())
    }

    pub(crate) fn fork(&mut self) -> ForkId {
        ForkId::new(self.node, self.take())
    }

    pub(crate) fn context(&mut self) -> ContextId {
        ContextId::new(self.node, self.take())
    }
}

macro_rules! display_as_debug {
    ($($name:ident => $format:literal, $($field:tt).+;)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self.$($field).+)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

display_as_debug! {
    WorkerId => "w{}", 0;
    Incarnation => "#{}", 0;
    MessageId => "m{}", 0;
    Fingerprint => "{:016x}", 0;
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.worker, self.incarnation)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_two_lives_of_one_worker_differ() {
        let mut first = IdSource::new(NodeId::new(3, 1), 0, 1);
        let mut second = IdSource::new(NodeId::new(3, 2), 0, 1);
        assert_ne!(first.rref(), second.rref());
    }

    #[test]
    fn sources_of_one_node_never_make_the_same_id() {
        let node = NodeId::new(0, 1);
        let mut seen = std::collections::BTreeSet::new();
        for index in 0..4 {
            let mut source = IdSource::new(node, index, 4);
            for _ in 0..100 {
                let id = source.fork();
                assert_eq!(id.counter % 4, u64::from(index));
                assert!(seen.insert(id));
            }
        }
    }

    #[test]
    fn a_foreign_fingerprint_agrees_with_all_and_others_only_with_themselves() {
        let [one, two] = [Fingerprint(1 << 40), Fingerprint(1 << 41)];
        let foreign = Fingerprint::foreign(7);
        assert_eq!(foreign.foreign_label(), Some(7));
        assert!(foreign.agrees(one) && one.agrees(foreign) && one.agrees(one));
        assert!(!one.agrees(two));
        assert_eq!(Fingerprint(7).native().foreign_label(), None);
        assert_eq!(one.native(), one);
    }

    #[test]
    fn no_hash_is_taken_for_a_foreign_fingerprint() {
        for label in [0, 1, u32::MAX] {
            let foreign = Fingerprint::foreign(label);
            assert_eq!(foreign.foreign_label(), Some(label));
            let hash = Fingerprint(label.into()).native();
            assert_eq!(hash.foreign_label(), None);
            assert_eq!(hash.native(), hash, "once is enough");
        }
        for hash in [1 << 32, u64::MAX, 1 << 63] {
            let hash = Fingerprint(hash);
            assert_eq!((hash.native(), hash.foreign_label()), (hash, None));
        }
    }

    #[test]
    fn ids_read_well() {
        assert_eq!(RRefId::new(NodeId::new(2, 7), 41).to_string(), "r41@w2#7");
    }
}
