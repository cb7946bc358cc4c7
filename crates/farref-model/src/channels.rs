//! Nodes, and the messages on their way between them: nothing is lost, and order is kept, until somebody ends or is cut off.
//!
//! What [`Split`](crate::Split) and [`Unfit`](crate::Unfit) have in common: only membership, and nobody creates anything.

use std::collections::BTreeMap;

use farref_proto::{Control, Event, Node, NodeId, Outbox, Phase};

/// The nodes that run, and what they have said to each other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Channels {
    nodes: BTreeMap<NodeId, Node<()>>,
    /// By sender and receiver. None is empty.
    queues: BTreeMap<(NodeId, NodeId), Vec<Control>>,
}

impl Channels {
    /// Nodes that have said nothing yet.
    pub(crate) fn of(nodes: impl IntoIterator<Item = (NodeId, Node<()>)>) -> Self {
        Self {
            nodes: nodes.into_iter().collect(),
            queues: BTreeMap::new(),
        }
    }

    /// The nodes that run.
    pub(crate) fn nodes(&self) -> &BTreeMap<NodeId, Node<()>> {
        &self.nodes
    }

    /// Between whom a message can arrive: from, to.
    pub(crate) fn ready(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.queues.keys().copied()
    }

    /// The next message between two: what its receiver does.
    pub(crate) fn next(
        &mut self,
        from: NodeId,
        to: NodeId,
    ) -> Option<impl FnOnce(&mut Node<()>, &mut Outbox<()>) + use<>> {
        let queue = self.queues.get_mut(&(from, to))?;
        let control = queue.remove(0);
        if queue.is_empty() {
            self.queues.remove(&(from, to));
        }
        Some(move |node: &mut Node<()>, out: &mut Outbox<()>| {
            let handled = node.handle(from, control, out);
            debug_assert!(handled.is_ok(), "{handled:?}");
        })
    }

    /// Lets a node do something, tells `on_event` of what that brings about, and puts what it says on its way, unless the two are
    /// `apart`. Returns the node if its life has ended with that.
    pub(crate) fn step(
        &mut self,
        id: NodeId,
        act: impl FnOnce(&mut Node<()>, &mut Outbox<()>),
        mut on_event: impl FnMut(Event<()>, &mut Node<()>, &mut Outbox<()>),
        apart: impl Fn(NodeId) -> bool,
    ) -> Option<Node<()>> {
        let mut node = self.nodes.remove(&id)?;
        let mut out = Outbox::new();
        act(&mut node, &mut out);
        while let Some(event) = out.pop_event() {
            on_event(event, &mut node, &mut out);
        }
        while let Some((to, control)) = out.pop_control() {
            if self.nodes.contains_key(&to) && !apart(to) {
                self.queues.entry((id, to)).or_default().push(control);
            }
        }
        if matches!(node.membership().phase(), Phase::Departed | Phase::Evicted) {
            self.end(id);
            return Some(node);
        }
        self.nodes.insert(id, node);
        None
    }

    /// A node's life ends. What it has said may still arrive.
    pub(crate) fn end(&mut self, id: NodeId) {
        self.nodes.remove(&id);
        self.queues.retain(|(_, to), _| *to != id);
    }

    /// What is on its way there does not arrive.
    pub(crate) fn lose(&mut self, from: NodeId, to: NodeId) {
        self.queues.remove(&(from, to));
    }

    /// Whether one that runs takes another for a member, or for one that may be.
    pub(crate) fn counts(&self, by: NodeId, node: NodeId) -> bool {
        let by = self.nodes.get(&by);
        by.is_some_and(|by| !by.membership().view().is_gone(node))
    }
}
