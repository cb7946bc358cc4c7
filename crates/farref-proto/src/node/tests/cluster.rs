//! The fixture: a few nodes and, between each two of them, lanes that only the test moves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::error::{CallError, PeerMisbehaved};
use crate::event::Event;
use crate::ids::{ContextId, Fingerprint, MessageId, NodeId, RRefId};
use crate::membership::Membership;
use crate::message::{AnswerHead, CallHead, Control, Target};
use crate::node::{Arrival, Node, NodeConfig, Want};
use crate::outbox::Outbox;
use crate::time::Time;

pub(super) const A: usize = 0;
pub(super) const B: usize = 1;
pub(super) const C: usize = 2;
pub(super) const D: usize = 3;

/// The type of every value, unless a test says otherwise.
pub(super) const TYPE: Fingerprint = Fingerprint(0xf00d).native();

/// The first life of worker `n`.
pub(super) fn id(n: usize) -> NodeId {
    NodeId::new(n as u32, 1)
}

/// What travels on the lane of calls. Control messages have a lane of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Packet {
    Call(CallHead),
    Answer(AnswerHead),
    Cancel(MessageId),
}

/// Nodes joined by lanes, each first in, first out for each pair.
///
/// A node has a slot; a returning worker takes the slot of its former life.
#[derive(Debug)]
pub(super) struct Cluster {
    nodes: Vec<Node<u32>>,
    outs: Vec<Outbox<u32>>,
    controls: BTreeMap<(NodeId, NodeId), VecDeque<Control>>,
    calls: BTreeMap<(NodeId, NodeId), VecDeque<Packet>>,
    crashed: Vec<bool>,
    freed: Vec<u32>,
    events: Vec<(usize, Event<u32>)>,
    /// What arrived on the lane of calls and what the node made of it, by receiver.
    pub(super) arrivals: Vec<(usize, NodeId, CallHead, Arrival<u32>)>,
    pub(super) answers: Vec<(usize, AnswerHead, bool)>,
    pub(super) now: Time,
    finished: bool,
}

impl Cluster {
    /// A founding group of `n` workers.
    pub(super) fn new(n: usize) -> Self {
        Self::with(n, NodeConfig::default())
    }

    pub(super) fn with(n: usize, config: NodeConfig) -> Self {
        let members = move || (0..n).map(id);
        let node = |me| Node::new(me, Membership::founding(me, members()), config);
        Self {
            nodes: members().map(node).collect(),
            outs: (0..n).map(|_| Outbox::new()).collect(),
            controls: BTreeMap::new(),
            calls: BTreeMap::new(),
            crashed: vec![false; n],
            freed: Vec::new(),
            events: Vec::new(),
            arrivals: Vec::new(),
            answers: Vec::new(),
            now: Time::ZERO,
            finished: false,
        }
    }

    pub(super) fn node(&self, n: usize) -> &Node<u32> {
        &self.nodes[n]
    }

    /// Does something to a node; its effects go onto the lanes and into the logs.
    pub(super) fn on<T>(
        &mut self,
        n: usize,
        input: impl FnOnce(&mut Node<u32>, &mut Outbox<u32>) -> T,
    ) -> T {
        let result = input(&mut self.nodes[n], &mut self.outs[n]);
        let me = self.nodes[n].me();
        while let Some((to, control)) = self.outs[n].pop_control() {
            if self.slot(to).is_some() {
                self.controls
                    .entry((me, to))
                    .or_default()
                    .push_back(control);
            } else if let Control::Accused(_) | Control::Suspect(_) = control {
                // Its connection is refused.
                self.nodes[n].suspect(to, &mut self.outs[n]);
            }
        }
        while let Some(event) = self.outs[n].pop_event() {
            match event {
                Event::Freed { value, .. } => self.freed.push(value),
                event => self.events.push((n, event)),
            }
        }
        result
    }

