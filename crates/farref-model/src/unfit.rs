//! A newcomer and a member that was there before it refuse each other, and find out at any moment: who goes (F10).
//!
//! Only membership: nobody creates anything. The two are never connected. A newcomer that has resigned keeps its other connections, so
//! that nobody finds it dead.

use std::collections::BTreeSet;

use farref_proto::{Departure, Event, Membership, Node, NodeConfig, NodeId, Outbox, Phase};
use stateright::{Model, Property};

use crate::channels::Channels;

/// How large the model is, and who refuses whom.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Unfit {
    /// How many workers there are before the newcomer.
    pub workers: u32,
    /// Whether the newcomer is another life of worker 0, whose first one has just died, and not one worker more.
    pub again: bool,
    /// The worker that the newcomer does not fit to.
    pub elder: u32,
    /// The worker that lets it in.
    pub sponsor: u32,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Option<farref_proto::Mutation>,
}

impl Default for Unfit {
    fn default() -> Self {
        Self {
            workers: 3,
            again: false,
            elder: 0,
            sponsor: 1,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct UnfitState {
    /// The workers that run, and messages on their way.
    channels: Channels,
    /// The newcomer knows that it is refused.
    is_refused: bool,
    noticed: BTreeSet<NodeId>,
    resigned: bool,
    /// Who has seen whom die.
    died: BTreeSet<(NodeId, NodeId)>,
}

/// Something that can happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum UnfitAction {
    /// The next message arrives.
    Deliver(NodeId, NodeId),
    /// One of the two finds that it cannot reach the other.
    Notice(NodeId),
    /// The newcomer is told by another that it is dead there.
    Refuse(NodeId),
}

impl Unfit {
    fn newcomer(&self) -> NodeId {
        match self.again {
            true => NodeId::new(0, 2),
            false => NodeId::new(self.workers, 1),
        }
    }

    fn elder(&self) -> NodeId {
        NodeId::new(self.elder, 1)
    }

    fn start(&self, me: NodeId, membership: Membership) -> Node<()> {
        #[allow(unused_mut, reason = "only broken nodes are changed")]
        let mut node = Node::new(me, membership, NodeConfig::default());
        #[cfg(feature = "mutations")]
        if let Some(mutation) = self.mutation {
            node.mutate(mutation);
        }
        node
    }

    /// Lets a node do something, and its effects take place.
    fn step(
        &self,
        state: &mut UnfitState,
        id: NodeId,
        act: impl FnOnce(&mut Node<()>, &mut Outbox<()>),
    ) {
        let on_event = |event, node: &mut Node<()>, out: &mut Outbox<()>| match event {
            Event::Gone {
                node,
                departure: Departure::Died,
            } => {
                state.died.insert((id, node));
            }
            // UW-1 of the runtime's.
            Event::Welcomed if state.is_refused => node.resign(self.elder(), out),
            _ => {}
        };
        let pair = [self.elder(), self.newcomer()];
        let apart = |to| pair.contains(&id) && pair.contains(&to);
        if let Some(ended) = state.channels.step(id, act, on_event, apart) {
            state.resigned |= ended.membership().view().is_gone(id);
        }
    }
}

impl Model for Unfit {
    type State = UnfitState;
    type Action = UnfitAction;

    fn init_states(&self) -> Vec<UnfitState> {
        let members: Vec<NodeId> = (0..self.workers).map(|n| NodeId::new(n, 1)).collect();
        let founding = |&me: &NodeId| {
            let membership = Membership::founding(me, members.iter().copied());
            (me, self.start(me, membership))
        };
        let running = members.iter().skip(usize::from(self.again));
        let newcomer = self.newcomer();
        let joining = self.start(newcomer, Membership::joining(newcomer));
        let mut state = UnfitState {
            channels: Channels::of(running.map(founding).chain([(newcomer, joining)])),
            is_refused: false,
            noticed: BTreeSet::new(),
            resigned: false,
            died: BTreeSet::new(),
        };
        let sponsor = NodeId::new(self.sponsor, 1);
        self.step(&mut state, newcomer, |node, out| node.join(sponsor, out));
        vec![state]
    }

    fn actions(&self, state: &UnfitState, actions: &mut Vec<UnfitAction>) {
        let (elder, newcomer) = (self.elder(), self.newcomer());
        let channels = &state.channels;
        let nodes = channels.nodes();
        if nodes.contains_key(&newcomer) {
            let member = |node: NodeId, of: NodeId| {
                let view = nodes.get(&node).map(|it| it.membership().view());
                view.is_some_and(|view| view.is_live(of))
            };
            // The newcomer may have asked that one to let it in before.
            if !state.noticed.contains(&newcomer) && channels.counts(newcomer, elder) {
                actions.push(UnfitAction::Notice(newcomer));
            }
            if !state.noticed.contains(&elder) && member(elder, newcomer) {
                actions.push(UnfitAction::Notice(elder));
            }
            for &by in nodes.keys().filter(|by| **by != elder) {
                if by != newcomer && !channels.counts(by, newcomer) {
                    actions.push(UnfitAction::Refuse(by));
                }
            }
        }
        let ready = channels.ready();
        actions.extend(ready.map(|(from, to)| UnfitAction::Deliver(from, to)));
    }

    fn next_state(&self, last: &UnfitState, action: UnfitAction) -> Option<UnfitState> {
        let mut state = last.clone();
        let (elder, newcomer) = (self.elder(), self.newcomer());
        match action {
            UnfitAction::Deliver(from, to) => {
                let arrives = state.channels.next(from, to)?;
                self.step(&mut state, to, arrives);
            }
            UnfitAction::Notice(by) if by == elder => {
                state.noticed.insert(by);
                self.step(&mut state, by, |node, out| node.suspect(newcomer, out));
            }
            UnfitAction::Notice(by) => {
                state.noticed.insert(by);
                state.is_refused = true;
                self.step(&mut state, by, |node, out| {
                    match node.membership().phase() {
                        Phase::Member => node.resign(elder, out),
                        _ => node.suspect(elder, out),
                    }
                });
            }
            UnfitAction::Refuse(by) => {
                self.step(&mut state, newcomer, |node, out| node.refused(by, out));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(
                "F10: no member is lost",
                |model: &Self, state: &UnfitState| {
                    let first = u32::from(model.again);
                    let nodes = state.channels.nodes();
                    (first..model.workers).all(|worker| {
                        let member = NodeId::new(worker, 1);
                        let counts = |&by: &NodeId| {
                            by == model.newcomer() || state.channels.counts(by, member)
                        };
                        nodes.contains_key(&member) && nodes.keys().all(counts)
                    })
                },
            ),
            Property::eventually(
                "F10: the newcomer is out, and whoever is left agrees",
                |model: &Self, state: &UnfitState| {
                    let mut actions = Vec::new();
                    model.actions(state, &mut actions);
                    let newcomer = model.newcomer();
                    let nodes = state.channels.nodes();
                    let mut members = nodes.values().map(Node::membership);
                    let agrees = members.all(|it| it.is_settled() && it.view().is_gone(newcomer));
                    actions.is_empty() && !nodes.contains_key(&newcomer) && agrees
                },
            ),
            Property::sometimes(
                "the newcomer is declared dead",
                |model: &Self, state: &UnfitState| {
                    let newcomer = model.newcomer();
                    state.died.iter().any(|(_, node)| *node == newcomer)
                },
            ),
        ];
        // If it is the leader that cannot reach it, it is not let in.
        if self.elder != u32::from(self.again) {
            let resigns = |_: &Self, state: &UnfitState| state.resigned;
            properties.push(Property::sometimes("the newcomer resigns", resigns));
        }
        properties
    }
}
