//! The calls that workers serve, and the answers that they get.

use std::time::Duration;

use farref_proto::{
    AnswerHead, Arrival, CallError, CallHead, ContextId, Lane, MessageId, NodeId, RRefId, Target,
};

use crate::calling::Kind;
use crate::happening::Happening;
use crate::process::{Body, Goal, MAX_DEPTH, MAX_HANDLES, Outstanding, Packet, Reply, Task, Value};
use crate::world::{World, trace};

impl World {
    /// A call arrives.
    pub(crate) fn on_call(&mut self, from: NodeId, to: NodeId, head: &CallHead, body: Body) {
        let now = self.now;
        let Some(process) = self.process(to) else {
            return;
        };
        let arrival = match process.node.receive_call(from, head, &mut process.out) {
            Ok(arrival) => arrival,
            Err(error) => {
                let what = format!("{to} accuses {from}: {error}");
                return self.oracle.violated("F4", now, what);
            }
        };
        trace!(self, "{to}: {arrival:?}");
        if arrival == Arrival::Ignored {
            return;
        }
        let fact = &mut self.oracle.calls[body.call];
        fact.runs += 1;
        if fact.runs > 1 {
            self.oracle
                .violated("D1", now, format!("call {} ran twice on {to}", body.call));
        }
        if let Target::Answer(request) | Target::Fetch(request, ..) = head.target
            && let Some(process) = self.process(to)
        {
            let serving = &mut process.program.serving;
            serving.insert((from, request), body.call);
        }
        if !matches!(arrival, Arrival::Failed(CallError::Context(_))) {
            self.check_entered(to, head.context);
        }
        match arrival {
            Arrival::Run => {
                self.received(from, to, &head.carried);
                let goal = match head.target {
                    Target::Stay(creation) => Goal::Create(from, creation.share.rref),
                    Target::Answer(request) | Target::Fetch(request, ..) => {
                        Goal::Answer(from, request)
                    }
                };
                let arguments = head.carried.iter().map(|fork| fork.share.rref).collect();
                self.start_task(
                    to,
                    goal,
                    Some(body.call),
                    head.context,
                    arguments,
                    body.depth,
                );
            }
            Arrival::Value(value) => {
                if let Target::Fetch(request, ..) = head.target {
                    self.answer(to, from, request, &[], Some(value));
                }
            }
            Arrival::Failed(error) => {
                self.oracle.calls[body.call].over = true;
                self.check_refusal(to, &error);
                match (head.target, error) {
                    (Target::Fetch(request, rref, _), CallError::Reference(error)) => {
                        self.check_use(from, rref, None, Err(error));
                        self.answer(to, from, request, &[], None);
                    }
                    (Target::Answer(request) | Target::Fetch(request, ..), _) => {
                        self.answer(to, from, request, &[], None);
                    }
                    (Target::Stay(creation), _) => self.create(to, from, creation.share.rref, None),
                }
            }
            Arrival::Waiting | Arrival::Ignored => {}
        }
    }

    pub(crate) fn start_task(
        &mut self,
        node: NodeId,
        goal: Goal,
        call: Option<usize>,
        context: Option<ContextId>,
        arguments: Vec<RRefId>,
        depth: u32,
    ) {
        let id = self.next_task;
        self.next_task += 1;
        let slow = matches!(goal, Goal::Create(..)) && self.rng.u32(0..4) == 0;
        let task = Task {
            goal,
            call,
            context,
            arguments: arguments.clone(),
            awaiting: 0,
            slow,
        };
        let Some(process) = self.process(node) else {
            return;
        };
        process.program.tasks.insert(id, task);
        let nested = if depth < MAX_DEPTH {
            self.rng.u32(0..6).saturating_sub(3)
        } else {
            0
        };
        for _ in 0..nested {
            let kind = if self.rng.u32(0..4) == 0 {
                Kind::Create
            } else {
                Kind::Plain
            };
            self.make_call(node, kind, Some(id), depth + 1, &arguments);
        }
        if self.conditions.eager {
            for rref in arguments {
                if self.rng.bool() {
                    self.fetch(node, rref);
                }
            }
        }
        let most = if self.rng.u32(0..8) == 0 {
            150_000
        } else {
            15_000
        };
        let wait = Duration::from_micros(self.rng.u64(0..most));
        self.schedule(self.now + wait, Happening::Task { node, task: id });
    }

    /// A task comes to its end, unless it has to wait.
    pub(crate) fn finish_task(&mut self, node: NodeId, id: u64) {
        let Some(task) = self
            .process(node)
            .and_then(|p| p.program.tasks.get(&id).cloned())
        else {
            return;
        };
        if task.awaiting > 0 {
            return;
        }
        if task.slow
            && let Goal::Create(creator, rref) = task.goal
            && self.together(creator, node)
            && self
                .oracle
                .refs
                .get(&rref)
                .is_some_and(|fact| !fact.confirmed)
        {
            let wait = Duration::from_millis(5);
            return self.schedule(self.now + wait, Happening::Task { node, task: id });
        }
        if let Some(process) = self.process(node) {
            process.program.tasks.remove(&id);
        }
        if let Some(call) = task.call {
            self.oracle.calls[call].over = true;
        }
        let mut arguments = task.arguments;
        match task.goal {
            Goal::Answer(to, request) => {
                let Some(process) = self.process(node) else {
                    return;
                };
                let mut pool = arguments.clone();
                if !process.program.draining {
                    pool.extend(&process.program.handles);
                }
                let count = self.rng.usize(0..3).min(pool.len());
                let results: Vec<RRefId> = (0..count)
                    .map(|_| pool[self.rng.usize(0..pool.len())])
                    .collect();
                let value = self.oracle.fresh_value();
                self.answer(node, to, request, &results, Some(value));
                self.keep_or_drop(node, arguments);
            }
            Goal::Create(_, rref) | Goal::CreateOwn(rref) => {
                // The value keeps some of its arguments, the rest is let go.
                let kept = self.rng.usize(0..=arguments.len());
                let inside = arguments.drain(..kept).collect();
                let value = self.oracle.fresh_value();
                if let Some(process) = self.process(node) {
                    process.program.inside.insert(rref, inside);
                }
                if let Some(fact) = self.oracle.refs.get_mut(&rref) {
                    fact.value = Some(value);
                }
                let from = match task.goal {
                    Goal::Create(from, _) => from,
                    _ => node,
                };
                if let Some(process) = self.process(node) {
                    let context = task.context;
                    process
                        .node
                        .finish_creation(from, rref, context, value, &mut process.out);
                }
                self.keep_or_drop(node, arguments);
            }
        }
        self.settle(node);
    }

