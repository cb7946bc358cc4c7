//! Random user programs: what they do, and how they take what comes to them.

use std::time::Duration;

use farref_proto::{
    AnswerHead, Arrival, CallError, CallHead, ContextId, Event, Fingerprint, Lane, MessageId,
    NodeId, Phase, RRefId, RefError, Target, Want,
};

use crate::faults::Fault;
use crate::process::{Body, Goal, Outstanding, Packet, Process, Task, Value};
use crate::world::{Happening, World, trace};

const TYPE: Fingerprint = Fingerprint(42).native();
const MAX_DEPTH: u32 = 3;
const MAX_HANDLES: usize = 10;

impl World {
    pub(crate) fn start_program(&mut self, node: NodeId) {
        let steps = self.config.steps;
        let draining = self.draining;
        let Some(process) = self.process(node) else {
            return;
        };
        process.program.steps_left = steps;
        if draining {
            return self.drain(node);
        }
        let wait = Duration::from_micros(self.rng.u64(0..5_000));
        self.schedule(self.now + wait, Happening::Step { node });
    }

    /// The program does one thing.
    pub(crate) fn step(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let program = &mut process.program;
        if program.draining || program.steps_left == 0 {
            return;
        }
        program.steps_left -= 1;
        let crowded = program.handles.len() > MAX_HANDLES;
        match self.rng.u32(0..100) {
            _ if crowded => self.drop_some(node),
            0..8 => self.create_local(node),
            8..12 => self.create_own(node),
            12..32 => self.make_call(node, Kind::Create, None, 0, &[]),
            32..60 => self.make_call(node, Kind::Plain, None, 0, &[]),
            60..72 => self.fetch(node),
            72..76 => self.cancel_one(node),
            76..88 => self.drop_some(node),
            88..91 => self.clone_one(node),
            91..96 => self.open_context(node),
            _ => self.release_one_context(node),
        }
        self.settle(node);
        let wait = Duration::from_micros(self.rng.u64(0..24_000));
        self.schedule(self.now + wait, Happening::Step { node });
    }

    fn create_local(&mut self, node: NodeId) {
        let value = self.oracle.fresh_value();
        let Some(process) = self.process(node) else {
            return;
        };
        if let Ok(rref) = process.node.create_local(value, TYPE) {
            process.program.handles.push(rref);
            self.stats.references += 1;
            self.oracle.reference_made(rref, node, Some(value));
        }
    }

    fn create_own(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        if let Ok(rref) = process.node.create_self(TYPE) {
            process.program.handles.push(rref);
            self.stats.references += 1;
            self.oracle.reference_made(rref, node, None);
            let goal = Goal::CreateOwn(rref);
            self.start_task(node, goal, None, None, Vec::new(), MAX_DEPTH);
        }
    }

    fn drop_some(&mut self, node: NodeId) {
        let times = self.rng.u32(1..4);
        for _ in 0..times {
            let pick = self.rng.usize(..);
            let Some(process) = self.process(node) else {
                return;
            };
            if process.program.handles.is_empty() {
                return;
            }
            let at = pick % process.program.handles.len();
            let rref = process.program.handles.swap_remove(at);
            process.node.drop_handle(rref, &mut process.out);
        }
    }

    fn clone_one(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        if !process.program.handles.is_empty() {
            let rref = process.program.handles[pick % process.program.handles.len()];
            if process.node.add_handle(rref).is_ok() {
                process.program.handles.push(rref);
            }
        }
    }

    fn open_context(&mut self, node: NodeId) {
        if !self.weather.contexts {
            return;
        }
        let Some(process) = self.process(node) else {
            return;
        };
        if process.program.contexts.len() < 3 {
            let context = process.node.open_context();
            process.program.contexts.push(context);
            self.stats.contexts += 1;
            self.oracle.contexts.entry(context).or_default();
        }
    }

