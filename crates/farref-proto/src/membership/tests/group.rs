//! The fixture: nodes and, between each two of them, a queue that only the test moves.

use std::collections::{BTreeMap, VecDeque};

use super::super::*;
use crate::event::Event;
use crate::node::{Node, NodeConfig};
use crate::outbox::Outbox;

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;
pub(super) const D: usize = 3;

pub(super) fn id(n: usize) -> NodeId {
    NodeId::new(n as u32, 1)
}

/// Nodes joined by queues, first in, first out for each pair. Slots may be taken by later lives.
pub(super) struct Group {
    config: NodeConfig,
    pub(super) nodes: Vec<Node<()>>,
    outs: Vec<Outbox<()>>,
    wires: BTreeMap<(NodeId, NodeId), VecDeque<Control>>,
    pub(super) crashed: Vec<bool>,
    events: Vec<(usize, Event<()>)>,
}

impl Group {
    /// A founding group of `members` workers, with room for later ones.
    pub(super) fn new(members: usize) -> Self {
        Self::with(members, NodeConfig::default())
    }

    /// The same of workers that are set up so.
    pub(super) fn with(members: usize, config: NodeConfig) -> Self {
        let founding = |n| Membership::founding(id(n), (0..members).map(id));
        let node = |n| Node::new(id(n), founding(n), config);
        Self {
            config,
            nodes: (0..members).map(node).collect(),
            outs: (0..members).map(|_| Outbox::new()).collect(),
            wires: BTreeMap::new(),
            crashed: vec![false; members],
            events: Vec::new(),
        }
    }

    /// A newcomer in the next free slot, or a new life in its old one, asks to be let in.
    pub(super) fn join(&mut self, me: NodeId, sponsor: usize) -> usize {
        let n = me.worker.0 as usize;
        let node = Node::new(me, Membership::joining(me), self.config);
        if n == self.nodes.len() {
            self.nodes.push(node);
            self.outs.push(Outbox::new());
            self.crashed.push(false);
        } else {
            self.crash(n);
            self.nodes[n] = node;
            self.crashed[n] = false;
        }
        self.ask(n, sponsor);
        n
    }

    pub(super) fn ask(&mut self, n: usize, sponsor: usize) {
        let sponsor = self.id(sponsor);
        self.on(n, |node, out| node.join(sponsor, out));
    }

    pub(super) fn id(&self, n: usize) -> NodeId {
        self.nodes[n].me()
    }

    pub(super) fn view(&self, n: usize) -> &View {
        self.nodes[n].membership().view()
    }

    pub(super) fn phase(&self, n: usize) -> Phase {
        self.nodes[n].membership().phase()
    }

    pub(super) fn members(&self, n: usize) -> Vec<NodeId> {
        self.view(n).members().collect()
    }

    pub(super) fn on<T>(
        &mut self,
        n: usize,
        input: impl FnOnce(&mut Node<()>, &mut Outbox<()>) -> T,
    ) -> T {
        let before = self.view(n).number();
        let result = input(&mut self.nodes[n], &mut self.outs[n]);
        assert!(
            self.view(n).number() >= before,
            "ME-1: a view never falls back"
        );
        let me = self.id(n);
        while let Some((to, control)) = self.outs[n].pop_control() {
            if self.slot(to).is_some() {
                self.wires.entry((me, to)).or_default().push_back(control);
            } else if let Control::Accused(_) | Control::Suspect(_) = control {
                // Its connection is refused.
                self.nodes[n].suspect(to, &mut self.outs[n]);
            }
        }
        while let Some(event) = self.outs[n].pop_event() {
            self.events.push((n, event));
        }
        result
    }

    pub(super) fn slot(&self, node: NodeId) -> Option<usize> {
        (0..self.nodes.len()).find(|&n| self.id(n) == node && !self.crashed[n])
    }

    pub(super) fn suspect(&mut self, by: usize, n: usize) {
        let node = self.id(n);
        self.on(by, |me, out| me.suspect(node, out));
    }

    pub(super) fn crash(&mut self, n: usize) {
        self.crashed[n] = true;
        let me = self.id(n);
        self.wires.retain(|&(_, to), _| to != me);
    }

    /// What one has said to another never arrives.
    pub(super) fn lose(&mut self, from: usize, to: usize) {
        let pair = (self.id(from), self.id(to));
        self.wires.remove(&pair);
    }

    pub(super) fn busy(&self) -> Vec<(NodeId, NodeId)> {
        let busy = self.wires.iter().filter(|(_, queue)| !queue.is_empty());
        busy.map(|(&pair, _)| pair).collect()
    }

    pub(super) fn bring(&mut self, (from, to): (NodeId, NodeId)) {
        let control = self
            .wires
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front)
            .unwrap();
        if let Some(n) = self.slot(to) {
            self.on(n, |node, out| node.handle(from, control, out))
                .unwrap();
        }
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        self.bring((self.id(from), self.id(to)));
    }

    pub(super) fn deliver_all(&mut self) {
        self.deliver_all_but(|_, _| false);
    }

    /// Empties all queues but those that are held.
    pub(super) fn deliver_all_but(&mut self, held: impl Fn(NodeId, NodeId) -> bool) {
        while let Some(&pair) = self.busy().iter().find(|&&(from, to)| !held(from, to)) {
            self.bring(pair);
        }
    }

    pub(super) fn pending(&self, from: usize, to: usize) -> Vec<Control> {
        self.wires
            .get(&(self.id(from), self.id(to)))
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    pub(super) fn events(&mut self, n: usize) -> Vec<Event<()>> {
        let (of_n, rest): (Vec<_>, _) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|(at, _)| *at == n);
        self.events = rest;
        of_n.into_iter().map(|(_, event)| event).collect()
    }

    /// All that are up and in agree, and everything is settled.
    pub(super) fn assert_agreed(&self) {
        let in_it = |&n: &usize| !self.crashed[n] && self.phase(n) == Phase::Member;
        let up: Vec<usize> = (0..self.nodes.len()).filter(in_it).collect();
        for &n in &up {
            let membership = self.nodes[n].membership();
            assert!(
                membership.is_settled(),
                "w{n} waits for {:?}",
                membership.awaited()
            );
            assert_eq!(self.view(n), self.view(up[0]), "w{n} and w{}", up[0]);
            assert_eq!(membership.leader(), self.id(up[0]));
        }
        let members: Vec<_> = up.iter().map(|&n| self.id(n)).collect();
        assert_eq!(self.members(up[0]), members);
    }
}
