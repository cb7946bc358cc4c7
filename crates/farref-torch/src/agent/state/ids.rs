//! PyTorch's names for things, and the runtime's.
//!
//! A worker is a number below 32768 on the wire and a [`NodeId`] in the runtime: its first incarnation under that
//! number, or a later one in a dynamic group. A context is one number on the wire, the worker in the upper 16
//! bits. The type of a value is a word on the wire and a foreign fingerprint in the runtime.

use std::collections::HashMap;
use std::sync::Mutex;

use farref::agent::{Carried, ContextId, Fingerprint, NodeId, RRefId};
use farref_proto::{ForkId, Share};

use super::links::lock;
use crate::rpc::{Fork, GlobalId};

/// How far up the worker is in the numbers of contexts and of recorded messages.
const WORKER_SHIFT: u32 = 48;
/// The most types that are told apart, and the longest name of one. Others count as Python's objects.
const MAX_TYPES: usize = 4096;
const MAX_TYPE_NAME: usize = 1024;
/// Labels below this have a meaning of the runtime's own.
const FIRST_LABEL: u32 = 16;

/// What a value is in PyTorch's eyes that TorchScript has no word for.
pub(crate) const PY_OBJECT: &str = "PyObject";

/// The number of a worker on the wire.
pub(crate) fn number_of(node: NodeId) -> u16 {
    u16::try_from(node.worker.0).unwrap_or(u16::MAX)
}

/// A context's number on the wire.
pub(crate) fn context_number(context: ContextId) -> i64 {
    i64::from(number_of(context.origin)) << WORKER_SHIFT | low(context.counter)
}

/// What a message is recorded under on the wire.
pub(crate) fn record_number(me: u16, number: u64) -> i64 {
    i64::from(me) << WORKER_SHIFT | low(number)
}

/// The worker that gave the number, and its counter.
pub(crate) fn split_number(number: i64) -> (u16, u64) {
    let worker = u16::try_from(number >> WORKER_SHIFT).unwrap_or(u16::MAX);
    (worker, low_bits(number))
}

fn low(counter: u64) -> i64 {
    (counter & ((1 << WORKER_SHIFT) - 1)) as i64
}

fn low_bits(number: i64) -> u64 {
    (number & ((1 << WORKER_SHIFT) - 1)) as u64
}

/// Which incarnation of a worker is meant by its number: the latest that was a member.
///
/// A worker that is gone is still meant by its number until another comes under it: what it made outlives it, and is
/// known by ids that have the number in them.
#[derive(Debug, Default)]
pub(crate) struct Incarnations(Mutex<HashMap<u16, Latest>>);

#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    incarnation: u32,
    over: bool,
}

impl Incarnations {
    pub(crate) fn node(&self, worker: u16) -> NodeId {
        let incarnations = lock(&self.0);
        let latest = incarnations.get(&worker).copied().unwrap_or_default();
        NodeId::new(worker.into(), latest.incarnation)
    }

    /// Somebody comes under the number: another one, if there was one before that is gone.
    pub(crate) fn begin(&self, worker: u16) -> NodeId {
        let mut incarnations = lock(&self.0);
        let latest = incarnations.entry(worker).or_default();
        if latest.over {
            *latest = Latest {
                incarnation: latest.incarnation + 1,
                over: false,
            };
        }
        NodeId::new(worker.into(), latest.incarnation)
    }

    /// The worker is gone: whoever comes under its number is another one.
    pub(crate) fn end(&self, node: NodeId) {
        let mut incarnations = lock(&self.0);
        let latest = incarnations.entry(number_of(node)).or_default();
        latest.over |= node.incarnation.0 == latest.incarnation;
    }

    pub(crate) fn rref(&self, id: GlobalId) -> RRefId {
        RRefId::new(self.node(id.on), id.number)
    }

    pub(crate) fn fork(&self, id: GlobalId) -> ForkId {
        ForkId::new(self.node(id.on), id.number)
    }

    pub(crate) fn share(&self, rref: GlobalId, fork: GlobalId) -> Share {
        Share {
            rref: self.rref(rref),
            fork: self.fork(fork),
        }
    }

    pub(crate) fn context(&self, number: i64) -> ContextId {
        let (worker, counter) = split_number(number);
        ContextId::new(self.node(worker), counter)
    }
}

pub(crate) fn rref_id(id: RRefId) -> GlobalId {
    GlobalId::new(number_of(id.origin), id.counter)
}

pub(crate) fn fork_id(id: ForkId) -> GlobalId {
    GlobalId::new(number_of(id.origin), id.counter)
}

/// The words that PyTorch has for types, as the runtime's fingerprints.
#[derive(Debug, Default)]
pub(crate) struct Types(Mutex<(HashMap<String, u32>, Vec<String>)>);

impl Types {
    pub(crate) fn fingerprint(&self, name: &str) -> Fingerprint {
        let mut types = lock(&self.0);
        let (labels, names) = &mut *types;
        if let Some(&label) = labels.get(name) {
            return Fingerprint::foreign(label);
        }
        if names.len() >= MAX_TYPES || name.len() > MAX_TYPE_NAME {
            return Fingerprint::foreign(0);
        }
        let label = FIRST_LABEL + names.len() as u32;
        labels.insert(name.to_owned(), label);
        names.push(name.to_owned());
        Fingerprint::foreign(label)
    }

