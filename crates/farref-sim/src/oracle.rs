//! The oracle: knows all workers at once, remembers what happened, says what must not have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use farref_proto::{ContextId, Control, Fingerprint, ForkId, NodeId, RRefId, Standing, Time};

use crate::process::Value;

/// A guarantee that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which one, as the guarantees are numbered in the documentation.
    pub guarantee: &'static str,
    /// When.
    pub at: Time,
    /// What happened.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} broken at {}: {}", self.guarantee, self.at, self.what)
    }
}

/// What happened to a reference.
#[derive(Clone, Debug)]
pub(crate) struct RefFact {
    pub(crate) owner: NodeId,
    pub(crate) value: Option<Value>,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) freed: bool,
    pub(crate) confirmed: bool,
    /// Handed on by a worker that was turned away for the quota, and that had it from one that is gone:
    /// R4 is not promised (`docs/protocol.md`, known limits).
    pub(crate) unprotected: bool,
}

/// What happened to a call.
#[derive(Clone, Debug)]
pub(crate) struct CallFact {
    pub(crate) caller: NodeId,
    pub(crate) callee: NodeId,
    pub(crate) runs: u32,
    pub(crate) outcomes: u32,
    /// Taken back before it left, or its result stays with the callee: no outcome is due.
    pub(crate) no_outcome_due: bool,
    pub(crate) context: Option<ContextId>,
    /// Worked on, refused, or ended by a departure.
    pub(crate) over: bool,
}

/// What happened to a context.
#[derive(Clone, Debug, Default)]
pub(crate) struct ContextFact {
    /// A worker that took part in it departed: no promise about its calls is left.
    pub(crate) failed: bool,
    /// The origin has closed it: from then on calls made in it are refused, and not before.
    pub(crate) closed: bool,
    /// Workers that were told that it is released.
    pub(crate) closed_on: BTreeSet<NodeId>,
    /// Workers that take part in it and have not been told that it is over.
    pub(crate) entered: BTreeSet<NodeId>,
}

/// A control message that a worker is acting on.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "the sender is for whoever reads a complaint")]
pub(crate) struct Handling {
    pub(crate) from: NodeId,
    pub(crate) control: Control,
    /// If it accuses somebody: what the worker knew of the accused before.
    pub(crate) knew: Option<Standing>,
}

/// Everything that happened.
#[derive(Debug, Default)]
pub(crate) struct Oracle {
    pub(crate) refs: BTreeMap<RRefId, RefFact>,
    /// The references to what each worker owns, or is to own.
    pub(crate) owned: BTreeMap<NodeId, BTreeSet<RRefId>>,
    pub(crate) calls: Vec<CallFact>,
    /// The calls that each worker made or got.
    calls_of: BTreeMap<NodeId, Vec<usize>>,
    pub(crate) contexts: BTreeMap<ContextId, ContextFact>,
    /// Who cannot reach whom, and has not heard from it since.
    pub(crate) suspicions: BTreeSet<(NodeId, NodeId)>,
    /// Lives that somebody has declared dead or that have left.
    pub(crate) departed: BTreeSet<NodeId>,
    /// A worker that runs has been counted as dead: from then on there may be two groups, which promise
    /// each other nothing, and newcomers that both have heard of.
    pub(crate) split: bool,
    /// When a suspicion was last withdrawn.
    pub(crate) withdrawn: BTreeMap<(NodeId, NodeId), Time>,
    /// The departures that each worker has settled.
    pub(crate) settled: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Whom each worker has known as a member, where a majority is needed.
    pub(crate) met: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// Whom each worker has lost without knowing that all know it.
    pub(crate) lost: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// By whom, and whose death it is that all know there.
    pub(crate) buried: BTreeSet<(NodeId, NodeId)>,
    /// Who was let in and found that a member does not take its connections, or will.
    pub(crate) unfit: BTreeSet<(NodeId, NodeId)>,
    /// The fork that stands for a worker at the owner of what it holds, and whether the worker has sent
    /// its release.
    pub(crate) forks: BTreeMap<(NodeId, RRefId), (ForkId, bool)>,
    /// What a worker is acting on.
    pub(crate) handling: Option<Handling>,
    next_value: Value,
    pub(crate) violation: Option<Violation>,
}

impl Oracle {
    pub(crate) fn fresh_value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    pub(crate) fn reference_made(
        &mut self,
        rref: RRefId,
        owner: NodeId,
        value: Option<Value>,
        fingerprint: Fingerprint,
    ) {
        let fact = RefFact {
            owner,
            value,
            fingerprint,
            freed: false,
            confirmed: false,
            unprotected: false,
        };
        self.refs.insert(rref, fact);
        self.owned.entry(owner).or_default().insert(rref);
    }

    pub(crate) fn call_made(
        &mut self,
        caller: NodeId,
        callee: NodeId,
        context: Option<ContextId>,
    ) -> usize {
        self.calls.push(CallFact {
            caller,
            callee,
            runs: 0,
            outcomes: 0,
            no_outcome_due: false,
            context,
            over: false,
        });
        let number = self.calls.len() - 1;
        for node in [caller, callee] {
            self.calls_of.entry(node).or_default().push(number);
        }
        number
    }

    /// The numbers of the calls that a worker made or got. Those to itself are there twice.
    pub(crate) fn calls_of(&self, node: NodeId) -> impl Iterator<Item = usize> + use<> {
        self.calls_of
            .get(&node)
            .cloned()
            .unwrap_or_default()
            .into_iter()
    }

    /// Notes the first violation; later ones are its consequences.
    pub(crate) fn violated(&mut self, guarantee: &'static str, at: Time, what: String) {
        self.violation.get_or_insert(Violation {
            guarantee,
            at,
            what,
        });
    }
}
