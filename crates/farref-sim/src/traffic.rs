//! What membership costs: how many control messages a worker has to do with when one departs or joins.
//!
//! The nodes are real. The network delivers everything in the order in which it was sent, and everybody notices a crash by
//! itself, as where all talk to all: that is the most that one can cost. Nothing else goes on meanwhile, so all that is counted is
//! membership's.

use std::collections::{BTreeMap, VecDeque};

use farref_proto::{Control, Event, Membership, Node, NodeConfig, NodeId, Outbox, View};
use serde::Serialize;

/// What one change costs a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// Control messages in all.
    pub messages: u64,
    /// What one worker sends and receives at the most: of those that stay and do not lead.
    pub most: u64,
    /// What the leader sends and receives, which is the next one if the leader departs.
    pub leader: u64,
}

/// What changes cost in a group of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct Traffic {
    /// How many workers there are before anything changes.
    pub workers: u32,
    /// One dies, and all notice.
    pub crash: Cost,
    /// The leader dies, and all notice.
    pub crash_of_leader: Cost,
    /// One leaves.
    pub leave: Cost,
    /// One joins, through one that does not lead.
    pub join: Cost,
}

/// Counts the messages in a group of so many workers, which are at least four. `None` if the group did not come to rest: that
/// is a fault of the protocol.
pub fn traffic(workers: u32) -> Option<Traffic> {
    let last = NodeId::new(workers.checked_sub(1)?, 1);
    let leader = NodeId::new(0, 1);
    let newcomer = NodeId::new(workers, 1);
    let of_crash = |dead| {
        let mut group = Group::new(workers);
        group.stop(dead);
        // The leader is the last to notice, so that all tell it.
        for node in group.nodes.keys().copied().rev().collect::<Vec<_>>() {
            group.input(node, |node, out| node.suspect(dead, out));
        }
        group.cost(None)
    };
    Some(Traffic {
        workers,
        crash: of_crash(last)?,
        crash_of_leader: of_crash(leader)?,
        leave: {
            let mut group = Group::new(workers);
            group.input(last, Node::leave);
            group.cost(Some(last))?
        },
        join: {
            let mut group = Group::new(workers);
            group.add(Membership::joining(newcomer));
            group.input(newcomer, |node, out| node.join(last, out));
            group.cost(Some(newcomer))?
        },
    })
}

/// Nodes and what they say to each other.
struct Group {
    nodes: BTreeMap<NodeId, Node<()>>,
    on_their_way: VecDeque<(NodeId, NodeId, Control)>,
    /// Messages sent and received, by worker.
    counts: BTreeMap<NodeId, u64>,
    messages: u64,
}

impl Group {
    fn new(workers: u32) -> Self {
        let members: Vec<NodeId> = (0..workers).map(|worker| NodeId::new(worker, 1)).collect();
        let mut group = Self {
            nodes: BTreeMap::new(),
            on_their_way: VecDeque::new(),
            counts: BTreeMap::new(),
            messages: 0,
        };
        let view = View::of(members.iter().copied());
        for me in members {
            group.add(Membership::founded(me, view.clone()));
        }
        group
    }

    fn add(&mut self, membership: Membership) {
        let me = membership.me();
        let node = Node::new(me, membership, NodeConfig::default());
        self.nodes.insert(me, node);
    }

    fn stop(&mut self, node: NodeId) {
        self.nodes.remove(&node);
    }

    /// Something happens to a node; what it says then goes on its way.
    fn input(&mut self, me: NodeId, happens: impl FnOnce(&mut Node<()>, &mut Outbox<()>)) {
        let Some(node) = self.nodes.get_mut(&me) else {
            return;
        };
        let mut out = Outbox::new();
        happens(node, &mut out);
        while let Some((to, control)) = out.pop_control() {
            self.on_their_way.push_back((me, to, control));
        }
        if std::iter::from_fn(|| out.pop_event()).any(|event| event == Event::Departed) {
            self.stop(me);
        }
    }

    /// Delivers everything. `mover` is the one that leaves or joins.
    fn cost(mut self, mover: Option<NodeId>) -> Option<Cost> {
        while let Some((from, to, control)) = self.on_their_way.pop_front() {
            self.messages += 1;
            for node in [from, to] {
                *self.counts.entry(node).or_default() += 1;
            }
            let mut misbehaved = false;
            self.input(to, |node, out| {
                misbehaved = node.handle(from, control, out).is_err();
            });
            if misbehaved {
                return None;
            }
        }
        let leader = *self.nodes.first_key_value()?.0;
        let stayed = |node: &NodeId| *node != leader && Some(*node) != mover;
        let others = self.nodes.keys().copied().filter(stayed);
        let count = |node| self.counts.get(&node).copied().unwrap_or_default();
        let cost = Cost {
            messages: self.messages,
            most: others.map(count).max()?,
            leader: count(leader),
        };
        self.is_at_rest().then_some(cost)
    }

    /// Whether all know the same, which is that those who run are in and nobody else is, and know that all know it.
    fn is_at_rest(&self) -> bool {
        self.nodes.values().all(|node| {
            let membership = node.membership();
            membership.is_settled() && membership.view().live().eq(self.nodes.keys().copied())
        })
    }
}