    pub(crate) fn name(&self, fingerprint: Fingerprint) -> String {
        let types = lock(&self.0);
        let label = fingerprint.foreign_label();
        let place = label.and_then(|label| label.checked_sub(FIRST_LABEL));
        let name = place.and_then(|place| types.1.get(place as usize));
        name.map_or_else(|| PY_OBJECT.to_owned(), String::clone)
    }
}

/// A reference that came in a message, as the runtime takes it.
pub(crate) fn carried(fork: &Fork, incarnations: &Incarnations, types: &Types) -> Carried {
    Carried {
        share: incarnations.share(fork.rref, fork.fork),
        owner: incarnations.node(fork.owner),
        fingerprint: types.fingerprint(&fork.type_name),
    }
}

/// A reference on its way, as PyTorch takes it.
pub(crate) fn fork(carried: &Carried, types: &Types) -> Fork {
    Fork {
        owner: number_of(carried.owner),
        rref: rref_id(carried.share.rref),
        fork: fork_id(carried.share.fork),
        parent: number_of(carried.share.fork.origin),
        type_name: types.name(carried.fingerprint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_has_its_origin_in_its_number() {
        let incarnations = Incarnations::default();
        let context = ContextId::new(NodeId::new(1, 0), 5);
        assert_eq!(context_number(context), (1 << 48) | 5);
        assert_eq!(incarnations.context(context_number(context)), context);
    }

    #[test]
    fn types_come_back_by_their_words_and_too_many_are_python_objects() {
        let types = Types::default();
        for name in ["Tensor", "PyObject", "Dict[str, int]"] {
            let fingerprint = types.fingerprint(name);
            assert!(fingerprint.foreign_label().is_some());
            assert_eq!(types.name(fingerprint), name);
        }
        for number in 0..2 * MAX_TYPES {
            types.fingerprint(&number.to_string());
        }
        assert_eq!(types.name(types.fingerprint("one more")), PY_OBJECT);
        assert_eq!(types.name(Fingerprint(u64::MAX)), PY_OBJECT);
    }

    #[test]
    fn any_number_of_the_wire_is_some_context() {
        let incarnations = Incarnations::default();
        for number in [0, 1, -1, i64::MIN, i64::MAX, 1 << 48, (1 << 48) - 1] {
            let (worker, counter) = split_number(number);
            assert_eq!(incarnations.context(number).counter, counter);
            assert!(counter < 1 << 48);
            if number >= 0 {
                assert_eq!(record_number(worker, counter), number);
            }
        }
        // An incarnation counts only here; nothing of it is on the wire.
        let later = ContextId::new(NodeId::new(3, 9), 5);
        assert_eq!(context_number(later), (3 << 48) | 5);
    }

    #[test]
    fn a_reference_goes_out_as_it_came_in() {
        let (incarnations, types) = (Incarnations::default(), Types::default());
        let came = Fork {
            owner: 2,
            rref: GlobalId::new(1, 7),
            fork: GlobalId::new(3, i64::MAX as u64),
            parent: 3,
            type_name: "List[int]".to_owned(),
        };
        let carried = carried(&came, &incarnations, &types);
        assert_eq!(carried.owner, NodeId::new(2, 0));
        assert_eq!(fork(&carried, &types), came);
        // A type of Rust's is an object of Python's.
        let native = Carried {
            fingerprint: Fingerprint(7).native(),
            ..carried
        };
        assert_eq!(fork(&native, &types).type_name, PY_OBJECT);
    }

    #[test]
    fn a_type_with_a_very_long_name_is_a_python_object() {
        let types = Types::default();
        let long = types.fingerprint(&"x".repeat(MAX_TYPE_NAME + 1));
        assert_eq!(types.name(long), PY_OBJECT);
        let shorter = "x".repeat(MAX_TYPE_NAME);
        assert_eq!(types.name(types.fingerprint(&shorter)), shorter);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_worker() {
        let incarnations = Incarnations::default();
        let first = incarnations.begin(3);
        assert_eq!(incarnations.begin(3), first, "it is there already");
        incarnations.end(first);
        let second = incarnations.begin(3);
        assert_eq!(second, NodeId::new(3, 1));
        // Late news about the first say nothing about the second.
        incarnations.end(first);
        assert_eq!(incarnations.begin(3), second);
    }

    #[test]
    fn what_a_worker_made_is_known_by_its_ids_when_it_is_gone() {
        let incarnations = Incarnations::default();
        let maker = incarnations.begin(3);
        let (rref, fork) = (GlobalId::new(3, 7), GlobalId::new(3, 8));
        let share = incarnations.share(rref, fork);
        incarnations.end(maker);
        assert_eq!(incarnations.share(rref, fork), share);
        assert_eq!(incarnations.context(3 << 48), ContextId::new(maker, 0));
        // Until somebody else has the number.
        assert_ne!(incarnations.begin(3), maker);
        assert_ne!(incarnations.share(rref, fork), share);
    }
}
