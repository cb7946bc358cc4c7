//! Nodes that need a majority of their group, in a network that falls apart: who goes on.
//!
//! Only membership: nobody creates anything. What is cut stays cut, and nothing that was on its way there arrives.

use std::collections::BTreeSet;

use farref_proto::{Departure, Event, Membership, Node, NodeConfig, NodeId, Outbox, Phase};
use stateright::{Model, Property};

use crate::channels::Channels;

/// How large the model is: what may happen how often.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Split {
    /// How many workers there are.
    pub workers: u32,
    /// How often the network is cut in two, anywhere.
    pub splits: u32,
    /// How often a single link fails.
    pub cuts: u32,
    /// How many workers crash.
    pub crashes: u32,
    /// How many workers leave.
    pub leaves: u32,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Option<farref_proto::Mutation>,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            workers: 3,
            splits: 1,
            cuts: 0,
            crashes: 0,
            leaves: 0,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SplitState {
    /// The workers that run, and messages on their way.
    channels: Channels,
    /// Who cannot reach whom, both ways round.
    apart: BTreeSet<(NodeId, NodeId)>,
    noticed: BTreeSet<(NodeId, NodeId)>,
    /// Who has lost whom, and does not know that all know it.
    lost: BTreeSet<(NodeId, NodeId)>,
    /// Who knows that all on its side know that somebody is dead.
    buried: BTreeSet<(NodeId, NodeId)>,
    /// Who has given its group up.
    gave_up: BTreeSet<NodeId>,
    splits: u32,
    cuts: u32,
    crashes: u32,
    leaves: u32,
}

/// Something that can happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SplitAction {
    /// The network is cut: these on one side, the others on the other.
    Split(BTreeSet<NodeId>),
    /// A link fails.
    Cut(NodeId, NodeId),
    /// A worker dies.
    Crash(NodeId),
    /// A worker says good-bye.
    Leave(NodeId),
    /// The next message arrives.
    Deliver(NodeId, NodeId),
    /// A node notices that it cannot reach another.
    Notice(NodeId, NodeId),
    /// A node is told by another that it is dead there.
    Refuse(NodeId, NodeId),
}

impl SplitState {
    fn part(&mut self, a: NodeId, b: NodeId) {
        for pair in [(a, b), (b, a)] {
            self.apart.insert(pair);
            self.channels.lose(pair.0, pair.1);
        }
    }

    /// Lets a node do something, and its effects take place.
    fn step(&mut self, id: NodeId, act: impl FnOnce(&mut Node<()>, &mut Outbox<()>)) {
        let on_event = |event, _: &mut Node<()>, _: &mut Outbox<()>| match event {
            Event::Gone {
                node,
                departure: Departure::Died,
            } => {
                self.lost.insert((id, node));
            }
            Event::Settled(node) if self.lost.remove(&(id, node)) => {
                self.buried.insert((id, node));
            }
            Event::Minority(_) => {
                self.gave_up.insert(id);
            }
            _ => {}
        };
        let apart = |to| self.apart.contains(&(id, to));
        self.channels.step(id, act, on_event, apart);
    }

    fn runs(&self, node: NodeId) -> bool {
        self.channels.nodes().contains_key(&node)
    }

    fn gone(&self, by: NodeId, node: NodeId) -> bool {
        self.runs(by) && !self.channels.counts(by, node)
    }

    /// F7, MJ-2
    fn nobody_went_on_twice(&self) -> bool {
        let both = |&(by, node): &(NodeId, NodeId)| self.buried.contains(&(node, by));
        !self.buried.iter().any(both)
    }

    /// Whoever runs is of one group.
    fn all_agree(&self) -> bool {
        let nodes = self.channels.nodes();
        nodes.iter().all(|(&id, node)| {
            let others = nodes.keys().all(|&other| !self.gone(id, other));
            others && node.membership().is_settled()
        })
    }

    fn a_side_went_on(&self) -> bool {
        let went_on =
            |&(by, node): &(NodeId, NodeId)| self.runs(by) && self.gave_up.contains(&node);
        self.buried.iter().any(went_on) && self.all_agree()
    }
}

impl Model for Split {
    type State = SplitState;
    type Action = SplitAction;

    fn init_states(&self) -> Vec<SplitState> {
        let members: Vec<NodeId> = (0..self.workers).map(|n| NodeId::new(n, 1)).collect();
        let founding = |&me: &NodeId| (me, self.start(me, &members));
        vec![SplitState {
            channels: Channels::of(members.iter().map(founding)),
            apart: BTreeSet::new(),
            noticed: BTreeSet::new(),
            lost: BTreeSet::new(),
            buried: BTreeSet::new(),
            gave_up: BTreeSet::new(),
            splits: self.splits,
            cuts: self.cuts,
            crashes: self.crashes,
            leaves: self.leaves,
        }]
    }