    fn slot(&self, node: NodeId) -> Option<usize> {
        (0..self.nodes.len()).find(|&n| self.nodes[n].me() == node && !self.crashed[n])
    }

    // What programs do

    pub(super) fn local(&mut self, owner: usize, value: u32) -> RRefId {
        self.on(owner, |node, _| node.create_local(value, TYPE))
            .unwrap()
    }

    /// Makes a call; it waits on its lane.
    pub(super) fn call(
        &mut self,
        from: usize,
        to: usize,
        want: Want,
        arguments: &[RRefId],
        context: Option<ContextId>,
    ) -> Result<CallHead, CallError> {
        let callee = self.nodes[to].me();
        let head = self.on(from, |node, out| {
            node.call(callee, want, arguments, context, out)
        })?;
        self.push(from, to, Packet::Call(head.clone()));
        Ok(head)
    }

    /// A call that wants an answer; its request.
    pub(super) fn ask(&mut self, from: usize, to: usize, arguments: &[RRefId]) -> MessageId {
        request(&self.call(from, to, Want::Answer, arguments, None).unwrap())
    }

    /// Asks for the value behind a reference.
    pub(super) fn fetch(&mut self, from: usize, to: usize, rref: RRefId) -> MessageId {
        request(
            &self
                .call(from, to, Want::Value(rref, TYPE), &[], None)
                .unwrap(),
        )
    }

    /// A call whose result is to stay; the reference to it.
    pub(super) fn remote(&mut self, from: usize, to: usize) -> RRefId {
        reference(
            &self
                .call(from, to, Want::Reference(TYPE), &[], None)
                .unwrap(),
        )
    }

    /// The same, worked on and confirmed.
    pub(super) fn created(&mut self, from: usize, to: usize, value: u32) -> RRefId {
        let rref = self.remote(from, to);
        self.deliver_all();
        self.fulfil(from, to, rref, value);
        rref
    }

    pub(super) fn fulfil(&mut self, from: usize, to: usize, rref: RRefId, value: u32) {
        let caller = self.nodes[from].me();
        self.on(to, |node, out| {
            node.finish_creation(caller, rref, None, value, out)
        });
    }

    /// Answers a request of `to`; the answer waits on its lane.
    pub(super) fn answer(
        &mut self,
        from: usize,
        to: usize,
        request: MessageId,
        results: &[RRefId],
    ) -> Option<AnswerHead> {
        let caller = self.nodes[to].me();
        let head = self
            .on(from, |node, out| node.answer(caller, request, results, out))
            .unwrap()?;
        self.push(from, to, Packet::Answer(head.clone()));
        Some(head)
    }

    /// Cancels a request; the cancel waits on its lane.
    pub(super) fn cancel(&mut self, from: usize, to: usize, request: MessageId) -> bool {
        let callee = self.nodes[to].me();
        let tell = self.on(from, |node, _| node.cancel(callee, request));
        if tell {
            self.push(from, to, Packet::Cancel(request));
        }
        tell
    }

    /// Hands references over in a call that is answered at once.
    pub(super) fn shared(&mut self, from: usize, to: usize, rrefs: &[RRefId]) {
        let request = self.ask(from, to, rrefs);
        self.deliver_all();
        self.answer(to, from, request, &[]);
        self.deliver_all();
    }

    pub(super) fn drop_handle(&mut self, n: usize, rref: RRefId) {
        self.on(n, |node, out| node.drop_handle(rref, out));
    }

    // What the network does

    pub(super) fn push(&mut self, from: usize, to: usize, packet: Packet) {
        let (from, to) = (self.nodes[from].me(), self.nodes[to].me());
        if self.slot(to).is_some() {
            self.calls.entry((from, to)).or_default().push_back(packet);
        }
    }

    /// Takes the calls, answers and cancels of one pair off their lane.
    pub(super) fn hold_calls(&mut self, from: usize, to: usize) -> Vec<Packet> {
        let pair = (self.nodes[from].me(), self.nodes[to].me());
        self.calls.remove(&pair).into_iter().flatten().collect()
    }

