//! Nodes that share references while messages overtake each other and workers die.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use farref_proto::{
    AnswerHead, Arrival, CallHead, Carried, Control, Event, Fingerprint, Lane, Membership,
    MessageId, Node, NodeConfig, NodeId, Outbox, Phase, RRefId, Target, Time, Want,
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
    /// How often a holder fetches the value of a reference.
    pub fetches: u32,
    /// How many fetches are cancelled.
    pub cancels: u32,
    /// How many workers leave.
    pub leaves: u32,
    /// How often a worker looks whether all are at rest, once it has nothing left to do: what a
    /// graceful shutdown takes. None: nobody asks for one.
    pub looks: u32,
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
            fetches: 0,
            cancels: 0,
            leaves: 0,
            looks: 0,
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
    /// A fetch is no longer wanted.
    Cancel(MessageId),
}

impl Message {
    fn lane(&self) -> Lane {
        match self {
            Self::Control(_) => Lane::Control,
            Self::Call(_) | Self::Answer(_) | Self::Cancel(_) => Lane::Call,
        }
    }

    fn carried(&self) -> &[Carried] {
        match self {
            Self::Control(_) | Self::Cancel(_) => &[],
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
pub struct ClusterState {
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
    /// Fetches that the programs wait for: by whom, of whom.
    fetching: BTreeSet<(NodeId, NodeId, MessageId)>,
    created: u32,
    shares: u32,
    fetches: u32,
    cancels: u32,
    leaves: u32,
    looks: u32,
    crashes: u32,
    restarts: u32,
    duplicates: u32,
    /// Lives that crashed, and who has noticed.
    dead: BTreeSet<NodeId>,
    noticed: BTreeSet<(NodeId, NodeId)>,
    /// Whose shutdown is complete.
    complete: BTreeSet<NodeId>,
    /// A shutdown was complete while something was left.
    ended_early: bool,
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
    /// A holder fetches a value.
    Fetch(NodeId, RRefId),
    /// A program no longer wants what it fetches.
    Cancel(NodeId, NodeId, MessageId),
    /// A worker lets everything go and says good-bye.
    Leave(NodeId),
    /// A worker that has nothing left to do asks for a shutdown, and looks how far that is.
    Look(NodeId),
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

impl ClusterState {
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
            while let Some(event) = out.pop_event() {
                self.note(&mut node, event, &mut out);
            }
            while let Some((to, control)) = out.pop_control() {
                self.send(id, to, Message::Control(control));
            }
            if let Some(what) = node.inconsistency() {
                self.fault = Some(what);
            }
        }
        let ended = node.me() == id && node.membership().phase() == Phase::Departed;
        self.nodes[slot] = Some(node);
        if ended {
            self.end(id);
        }
        if self.complete.contains(&id) {
            let left = self.live().any(|node| !node.is_empty());
            self.ended_early |= left || !self.handles.is_empty() || !self.fetching.is_empty();
        }
    }

    /// Acts on what a node reports.
    fn note(&mut self, node: &mut Node<u8>, event: Event<u8>, out: &mut Outbox<u8>) {
        match event {
            Event::Freed { rref, .. } if !self.freed.insert(rref) => {
                self.fault = Some(format!("{rref} was freed twice"));
            }
            Event::Freed { .. } => {}
            Event::Fetched { waiter, .. } => {
                self.answer(node, waiter.node, waiter.request, out);
            }
            Event::Abandoned {
                node: caller,
                request,
            } => self.answer(node, caller, request, out),
            Event::PeerLost {
                node: peer,
                request,
            } => {
                // Or a hand-over, whose answer nobody waits for.
                self.fetching.remove(&(node.me(), peer, request));
            }
            Event::ShutdownComplete => {
                self.complete.insert(node.me());
            }
            _ => {}
        }
    }

    fn answer(
        &mut self,
        node: &mut Node<u8>,
        to: NodeId,
        request: MessageId,
        out: &mut Outbox<u8>,
    ) {
        if let Ok(Some(answer)) = node.answer(to, request, &[], out) {
            self.send(node.me(), to, Message::Answer(answer));
        }
    }

    /// A worker's life ends.
    fn end(&mut self, node: NodeId) {
        self.nodes[node.worker.0 as usize] = None;
        self.dead.insert(node);
        self.handles.retain(|(holder, _), _| *holder != node);
        self.fetching.retain(|(holder, ..)| *holder != node);
        self.channels.retain(|(_, to, _), _| *to != node);
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
                            state.answer(node, from, request, out);
                        }
                    }
                }
                Ok(Arrival::Value(_) | Arrival::Failed(_)) => {
                    if let Target::Answer(request) | Target::Fetch(request, ..) = head.target {
                        state.answer(node, from, request, out);
                    }
                }
                Ok(Arrival::Waiting | Arrival::Ignored) => {}
                Err(error) => state.fault = Some(error.to_string()),
            },
            Message::Answer(head) => match node.receive_answer(from, &head, out) {
                Ok(answered) if answered.wanted => {
                    state.take_handles(to, &head.carried);
                    state.fetching.remove(&(to, from, head.id));
                }
                Ok(_) => {}
                Err(error) => state.fault = Some(error.to_string()),
            },
            Message::Cancel(request) => node.receive_cancel(from, request, out),
        });
    }

    /// R1, R4: whatever a live node holds, or is going to take in, has not been freed.
    fn nothing_held_is_freed(&self) -> bool {
        self.freed.iter().all(|rref| {
            let Some(&owner) = self.owners.get(rref) else {
                return false;
            };
            let Some(at_owner) = self.node(owner) else {
                return true;
            };
            // Nothing is promised to one that has left and whose good-bye the owner has heard.
            let counts = |node: NodeId| at_owner.membership().view().is_live(node);
            let held = self
                .live()
                .map(Node::me)
                .any(|holder| counts(holder) && self.handles.contains_key(&(holder, *rref)));
            let coming = self.channels.iter().any(|((from, to, _), queue)| {
                let heard = counts(*to)
                    && self
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
        self.fetching.is_empty()
            && self
                .live()
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
    type State = ClusterState;
    type Action = Action;

    fn init_states(&self) -> Vec<ClusterState> {
        let members: Vec<NodeId> = (0..self.workers)
            .map(|worker| NodeId::new(worker, 1))
            .collect();
        let founding = |&me| Some(self.start(me, Membership::founding(me, members.clone())));
        vec![ClusterState {
            nodes: members.iter().map(founding).collect(),
            incarnations: vec![1; self.workers as usize],
            channels: BTreeMap::new(),
            handles: BTreeMap::new(),
            freed: BTreeSet::new(),
            owners: BTreeMap::new(),
            fetching: BTreeSet::new(),
            created: 0,
            shares: self.shares,
            fetches: self.fetches,
            cancels: self.cancels,
            leaves: self.leaves,
            looks: self.looks,
            crashes: self.crashes,
            restarts: self.restarts,
            duplicates: self.duplicates,
            dead: BTreeSet::new(),
            noticed: BTreeSet::new(),
            complete: BTreeSet::new(),
            ended_early: false,
            fault: None,
        }]
    }

    fn actions(&self, state: &ClusterState, actions: &mut Vec<Action>) {
        if state.fault.is_some() {
            return;
        }
        let over = !state.complete.is_empty();
        if state.created < self.references && !over && self.creation(state).is_some() {
            actions.push(Action::Create);
        }
        for &(holder, rref) in state.handles.keys() {
            if state.shares > 0 {
                let others = state.members().filter(|&to| to != holder);
                actions.extend(others.map(|to| Action::Share(holder, rref, to)));
            }
            actions.push(Action::Drop(holder, rref));
            let owner = state.owners.get(&rref).filter(|owner| **owner != holder);
            let reachable = |owner: &&NodeId| {
                let view = state.node(holder).map(|node| node.membership().view());
                view.is_some_and(|view| view.is_member(**owner))
            };
            if state.fetches > 0 && owner.filter(reachable).is_some() {
                actions.push(Action::Fetch(holder, rref));
            }
        }
        if state.cancels > 0 {
            let open = state.fetching.iter();
            actions.extend(open.map(|&(by, of, request)| Action::Cancel(by, of, request)));
        }
        if state.leaves > 0 && state.members().count() > 1 {
            actions.extend(state.members().map(Action::Leave));
        }
        if state.looks > 0 && state.created == self.references {
            let done = |node: &NodeId| {
                let busy = state.handles.keys().any(|(holder, _)| holder == node)
                    || state.fetching.iter().any(|(by, ..)| by == node);
                !busy && !state.complete.contains(node)
            };
            actions.extend(state.members().filter(done).map(Action::Look));
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

    fn next_state(&self, last: &ClusterState, action: Action) -> Option<ClusterState> {
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
            Action::Fetch(holder, rref) => {
                state.fetches -= 1;
                let owner = *state.owners.get(&rref)?;
                state.step(holder, |state, node, out| {
                    let want = Want::Value(rref, TYPE);
                    if let Ok(head) = node.call(owner, want, &[], None, out)
                        && let Target::Fetch(request, ..) = head.target
                    {
                        state.fetching.insert((holder, owner, request));
                        state.send(holder, owner, Message::Call(head));
                    }
                });
            }
            Action::Cancel(by, of, request) => {
                state.cancels -= 1;
                state.fetching.remove(&(by, of, request));
                state.step(by, |state, node, _| {
                    if node.cancel(of, request) {
                        state.send(by, of, Message::Cancel(request));
                    } else {
                        state.fault = Some(format!("{by} cannot cancel {request}"));
                    }
                });
            }
            Action::Leave(leaver) => {
                state.leaves -= 1;
                state.handles.retain(|(holder, _), _| *holder != leaver);
                state.fetching.retain(|(by, ..)| *by != leaver);
                state.step(leaver, |_, node, out| {
                    node.release_everything(out);
                    node.leave(out);
                });
            }
            Action::Look(looker) => {
                state.looks -= 1;
                state.step(looker, |_, node, out| {
                    node.shut_down();
                    node.poll(Time::ZERO, out);
                });
            }
            Action::Crash(node) => {
                state.crashes -= 1;
                state.end(node);
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
            Property::always(
                "R1, R4: nothing held is freed",
                |_, state: &ClusterState| state.nothing_held_is_freed(),
            ),
            Property::always("R3: nothing freed returns", |_, state: &ClusterState| {
                state.nothing_freed_returns()
            }),
            Property::eventually(
                "R2: nothing is left",
                |model: &Self, state: &ClusterState| {
                    let mut actions = Vec::new();
                    model.actions(state, &mut actions);
                    actions.is_empty() && state.nothing_is_left()
                },
            ),
            Property::always("S1: nobody goes too early", |_, state: &ClusterState| {
                !state.ended_early
            }),
            Property::sometimes("a value is freed", |_, state: &ClusterState| {
                !state.freed.is_empty()
            }),
        ];
        if self.fetches > 0 {
            properties.push(Property::sometimes(
                "a fetch waits for its value",
                |_, state: &ClusterState| state.live().any(|node| node.ref_counters().waiting > 0),
            ));
        }
        if self.looks > 0 {
            properties.push(Property::sometimes(
                "a shutdown is complete",
                |_, state: &ClusterState| !state.complete.is_empty(),
            ));
        }
        if self.crashes > 0 && self.shares > 0 {
            properties.push(Property::sometimes(
                "a reference outlives the worker that handed it on",
                |_, state: &ClusterState| state.a_reference_outlived_its_parent(),
            ));
        }
        properties
    }
}

/// Nodes that may look at any moment whether all are at rest: here time stands still.
fn config() -> NodeConfig {
    let mut config = NodeConfig::default();
    config.probe_interval = Duration::ZERO;
    config
}

impl Cluster {
    fn start(&self, me: NodeId, membership: Membership) -> Node<u8> {
        #[allow(unused_mut, reason = "only broken nodes are changed")]
        let mut node = Node::new(me, membership, config());
        #[cfg(feature = "mutations")]
        if let Some(mutation) = self.mutation {
            node.mutate(mutation);
        }
        node
    }

    /// Who creates the next value where, if both are there.
    fn creation(&self, state: &ClusterState) -> Option<(NodeId, NodeId)> {
        let creator = if state.created == 0 { 0 } else { 2 };
        let (creator, owner) = (NodeId::new(creator, 1), NodeId::new(1, 1));
        let node = state.node(creator)?;
        node.membership()
            .view()
            .is_member(owner)
            .then_some((creator, owner))
    }
}