    fn actions(&self, state: &SplitState, actions: &mut Vec<SplitAction>) {
        let all: Vec<NodeId> = (0..self.workers).map(|n| NodeId::new(n, 1)).collect();
        if state.splits > 0 {
            // Worker 0 is on the second side, so that no split is there twice.
            for sides in 1..1_u32 << (self.workers - 1) {
                let here =
                    |node: &&NodeId| node.worker.0 > 0 && sides >> (node.worker.0 - 1) & 1 == 1;
                let side = all.iter().filter(here).copied().collect();
                actions.push(SplitAction::Split(side));
            }
        }
        let running = state.channels.nodes();
        for (&a, node) in running {
            if state.crashes > 0 {
                actions.push(SplitAction::Crash(a));
            }
            let is_member = node.membership().phase() == Phase::Member;
            if state.leaves > 0 && is_member && running.len() > 1 {
                actions.push(SplitAction::Leave(a));
            }
            for &b in all.iter().filter(|&&b| b != a) {
                let cut = state.apart.contains(&(a, b));
                let runs = state.runs(b);
                if state.cuts > 0 && a < b && runs && !cut {
                    actions.push(SplitAction::Cut(a, b));
                }
                if (cut || !runs) && !state.gone(a, b) && !state.noticed.contains(&(a, b)) {
                    actions.push(SplitAction::Notice(a, b));
                }
                if runs && !cut && state.gone(b, a) && !state.gone(a, b) {
                    actions.push(SplitAction::Refuse(a, b));
                }
            }
        }
        let ready = state.channels.ready();
        actions.extend(ready.map(|(from, to)| SplitAction::Deliver(from, to)));
    }

    fn next_state(&self, last: &SplitState, action: SplitAction) -> Option<SplitState> {
        let mut state = last.clone();
        match action {
            SplitAction::Split(side) => {
                state.splits -= 1;
                let all = (0..self.workers).map(|n| NodeId::new(n, 1));
                for other in all.filter(|node| !side.contains(node)) {
                    side.iter().for_each(|&node| state.part(node, other));
                }
            }
            SplitAction::Cut(a, b) => {
                state.cuts -= 1;
                state.part(a, b);
            }
            SplitAction::Crash(node) => {
                state.crashes -= 1;
                state.channels.end(node);
            }
            SplitAction::Leave(node) => {
                state.leaves -= 1;
                state.step(node, |node, out| node.leave(out));
            }
            SplitAction::Deliver(from, to) => {
                let arrives = state.channels.next(from, to)?;
                state.step(to, arrives);
            }
            SplitAction::Notice(by, node) => {
                state.noticed.insert((by, node));
                state.channels.lose(node, by);
                state.step(by, |by, out| by.suspect(node, out));
            }
            SplitAction::Refuse(node, by) => {
                state.step(node, |node, out| node.refused(by, out));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("F7: nobody goes on twice", |_, state: &SplitState| {
                state.nobody_went_on_twice()
            }),
            Property::eventually(
                "F7: whoever is left is of one group",
                |model: &Self, state: &SplitState| {
                    let mut actions = Vec::new();
                    model.actions(state, &mut actions);
                    actions.is_empty() && state.all_agree()
                },
            ),
        ];
        let falls_apart = self.splits + self.cuts > 0;
        if falls_apart {
            let gives_up = |_: &Self, state: &SplitState| !state.gave_up.is_empty();
            properties.push(Property::sometimes("somebody gives up", gives_up));
        }
        // Of two, nobody goes on.
        if falls_apart && self.workers > 2 {
            let goes_on = |_: &Self, state: &SplitState| state.a_side_went_on();
            properties.push(Property::sometimes("a side goes on", goes_on));
        }
        if self.workers == 3 && self.splits + self.cuts + self.crashes + self.leaves == 1 {
            let most_stay = |_: &Self, state: &SplitState| state.channels.nodes().len() >= 2;
            properties.push(Property::always("F7: most of three stay", most_stay));
        }
        if !falls_apart && self.workers > 2 && self.crashes <= 1 {
            let nobody = |_: &Self, state: &SplitState| state.gave_up.is_empty();
            properties.push(Property::always("F7: one death ends nobody", nobody));
        }
        properties
    }
}

impl Split {
    fn start(&self, me: NodeId, members: &[NodeId]) -> Node<()> {
        let mut config = NodeConfig::default();
        config.require_majority = true;
        let membership = Membership::founding(me, members.iter().copied());
        #[allow(unused_mut, reason = "only broken nodes are changed")]
        let mut node = Node::new(me, membership, config);
        #[cfg(feature = "mutations")]
        if let Some(mutation) = self.mutation {
            node.mutate(mutation);
        }
        node
    }
}