    /// Takes the control messages of one pair off their lane.
    pub(super) fn hold_controls(&mut self, from: usize, to: usize) -> Vec<Control> {
        let pair = (self.nodes[from].me(), self.nodes[to].me());
        self.controls.remove(&pair).into_iter().flatten().collect()
    }

    /// The control messages on their way.
    pub(super) fn controls(&self, from: usize, to: usize) -> Vec<Control> {
        let pair = (self.nodes[from].me(), self.nodes[to].me());
        self.controls
            .get(&pair)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Brings the oldest call, answer or cancel of one pair.
    pub(super) fn deliver_call(&mut self, from: usize, to: usize) {
        let pair = (self.nodes[from].me(), self.nodes[to].me());
        assert!(
            self.bring_call(pair),
            "nothing on its way from w{from} to w{to}"
        );
    }

    /// Brings the oldest control message of one pair.
    pub(super) fn deliver_control(&mut self, from: usize, to: usize) {
        let pair = (self.nodes[from].me(), self.nodes[to].me());
        assert!(
            self.bring_control(pair),
            "nothing on its way from w{from} to w{to}"
        );
    }

    pub(super) fn bring_control(&mut self, (from, to): (NodeId, NodeId)) -> bool {
        let control = self
            .controls
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let (Some(control), Some(n)) = (control, self.slot(to)) else {
            return false;
        };
        self.on(n, |node, out| node.handle(from, control, out))
            .unwrap();
        true
    }

    pub(super) fn bring_call(&mut self, (from, to): (NodeId, NodeId)) -> bool {
        let packet = self
            .calls
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front);
        let (Some(packet), Some(n)) = (packet, self.slot(to)) else {
            return false;
        };
        self.hand(from, n, packet).unwrap();
        true
    }

    /// Gives a packet to a node as if it came from `from`.
    pub(super) fn hand(
        &mut self,
        from: NodeId,
        to: usize,
        packet: Packet,
    ) -> Result<(), PeerMisbehaved> {
        match packet {
            Packet::Call(head) => {
                let arrival = self.on(to, |node, out| node.receive_call(from, &head, out))?;
                self.arrivals.push((to, from, head, arrival));
            }
            Packet::Answer(head) => {
                let answered = self.on(to, |node, out| node.receive_answer(from, &head, out))?;
                self.answers.push((to, head, answered.wanted));
            }
            Packet::Cancel(request) => {
                self.on(to, |node, out| node.receive_cancel(from, request, out));
            }
        }
        Ok(())
    }

    /// The pairs that have something on their way, on either lane.
    pub(super) fn busy(&self) -> Vec<(NodeId, NodeId)> {
        let controls = self.controls.iter().filter(|(_, lane)| !lane.is_empty());
        let calls = self.calls.iter().filter(|(_, lane)| !lane.is_empty());
        let mut busy: Vec<_> = controls
            .map(|(&pair, _)| pair)
            .chain(calls.map(|(&pair, _)| pair))
            .collect();
        busy.sort_unstable();
        busy.dedup();
        busy
    }

    /// Empties all lanes.
    pub(super) fn deliver_all(&mut self) {
        while let Some(&pair) = self.busy().first() {
            let brought = self.bring_control(pair) || self.bring_call(pair);
            assert!(brought, "{pair:?}");
        }
    }

    // Deaths

    /// The worker stops. What it has sent may still arrive.
    pub(super) fn crash(&mut self, n: usize) {
        self.crashed[n] = true;
        let me = self.nodes[n].me();
        self.controls.retain(|&(_, to), _| to != me);
        self.calls.retain(|&(_, to), _| to != me);
    }

    /// One worker finds that it cannot reach another.
    pub(super) fn suspect(&mut self, by: usize, n: usize) {
        let node = self.nodes[n].me();
        self.on(by, |me, out| me.suspect(node, out));
    }

