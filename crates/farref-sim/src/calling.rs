//! The calls that programs make: chosen at random, parked, taken back, cancelled.

use std::rc::Rc;
use std::time::Duration;

use farref_proto::{
    CallError, CallHead, ContextId, Fingerprint, Lane, MessageId, NodeId, RRefId, RefError, Target,
    Want,
};

use crate::happening::{Fault, Happening};
use crate::link::pair;
use crate::process::{Body, MAX_DEPTH, Outstanding, Packet};
use crate::world::World;

/// The types that values have. The last is another system's, which agrees with all.
const TYPES: [Fingerprint; 3] = [
    Fingerprint(42).native(),
    Fingerprint(43).native(),
    Fingerprint::foreign(44),
];

/// What a call's result becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Plain,
    Create,
}

/// A call that is going to be made.
#[derive(Clone, Debug)]
struct Plan {
    to: NodeId,
    want: Want,
    arguments: Vec<RRefId>,
    context: Option<ContextId>,
    /// The task that makes it, and whether it waits for the answer.
    task: Option<u64>,
    awaited: bool,
    depth: u32,
    lane: Lane,
}

impl Plan {
    /// A call of the program itself, which nobody waits for.
    fn new(to: NodeId, want: Want) -> Self {
        Self {
            to,
            want,
            arguments: Vec::new(),
            context: None,
            task: None,
            awaited: false,
            depth: 0,
            lane: Lane::Call,
        }
    }
}

impl World {
    /// Makes a call to somebody, with some of the handles.
    pub(crate) fn make_call(
        &mut self,
        node: NodeId,
        kind: Kind,
        task: Option<u64>,
        depth: u32,
        also: &[RRefId],
    ) {
        let picks: [usize; 4] = std::array::from_fn(|_| self.rng.usize(..));
        let count = self.rng.usize(0..4);
        let undo = self.rng.u32(0..16) < self.conditions.undo;
        let bulk = self.rng.u32(0..4) == 0;
        let awaited = task.is_some() && self.rng.bool();
        let fingerprint = self.some_type();
        let Some(process) = self.process(node) else {
            return;
        };
        let mut peers: Vec<NodeId> = process.node.membership().view().members().collect();
        if kind == Kind::Create {
            peers.retain(|&peer| peer != node);
        }
        if peers.is_empty() {
            return;
        }
        let to = peers[picks[3] % peers.len()];
        let mut pool = process.program.handles.clone();
        pool.extend(also);
        let arguments: Vec<RRefId> = match pool.len() {
            0 => Vec::new(),
            len => picks[..count].iter().map(|pick| pool[pick % len]).collect(),
        };
        let context = match task.and_then(|task| process.program.tasks.get(&task)) {
            Some(task) => task.context,
            None => match process.program.contexts.len() {
                0 => None,
                len => picks[0]
                    .is_multiple_of(2)
                    .then(|| process.program.contexts[picks[1] % len]),
            },
        };
        let want = match kind {
            Kind::Plain => Want::Answer,
            Kind::Create => Want::Reference(fingerprint),
        };
        let plan = Plan {
            arguments,
            context,
            task,
            awaited,
            depth,
            lane: if bulk { Lane::Bulk } else { Lane::Call },
            ..Plan::new(to, want)
        };
        let prepared = process
            .node
            .call(to, want, &plan.arguments, context, &mut process.out);
        match prepared {
            Ok(head) if undo => self.take_back(node, to, head),
            Ok(head) => {
                self.commit(node, plan, head);
            }
            Err(error) => self.check_call_error(node, to, &error),
        }
    }

    /// Undoes a call that never left, at once or after a while in which anything may happen.
    fn take_back(&mut self, node: NodeId, to: NodeId, head: CallHead) {
        self.stats.faults.calls_undone += 1;
        let head = Rc::new(head);
        if self.rng.bool() {
            return self.undo(node, to, &head);
        }
        if let Target::Answer(request) | Target::Fetch(request, ..) = head.target
            && let Some(process) = self.process(node)
        {
            process.program.unsent.insert((to, request));
        }
        let wait = Duration::from_micros(self.rng.u64(0..20_000));
        self.schedule(self.now + wait, Happening::Undo { node, to, head });
    }

    pub(crate) fn undo(&mut self, node: NodeId, to: NodeId, head: &CallHead) {
        if let Some(process) = self.process(node) {
            if let Target::Answer(request) | Target::Fetch(request, ..) = head.target {
                process.program.unsent.remove(&(to, request));
            }
            process.node.undo_call(to, head, &mut process.out);
            self.settle(node);
        }
    }

