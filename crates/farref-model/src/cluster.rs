//! Nodes that share references while messages overtake each other and workers die.

use std::collections::{BTreeMap, BTreeSet};

use farref_proto::{
    AnswerHead, Arrival, CallHead, Carried, Control, Event, Fingerprint, Lane, Membership, Node,
    NodeConfig, NodeId, Outbox, Phase, RRefId, Target, Want,
};
use stateright::{Model, Property};

const TYPE: Fingerprint = Fingerprint(7).native();

/// How large the model is: what may happen how often.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cluster {
    /// How many workers there are.
    pub workers: u32,
    /// How many values are created, the first by worker 0 on worker 1, the second by worker 2 on
    /// worker 1.
    pub references: u32,
    /// How often a reference is handed to somebody.
    pub shares: u32,
    /// How many workers crash.
    pub crashes: u32,
    /// How many of them come back.
    pub restarts: u32,
    /// How many control messages are delivered twice. Only with `reordering`.
    pub duplicates: u32,
    /// Whether messages between two workers overtake each other.
    pub reordering: bool,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Option<farref_proto::Mutation>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            workers: 3,
            references: 1,
            shares: 1,
            crashes: 0,
            restarts: 0,
            duplicates: 0,
            reordering: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// Something on its way from one node to another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Message {
    /// Of the protocol's own.
    Control(Control),
    /// A call.
    Call(CallHead),
    /// An answer.
    Answer(AnswerHead),
}

impl Message {
    fn lane(&self) -> Lane {
        match self {
            Self::Control(_) => Lane::Control,
            Self::Call(_) | Self::Answer(_) => Lane::Call,
        }
    }

    fn carried(&self) -> &[Carried] {
        match self {
            Self::Control(_) => &[],
            Self::Call(head) => &head.carried,
            Self::Answer(head) => &head.carried,
        }
    }

    /// Whether a network without sessions may deliver it twice: user calls are never repeated.
    fn may_repeat(&self) -> bool {
        matches!(
            self,
            Self::Control(
                Control::Register(_)
                    | Control::Confirm(_)
                    | Control::Release(_)
                    | Control::Accept(_)
            )
        )
    }
}

/// Everything at one moment.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The running life of each worker.
    nodes: Vec<Option<Node<u8>>>,
    incarnations: Vec<u32>,
    /// Messages on their way, by sender, receiver and lane.
    channels: BTreeMap<(NodeId, NodeId, Lane), Vec<Message>>,
    /// Handles that each life's program has.
    handles: BTreeMap<(NodeId, RRefId), u32>,
    freed: BTreeSet<RRefId>,
    /// Where each value is.
    owners: BTreeMap<RRefId, NodeId>,
    created: u32,
    shares: u32,
    crashes: u32,
    restarts: u32,
    duplicates: u32,
    /// Lives that crashed, and who has noticed.
    dead: BTreeSet<NodeId>,
    noticed: BTreeSet<(NodeId, NodeId)>,
    /// Something that must never happen did.
    fault: Option<String>,
}

/// Something that can happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The next value is created.
    Create,
    /// A holder hands a reference to a node.
    Share(NodeId, RRefId, NodeId),
    /// A holder drops a handle.
    Drop(NodeId, RRefId),
    /// A message arrives; the number is its place in the channel.
    Deliver(NodeId, NodeId, Lane, usize),
    /// A message arrives and will arrive again.
    DeliverTwice(NodeId, NodeId, Lane, usize),
    /// A worker dies.
    Crash(NodeId),
    /// A node notices that another is dead.
    Notice(NodeId, NodeId),
    /// A worker starts again and asks a member to be let in.
    Restart(u32),
}

impl State {
    fn node(&self, id: NodeId) -> Option<&Node<u8>> {
        let node = self.nodes.get(id.worker.0 as usize)?.as_ref()?;
        (node.me() == id).then_some(node)
    }

    fn live(&self) -> impl Iterator<Item = &Node<u8>> {
        self.nodes.iter().flatten()
    }

    fn members(&self) -> impl Iterator<Item = NodeId> {
        let member = |node: &&Node<u8>| node.membership().phase() == Phase::Member;
        self.live().filter(member).map(Node::me)
    }

    /// Lets a node do something, and its effects take place.
    fn step(&mut self, id: NodeId, act: impl FnOnce(&mut Self, &mut Node<u8>, &mut Outbox<u8>)) {
        let slot = id.worker.0 as usize;
        let Some(mut node) = self.nodes[slot].take() else {
            return;
        };
        if node.me() == id {
            let mut out = Outbox::new();
            act(self, &mut node, &mut out);
            while let Some((to, control)) = out.pop_control() {
                self.send(id, to, Message::Control(control));
            }
            while let Some(event) = out.pop_event() {
                if let Event::Freed { rref, .. } = event
                    && !self.freed.insert(rref)
                {
                    self.fault = Some(format!("{rref} was freed twice"));
                }
            }
        }
        self.nodes[slot] = Some(node);
    }