    fn release_one_context(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        let contexts = process.program.contexts.clone();
        if !contexts.is_empty() {
            // Stays in the program's list until the release is complete; twice is an error.
            let context = contexts[pick % contexts.len()];
            let _ = process.node.release_context(context, &mut process.out);
        }
    }

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
        let undo = self.rng.u32(0..16) < self.weather.undo;
        let bulk = self.rng.u32(0..4) == 0;
        let awaited = task.filter(|_| self.rng.bool());
        let now = self.now;
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
            Kind::Create => Want::Reference(TYPE),
        };
        let head = match process
            .node
            .call(to, want, &arguments, context, &mut process.out)
        {
            Ok(head) => head,
            Err(error) => return self.check_call_error(node, to, &error),
        };
        self.stats.shares += arguments.len() as u64;
        if undo {
            if let Some(process) = self.process(node) {
                process.node.undo_call(to, &head, &mut process.out);
            }
            self.stats.faults.calls_undone += 1;
            return;
        }
        let call = self.oracle.call_made(node, to, context);
        self.stats.calls += 1;
        match head.target {
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                self.stats.references += 1;
                self.oracle.reference_made(rref, to, None);
                self.oracle.calls[call].no_outcome_due = true;
                if let Some(process) = self.process(node) {
                    if process.program.draining {
                        process.node.drop_handle(rref, &mut process.out);
                    } else {
                        process.program.handles.push(rref);
                    }
                }
            }
            Target::Answer(request) => {
                let outstanding = Outstanding {
                    to,
                    request,
                    call,
                    fetches: None,
                    parent: awaited,
                };
                if let Some(process) = self.process(node) {
                    process.program.outstanding.push(outstanding);
                    let waits = awaited.and_then(|task| process.program.tasks.get_mut(&task));
                    if let Some(task) = waits {
                        task.awaiting += 1;
                    }
                }
            }
            Target::Fetch(..) => {
                self.oracle
                    .violated("D1", now, "a call turned into a fetch".to_owned());
            }
        }
        if task.is_some() && !arguments.is_empty() && self.weather.relay_crashes > 0 {
            self.weather.relay_crashes -= 1;
            let most = self.weather.max_delay.as_nanos() as u64;
            let wait = Duration::from_nanos(self.rng.u64(0..=most));
            self.schedule(self.now + wait, Happening::Fault(Fault::CrashOf(node)));
        }
        let relayed = head.carried.first().map(|fork| fork.owner);
        let lane = if bulk { Lane::Bulk } else { Lane::Call };
        self.send(node, to, lane, Packet::Call(head, Body { call, depth }));
        if let Some(owner) = relayed
            && self.config.relay_pressure
            && task.is_some()
        {
            self.lose_relay(node, to, owner);
        }
    }

    fn fetch(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        if process.program.handles.is_empty() {
            return;
        }
        let rref = process.program.handles[pick % process.program.handles.len()];
        let Some(owner) = process.node.refs(rref).owner_of(rref) else {
            return self.check_use(node, rref, Err(RefError::Unknown { rref }));
        };
        if owner == node {
            let outcome = process
                .node
                .refs(rref)
                .value(rref)
                .map(|value| value.copied());
            match outcome {
                Ok(None) => {}
                Ok(Some(value)) => self.check_use(node, rref, Ok(value)),
                Err(error) => self.check_use(node, rref, Err(error)),
            }
            return;
        }
        match process
            .node
            .call(owner, Want::Value(rref, TYPE), &[], None, &mut process.out)
        {
            Ok(head) => {
                let Target::Fetch(request, ..) = head.target else {
                    return;
                };
                let call = self.oracle.call_made(node, owner, None);
                self.stats.calls += 1;
                let outstanding = Outstanding {
                    to: owner,
                    request,
                    call,
                    fetches: Some(rref),
                    parent: None,
                };
                if let Some(process) = self.process(node) {
                    process.program.outstanding.push(outstanding);
                }
                let body = Body {
                    call,
                    depth: MAX_DEPTH,
                };
                self.send(node, owner, Lane::Call, Packet::Call(head, body));
            }
            Err(CallError::Reference(error)) => self.check_use(node, rref, Err(error)),
            Err(error) => self.check_call_error(node, owner, &error),
        }
    }

    fn cancel_one(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        let open = process.program.outstanding.len();
        if open == 0 {
            return;
        }
        let call = process.program.outstanding.swap_remove(pick % open);
        let (to, request) = (call.to, call.request);
        if !process.node.cancel(to, request) {
            let what = format!("{node} cannot cancel {request}, which is open");
            self.oracle.violated("D4", self.now, what);
        }
        self.outcome(node, &call);
        self.stats.faults.calls_cancelled += 1;
        self.send(node, to, Lane::Call, Packet::Cancel(request));
    }

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
        match arrival {
            Arrival::Run => {
                self.check_received(from, to, &head.carried);
                if let Some(context) = head.context
                    && self
                        .oracle
                        .contexts
                        .entry(context)
                        .or_default()
                        .closed_on
                        .contains(&to)
                {
                    let what = format!("a late call brought {context} back on {to}");
                    self.oracle.violated("A3", now, what);
                }
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
                match (head.target, error) {
                    (Target::Fetch(request, rref, _), CallError::Reference(error)) => {
                        self.check_use(from, rref, Err(error));
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

    fn start_task(
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
    fn answer(
        &mut self,
        node: NodeId,
        to: NodeId,
        request: MessageId,
        results: &[RRefId],
        value: Option<Value>,
    ) {
        let undo = self.rng.u32(0..16) < self.weather.undo;
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
        if let Ok(Some(head)) = prepared {
            self.stats.shares += head.carried.len() as u64;
            self.send(node, to, Lane::Call, Packet::Answer(head, value));
        }
    }

    /// An answer arrives.
    pub(crate) fn on_answer(
        &mut self,
        from: NodeId,
        to: NodeId,
        head: &AnswerHead,
        value: Option<Value>,
    ) {
        let now = self.now;
        let Some(process) = self.process(to) else {
            return;
        };
        let wanted = match process.node.receive_answer(from, head, &mut process.out) {
            Ok(wanted) => wanted,
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
            self.outcome(to, &call);
            self.check_received(from, to, &head.carried);
            if let (Some(rref), Some(value)) = (call.fetches, value) {
                self.check_use(to, rref, Ok(value));
            }
            let handles = head.carried.iter().map(|fork| fork.share.rref).collect();
            self.keep_or_drop(to, handles);
        }
    }

    fn take_outstanding(
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
    fn outcome(&mut self, node: NodeId, call: &Outstanding) {
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

    pub(crate) fn on_program_event(&mut self, node: NodeId, event: Event<Value>) {
        match event {
            Event::Freed { rref, value } => self.on_freed(node, rref, value),
            Event::Fetched {
                waiter,
                rref,
                outcome,
            } => {
                if let Err(error) = &outcome {
                    self.check_use(waiter.node, rref, Err(error.clone()));
                }
                self.answer(node, waiter.node, waiter.request, &[], outcome.ok());
            }
            Event::Confirmed(rref) => {
                if let Some(fact) = self.oracle.refs.get_mut(&rref)
                    && rref.origin == node
                {
                    fact.confirmed = true;
                }
            }
            Event::Lost { rref, error } => self.check_use(node, rref, Err(error)),
            Event::PeerLost {
                node: peer,
                request,
            } => match self.take_outstanding(node, peer, request) {
                Some(call) => self.outcome(node, &call),
                None => {
                    let what = format!("{node} lost a call to {peer} that it never made");
                    self.oracle.violated("F2", self.now, what);
                }
            },
            Event::Abandoned {
                node: peer,
                request,
            } => {
                let goal = Goal::Answer(peer, request);
                let Some(process) = self.process(node) else {
                    return;
                };
                let mut tasks = process.program.tasks.iter();
                if let Some((&id, _)) = tasks.find(|(_, task)| task.goal == goal) {
                    // Stops at once: whatever it waits for, nobody wants its answer.
                    if let Some(task) = process.program.tasks.get_mut(&id) {
                        task.awaiting = 0;
                    }
                    for call in &mut process.program.outstanding {
                        if call.parent == Some(id) {
                            call.parent = None;
                        }
                    }
                    self.schedule(self.now, Happening::Task { node, task: id });
                } else {
                    // A fetch that was still waiting.
                    self.answer(node, peer, request, &[], None);
                }
            }
            Event::ContextFailed { context, .. } => {
                self.oracle.contexts.entry(context).or_default().failed = true;
            }
            Event::ContextReleased(context) => self.on_context_released(node, context),
            _ => {}
        }
    }

    /// The program drops everything that it has in hand; what runs goes on.
    pub(crate) fn let_go(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        process.program.draining = true;
        for rref in std::mem::take(&mut process.program.handles) {
            process.node.drop_handle(rref, &mut process.out);
        }
        for context in process.program.contexts.clone() {
            // Those already being released say so; that is fine.
            let _ = process.node.release_context(context, &mut process.out);
        }
        self.settle(node);
    }

    /// The program wants to shut down. It starts a few last things that nobody waits for: what they
    /// set off may still be going on when their caller has nothing left to do.
    pub(crate) fn drain(&mut self, node: NodeId) {
        let wants = |process: &mut Process| process.node.quiescence().wants_shutdown();
        if self.process(node).is_none_or(wants) {
            return;
        }
        for _ in 0..2 {
            self.make_call(node, Kind::Create, None, 0, &[]);
        }
        self.let_go(node);
        if let Some(process) = self.process(node)
            && process.node.membership().phase() == Phase::Member
        {
            process.node.shut_down();
            self.schedule_poll(node);
        }
    }
}

/// What a call's result becomes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Plain,
    Create,
}