    /// A call is made for good: writes down what is due for it, and sends it now or later. Answers the
    /// reference to its result, if that stays.
    fn commit(&mut self, node: NodeId, plan: Plan, head: CallHead) -> Option<RRefId> {
        let Plan {
            to,
            context,
            task,
            depth,
            lane,
            ..
        } = plan;
        self.stats.shares += head.carried.len() as u64;
        let call = self.oracle.call_made(node, to, context);
        self.stats.calls += 1;
        let mut created = None;
        let fetches = match plan.want {
            Want::Value(rref, fingerprint) => Some((rref, fingerprint)),
            _ => None,
        };
        match head.target {
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                created = Some(rref);
                self.oracle
                    .forks
                    .insert((node, rref), (creation.share.fork, false));
                self.stats.references += 1;
                self.oracle
                    .reference_made(rref, to, None, creation.fingerprint);
                self.oracle.calls[call].no_outcome_due = true;
                if let Some(process) = self.process(node) {
                    process.program.unconfirmed.insert(rref);
                    if process.program.draining {
                        process.node.drop_handle(rref, &mut process.out);
                    } else {
                        process.program.handles.push(rref);
                    }
                }
            }
            Target::Answer(request) | Target::Fetch(request, ..) => {
                let parent = task.filter(|_| plan.awaited);
                let outstanding = Outstanding {
                    to,
                    request,
                    call,
                    fetches,
                    parent,
                };
                if let Some(process) = self.process(node) {
                    process.program.outstanding.push(outstanding);
                    let waits = parent.and_then(|task| process.program.tasks.get_mut(&task));
                    if let Some(task) = waits {
                        task.awaiting += 1;
                    }
                }
            }
        }
        if task.is_some() && !head.carried.is_empty() && self.conditions.relay_crashes > 0 {
            self.conditions.relay_crashes -= 1;
            let most = self.conditions.max_delay.as_nanos() as u64;
            let wait = Duration::from_nanos(self.rng.u64(0..=most));
            self.schedule(self.now + wait, Happening::Fault(Fault::CrashOf(node)));
        }
        let relayed = head.carried.first().map(|fork| fork.owner);
        self.send_or_park(node, to, lane, head, Body { call, depth });
        if let Some(owner) = relayed
            && self.config.relay_pressure
            && task.is_some()
        {
            self.lose_relay(node, to, owner);
        }
        created
    }

    fn send_or_park(&mut self, node: NodeId, to: NodeId, lane: Lane, head: CallHead, body: Body) {
        let most = self.conditions.max_parking.as_micros() as u64;
        if most == 0 || node == to || self.rng.bool() {
            return self.send(node, to, lane, Packet::Call(head, body));
        }
        let wait = Duration::from_micros(self.rng.u64(0..=most));
        let head = Rc::new(head);
        if let Target::Answer(request) | Target::Fetch(request, ..) = head.target
            && let Some(process) = self.process(node)
        {
            let parked = &mut process.program.parked;
            parked.insert((to, request), head.clone());
        }
        self.stats.faults.calls_parked += 1;
        self.schedule(
            self.now + wait,
            Happening::Unpark {
                node,
                to,
                lane,
                head,
                body,
            },
        );
    }

    /// There is room for a call that waited, unless it was withdrawn or its receiver is gone.
    pub(crate) fn unpark(
        &mut self,
        node: NodeId,
        to: NodeId,
        lane: Lane,
        head: &CallHead,
        body: Body,
    ) {
        let Some(process) = self.process(node) else {
            return;
        };
        if let Target::Answer(request) | Target::Fetch(request, ..) = head.target
            && process.program.parked.remove(&(to, request)).is_none()
        {
            return;
        }
        if !process.node.membership().view().is_gone(to) {
            self.send(node, to, lane, Packet::Call(head.clone(), body));
        }
    }

    /// Fetches what one of the handles refers to.
    pub(crate) fn fetch_some(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        let handles = &process.program.handles;
        if !handles.is_empty() {
            let rref = handles[pick % handles.len()];
            self.fetch(node, rref);
        }
    }

    /// Fetches what a reference refers to, now and then as what it is not.
    pub(crate) fn fetch(&mut self, node: NodeId, rref: RRefId) {
        let right = self.oracle.refs.get(&rref).map(|fact| fact.fingerprint);
        let fingerprint = match right {
            Some(right) if self.rng.u32(0..10) > 0 => right,
            _ => self.some_type(),
        };
        let Some(process) = self.process(node) else {
            return;
        };
        let Some(owner) = process.node.refs(rref).owner_of(rref) else {
            return self.check_use(node, rref, None, Err(RefError::Unknown { rref }));
        };
        if owner == node {
            let outcome = process
                .node
                .refs(rref)
                .value(rref)
                .map(|value| value.copied());
            match outcome {
                Ok(None) => {}
                Ok(Some(value)) => self.check_use(node, rref, None, Ok(value)),
                Err(error) => self.check_use(node, rref, None, Err(error)),
            }
            return;
        }
        let context = process.program.contexts.first().copied();
        let want = Want::Value(rref, fingerprint);
        match process
            .node
            .call(owner, want, &[], context, &mut process.out)
        {
            Ok(head) => {
                let target = head.target;
                let plan = Plan {
                    context,
                    depth: MAX_DEPTH,
                    ..Plan::new(owner, want)
                };
                self.commit(node, plan, head);
                if let Target::Fetch(request, ..) = target
                    && self.conditions.eager
                    && self.rng.u32(0..3) == 0
                {
                    let wait = Duration::from_micros(self.rng.u64(0..30_000));
                    let to = owner;
                    self.schedule(self.now + wait, Happening::GiveUp { node, to, request });
                }
            }
            Err(CallError::Reference(error)) => self.check_use(node, rref, None, Err(error)),
            Err(error) => self.check_call_error(node, owner, &error),
        }
    }

    /// The program cancels one of its calls.
    pub(crate) fn cancel_some(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        let open = &process.program.outstanding;
        if !open.is_empty() {
            let Outstanding { to, request, .. } = open[pick % open.len()];
            self.cancel(node, to, request);
        }
    }

    /// The program cancels a call, if it is still open. One that is parked never leaves.
    pub(crate) fn cancel(&mut self, node: NodeId, to: NodeId, request: MessageId) {
        let Some(call) = self.take_outstanding(node, to, request) else {
            return;
        };
        self.outcome(node, &call);
        self.stats.faults.calls_cancelled += 1;
        let Some(process) = self.process(node) else {
            return;
        };
        if let Some(head) = process.program.parked.remove(&(to, request)) {
            self.oracle.calls[call.call].over = true;
            return self.undo(node, to, &head);
        }
        if !process.node.cancel(to, request) {
            let what = format!("{node} cannot cancel {request}, which is open");
            self.oracle.violated("D4", self.now, what);
        }
        self.send(node, to, Lane::Call, Packet::Cancel(request));
    }

    /// Asks for a value, hands the reference on at once, and dies before the owner hears of it.
    pub(crate) fn create_and_die(&mut self, node: NodeId) {
        self.conditions.creator_crashes -= 1;
        let fingerprint = self.some_type();
        let Some(process) = self.process(node) else {
            return;
        };
        let mut others: Vec<NodeId> = process.node.membership().view().members().collect();
        others.retain(|&other| other != node);
        self.rng.shuffle(&mut others);
        let Some((&owner, others)) = others.split_first() else {
            return;
        };
        let until = self.now + Duration::from_millis(100);
        self.links
            .entry(pair(node, owner))
            .or_default()
            .blocked_until = until;
        let Some(process) = self.process(node) else {
            return;
        };
        let want = Want::Reference(fingerprint);
        let Ok(head) = process.node.call(owner, want, &[], None, &mut process.out) else {
            return;
        };
        let Some(rref) = self.commit(node, Plan::new(owner, want), head) else {
            return;
        };
        for &other in others.iter().take(3) {
            let Some(process) = self.process(node) else {
                return;
            };
            let plan = Plan {
                arguments: vec![rref],
                ..Plan::new(other, Want::Answer)
            };
            let prepared =
                process
                    .node
                    .call(other, plan.want, &plan.arguments, None, &mut process.out);
            if let Ok(head) = prepared {
                self.commit(node, plan, head);
            }
        }
        let wait = self.delay() * 2;
        self.schedule(self.now + wait, Happening::Fault(Fault::CrashOf(node)));
    }

    /// One of the types that values have.
    pub(crate) fn some_type(&mut self) -> Fingerprint {
        TYPES[self.rng.usize(0..TYPES.len())]
    }
}