    /// A creation failed before it ran: its value is an error, which counts as a value.
    fn create(&mut self, node: NodeId, from: NodeId, rref: RRefId, context: Option<ContextId>) {
        let value = self.oracle.fresh_value();
        if let Some(fact) = self.oracle.refs.get_mut(&rref) {
            fact.value = Some(value);
        }
        if let Some(process) = self.process(node) {
            process
                .node
                .finish_creation(from, rref, context, value, &mut process.out);
        }
    }

    fn keep_or_drop(&mut self, node: NodeId, handles: Vec<RRefId>) {
        for rref in handles {
            let keep = self.rng.u32(0..5) < 2;
            let Some(process) = self.process(node) else {
                return;
            };
            let program = &mut process.program;
            if keep && !program.draining && program.handles.len() < MAX_HANDLES {
                program.handles.push(rref);
            } else {
                process.node.drop_handle(rref, &mut process.out);
            }
        }
    }

    /// Answers, now and then only at the second attempt.
    pub(crate) fn answer(
        &mut self,
        node: NodeId,
        to: NodeId,
        request: MessageId,
        results: &[RRefId],
        value: Option<Value>,
    ) {
        let undo = self.rng.u32(0..16) < self.conditions.undo;
        let Some(process) = self.process(node) else {
            return;
        };
        let mut prepared = process.node.answer(to, request, results, &mut process.out);
        if let Ok(Some(head)) = &prepared
            && undo
        {
            process.node.undo_answer(to, head, &mut process.out);
            prepared = process.node.answer(to, request, &[], &mut process.out);
        }
        if prepared.is_err() {
            // A result cannot be carried, because its owner is lost: answer without.
            prepared = process.node.answer(to, request, &[], &mut process.out);
        }
        let call = process.program.serving.remove(&(to, request));
        if let Some(call) = call {
            self.oracle.calls[call].over = true;
        }
        if let Ok(Some(head)) = prepared {
            self.stats.shares += head.carried.len() as u64;
            let reply = Reply { call, value };
            self.send(node, to, Lane::Call, Packet::Answer(head, reply));
        }
    }

    /// An answer arrives.
    pub(crate) fn on_answer(&mut self, from: NodeId, to: NodeId, head: &AnswerHead, reply: Reply) {
        let now = self.now;
        let Some(process) = self.process(to) else {
            return;
        };
        let wanted = match process.node.receive_answer(from, head, &mut process.out) {
            Ok(answered) => answered.wanted,
            Err(error) => {
                let what = format!("{to} accuses {from}: {error}");
                return self.oracle.violated("F4", now, what);
            }
        };
        let call = self.take_outstanding(to, from, head.id);
        if wanted != call.is_some() {
            let what = format!(
                "{to} forgot whether it wants {} of {from}: {wanted} {call:?}",
                head.id
            );
            return self.oracle.violated("D1/D4", now, what);
        }
        if let Some(call) = call {
            if reply.call != Some(call.call) {
                let (request, due, got) = (head.id, call.call, reply.call);
                let what =
                    format!("{to} got an answer to call {got:?} for {request}, which was {due}");
                return self.oracle.violated("D1", now, what);
            }
            self.outcome(to, &call);
            self.received(from, to, &head.carried);
            if let (Some((rref, fingerprint)), Some(value)) = (call.fetches, reply.value) {
                self.check_use(to, rref, Some(fingerprint), Ok(value));
            }
            let handles = head.carried.iter().map(|fork| fork.share.rref).collect();
            self.keep_or_drop(to, handles);
        }
    }

    pub(crate) fn take_outstanding(
        &mut self,
        node: NodeId,
        to: NodeId,
        request: MessageId,
    ) -> Option<Outstanding> {
        let open = &mut self.process(node)?.program.outstanding;
        let at = open
            .iter()
            .position(|call| call.to == to && call.request == request)?;
        Some(open.swap_remove(at))
    }

    /// A call has its outcome: whoever waits for it goes on.
    pub(crate) fn outcome(&mut self, node: NodeId, call: &Outstanding) {
        self.oracle.calls[call.call].outcomes += 1;
        if let Some(id) = call.parent
            && let Some(process) = self.process(node)
            && let Some(task) = process.program.tasks.get_mut(&id)
        {
            task.awaiting -= 1;
            if task.awaiting == 0 {
                self.schedule(self.now, Happening::Task { node, task: id });
            }
        }
    }
}