    /// The worker stops and all learn of it.
    pub(super) fn bury(&mut self, n: usize) {
        self.crash(n);
        let by = self.live().first().copied().unwrap();
        self.suspect(by, n);
        self.deliver_all();
    }

    /// A new life of the worker in slot `n` asks `sponsor` to be let in.
    pub(super) fn restart(&mut self, n: usize, incarnation: u32, sponsor: usize) {
        self.crash(n);
        let me = NodeId::new(n as u32, incarnation);
        self.nodes[n] = Node::new(me, Membership::joining(me), NodeConfig::default());
        self.outs[n] = Outbox::new();
        self.crashed[n] = false;
        let sponsor = self.nodes[sponsor].me();
        self.on(n, |node, out| node.join(sponsor, out));
    }

    pub(super) fn live(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|&n| !self.crashed[n])
            .collect()
    }

    /// Lets a probe interval pass and polls every node.
    pub(super) fn tick(&mut self) {
        self.now += Duration::from_millis(50);
        let now = self.now;
        for n in self.live() {
            self.on(n, |node, out| node.poll(now, out));
        }
    }

    // What the test looks at

    /// The values freed since the last look.
    pub(super) fn freed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.freed)
    }

    /// The events of one worker since the last look, confirmations aside.
    pub(super) fn events(&mut self, n: usize) -> Vec<Event<u32>> {
        let (of_n, rest): (Vec<_>, _) = std::mem::take(&mut self.events)
            .into_iter()
            .partition(|(at, _)| *at == n);
        self.events = rest;
        let events = of_n.into_iter().map(|(_, event)| event);
        events
            .filter(|event| !matches!(event, Event::Confirmed(_)))
            .collect()
    }

    /// The references in calls and answers on their way.
    pub(super) fn carried(&self) -> Vec<RRefId> {
        let carried = |packet: &Packet| match packet {
            Packet::Call(head) => head.carried.clone(),
            Packet::Answer(head) => head.carried.clone(),
            Packet::Cancel(_) => Vec::new(),
        };
        let all = self.calls.values().flatten().flat_map(carried);
        all.map(|carried| carried.share.rref).collect()
    }

    /// What the last call to arrive was taken for.
    pub(super) fn last_arrival(&self) -> &Arrival<u32> {
        &self.arrivals.last().unwrap().3
    }

    /// Ends the test: everything arrives, and nothing is left anywhere.
    pub(super) fn finish(mut self) {
        self.finished = true;
        self.deliver_all();
        for n in self.live() {
            let node = &self.nodes[n];
            assert!(
                node.ref_counters().is_empty(),
                "w{n} has {:?}",
                node.leaks()
            );
            assert_eq!(node.open_contexts(), [], "w{n}");
            assert!(node.is_empty(), "w{n} has {:?}", node.residue());
            assert!(
                node.membership().is_settled(),
                "w{n} waits for {:?}",
                node.membership().awaited()
            );
            assert!(self.outs[n].is_empty());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        assert!(
            self.finished || std::thread::panicking(),
            "end the test with finish()"
        );
    }
}

/// The request of a call that wants an answer.
pub(super) fn request(head: &CallHead) -> MessageId {
    match head.target {
        Target::Answer(request) | Target::Fetch(request, ..) => request,
        Target::Stay(_) => panic!("{head:?} wants no answer"),
    }
}

/// The reference to the result of a call.
pub(super) fn reference(head: &CallHead) -> RRefId {
    match head.target {
        Target::Stay(creation) => creation.share.rref,
        _ => panic!("{head:?} has no result that stays"),
    }
}

/// What the origin of a context sees of its release.
pub(super) fn released(context: ContextId) -> [Event<u32>; 2] {
    [
        Event::ContextClosed(context),
        Event::ContextReleased(context),
    ]
}