    fn send(&mut self, from: NodeId, to: NodeId, message: Message) {
        // Nobody listens for a dead life: what is sent to it is lost.
        if !self.dead.contains(&to) {
            let lane = message.lane();
            self.channels
                .entry((from, to, lane))
                .or_default()
                .push(message);
        }
    }

    fn take_handles(&mut self, id: NodeId, carried: &[Carried]) {
        for fork in carried {
            *self.handles.entry((id, fork.share.rref)).or_default() += 1;
        }
    }

    fn receive(&mut self, from: NodeId, to: NodeId, message: Message) {
        self.step(to, |state, node, out| match message {
            Message::Control(control) => {
                if let Err(error) = node.handle(from, control, out) {
                    state.fault = Some(error.to_string());
                }
            }
            Message::Call(head) => match node.receive_call(from, &head, out) {
                Ok(Arrival::Run) => {
                    state.take_handles(to, &head.carried);
                    match head.target {
                        Target::Stay(creation) => {
                            node.finish_creation(from, creation.share.rref, None, 1, out);
                        }
                        Target::Answer(request) | Target::Fetch(request, ..) => {
                            if let Ok(Some(answer)) = node.answer(from, request, &[], out) {
                                state.send(to, from, Message::Answer(answer));
                            }
                        }
                    }
                }
                Ok(_) => {}
                Err(error) => state.fault = Some(error.to_string()),
            },
            Message::Answer(head) => match node.receive_answer(from, &head, out) {
                Ok(true) => state.take_handles(to, &head.carried),
                Ok(false) => {}
                Err(error) => state.fault = Some(error.to_string()),
            },
        });
    }

    /// R1, R4: whatever a live node holds, or is going to take in, has not been freed.
    fn nothing_held_is_freed(&self) -> bool {
        self.freed.iter().all(|rref| {
            let Some(&owner) = self.owners.get(rref) else {
                return false;
            };
            if self.node(owner).is_none() {
                return true;
            }
            let held = self
                .live()
                .any(|node| self.handles.contains_key(&(node.me(), *rref)));
            let coming = self.channels.iter().any(|((from, to, _), queue)| {
                let heard = self
                    .node(*to)
                    .is_some_and(|to| to.membership().view().is_live(*from));
                let carries = |message: &Message| {
                    message
                        .carried()
                        .iter()
                        .any(|fork| fork.share.rref == *rref)
                };
                heard && queue.iter().any(carries)
            });
            !held && !coming
        })
    }

    /// R3: no owner has again what it freed.
    fn nothing_freed_returns(&self) -> bool {
        self.fault.is_none()
            && self.freed.iter().all(|rref| {
                let owner = self.owners.get(rref).and_then(|owner| self.node(*owner));
                owner.is_none_or(|node| !matches!(node.refs(*rref).value(*rref), Ok(Some(_))))
            })
    }

    fn nothing_is_left(&self) -> bool {
        self.live()
            .all(|node| node.is_empty() && node.membership().is_settled())
    }

    /// A node holds, confirmed, a reference of another node's, and the parent that handed it over
    /// is dead and settled everywhere.
    fn a_reference_outlived_its_parent(&self) -> bool {
        self.handles.keys().any(|(holder, rref)| {
            let Some(node) = self.node(*holder) else {
                return false;
            };
            let owner = node.refs(*rref).owner_of(*rref);
            let third = owner.is_some_and(|owner| owner != *holder && self.node(owner).is_some());
            let creator_died = self.dead.contains(&rref.origin);
            third
                && creator_died
                && node.refs(*rref).is_confirmed(*rref)
                && self.live().all(|node| node.membership().is_settled())
                && !self.freed.contains(rref)
        })
    }
}

impl Model for Cluster {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members: Vec<NodeId> = (0..self.workers)
            .map(|worker| NodeId::new(worker, 1))
            .collect();
        let founding = |&me| Some(self.start(me, Membership::founding(me, members.clone())));
        vec![State {
            nodes: members.iter().map(founding).collect(),
            incarnations: vec![1; self.workers as usize],
            channels: BTreeMap::new(),
            handles: BTreeMap::new(),
            freed: BTreeSet::new(),
            owners: BTreeMap::new(),
            created: 0,
            shares: self.shares,
            crashes: self.crashes,
            restarts: self.restarts,
            duplicates: self.duplicates,
            dead: BTreeSet::new(),
            noticed: BTreeSet::new(),
            fault: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        if state.created < self.references && self.creation(state).is_some() {
            actions.push(Action::Create);
        }
        for &(holder, rref) in state.handles.keys() {
            if state.shares > 0 {
                let others = state.members().filter(|&to| to != holder);
                actions.extend(others.map(|to| Action::Share(holder, rref, to)));
            }
            actions.push(Action::Drop(holder, rref));
        }
        for (&(from, to, lane), queue) in &state.channels {
            let reach = if self.reordering { queue.len() } else { 1 };
            for (at, message) in queue.iter().enumerate().take(reach) {
                actions.push(Action::Deliver(from, to, lane, at));
                if state.duplicates > 0 && message.may_repeat() {
                    actions.push(Action::DeliverTwice(from, to, lane, at));
                }
            }
        }
        if state.crashes > 0 {
            actions.extend(state.members().map(Action::Crash));
        }
        for &dead in &state.dead {
            for node in state.live() {
                let watcher = node.me();
                let known = node.membership().view().is_gone(dead);
                if !known && !state.noticed.contains(&(watcher, dead)) {
                    actions.push(Action::Notice(watcher, dead));
                }
            }
        }
        if state.restarts > 0 && state.members().next().is_some() {
            let stopped = state
                .nodes
                .iter()
                .enumerate()
                .filter(|(_, node)| node.is_none());
            actions.extend(stopped.map(|(worker, _)| Action::Restart(worker as u32)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Create => {
                let (creator, owner) = self.creation(last)?;
                state.created += 1;
                state.step(creator, |state, node, out| {
                    let head = node.call(owner, Want::Reference(TYPE), &[], None, out);
                    if let Ok(head) = head
                        && let Target::Stay(creation) = head.target
                    {
                        let rref = creation.share.rref;
                        state.owners.insert(rref, owner);
                        state.handles.insert((creator, rref), 1);
                        state.send(creator, owner, Message::Call(head));
                    }
                });
            }
            Action::Share(holder, rref, to) => {
                state.shares -= 1;
                state.step(holder, |state, node, out| {
                    if let Ok(head) = node.call(to, Want::Answer, &[rref], None, out) {
                        state.send(holder, to, Message::Call(head));
                    }
                });
            }
            Action::Drop(holder, rref) => {
                let handles = state.handles.get_mut(&(holder, rref))?;
                *handles -= 1;
                if *handles == 0 {
                    state.handles.remove(&(holder, rref));
                }
                state.step(holder, |_, node, out| node.drop_handle(rref, out));
            }
            Action::Deliver(from, to, lane, at) => {
                let queue = state.channels.get_mut(&(from, to, lane))?;
                let message = queue.remove(at);
                if queue.is_empty() {
                    state.channels.remove(&(from, to, lane));
                }
                state.receive(from, to, message);
            }
            Action::DeliverTwice(from, to, lane, at) => {
                state.duplicates -= 1;
                let message = state.channels.get(&(from, to, lane))?.get(at)?.clone();
                state.receive(from, to, message);
            }
            Action::Crash(node) => {
                state.crashes -= 1;
                state.nodes[node.worker.0 as usize] = None;
                state.dead.insert(node);
                state.handles.retain(|(holder, _), _| *holder != node);
                state.channels.retain(|(_, to, _), _| *to != node);
            }
            Action::Notice(watcher, dead) => {
                state.noticed.insert((watcher, dead));
                // The connection is closed: what was still on it never arrives.
                state
                    .channels
                    .retain(|(from, to, _), _| (*from, *to) != (dead, watcher));
                state.step(watcher, |_, node, out| node.suspect(dead, out));
            }
            Action::Restart(worker) => {
                state.restarts -= 1;
                let sponsor = state.members().next()?;
                state.incarnations[worker as usize] += 1;
                let me = NodeId::new(worker, state.incarnations[worker as usize]);
                state.nodes[worker as usize] = Some(self.start(me, Membership::joining(me)));
                state.step(me, |_, node, out| node.join(sponsor, out));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("R1, R4: nothing held is freed", |_, state: &State| {
                state.nothing_held_is_freed()
            }),
            Property::always("R3: nothing freed returns", |_, state: &State| {
                state.nothing_freed_returns()
            }),
            Property::eventually("R2: nothing is left", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                actions.is_empty() && state.nothing_is_left()
            }),
            Property::sometimes("a value is freed", |_, state: &State| {
                !state.freed.is_empty()
            }),
        ];
        if self.crashes > 0 && self.shares > 0 {
            properties.push(Property::sometimes(
                "a reference outlives the worker that handed it on",
                |_, state: &State| state.a_reference_outlived_its_parent(),
            ));
        }
        properties
    }
}

impl Cluster {
    fn start(&self, me: NodeId, membership: Membership) -> Node<u8> {
        #[allow(unused_mut, reason = "only broken nodes are changed")]
        let mut node = Node::new(me, membership, NodeConfig::default());
        #[cfg(feature = "mutations")]
        if let Some(mutation) = self.mutation {
            node.mutate(mutation);
        }
        node
    }

    /// Who creates the next value where, if both are there.
    fn creation(&self, state: &State) -> Option<(NodeId, NodeId)> {
        let creator = if state.created == 0 { 0 } else { 2 };
        let (creator, owner) = (NodeId::new(creator, 1), NodeId::new(1, 1));
        let node = state.node(creator)?;
        node.membership()
            .view()
            .is_member(owner)
            .then_some((creator, owner))
    }
}
