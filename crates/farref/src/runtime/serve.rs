//! Carrying out calls: decoding arguments, waiting for the receiver, running the function, and handing
//! its result back.
//!
//! # Invariants
//!
//! - **SV-1** A job ends in exactly one answer, or one value, whatever the function does: return, fail,
//!   panic, overrun its deadline, be cancelled, or never be polled again.
//! - **SV-2** A cancelled job that has not begun never begins; one that waits is dropped where it
//!   waits (D4).
//! - **SV-3** Arguments are read where the function runs, on its task or its thread, never by whoever
//!   brought the call: reading them is code of the program (UC-1).

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use farref_proto::{ContextId, MessageId, NodeId, RRefId};
use tokio::time::{Sleep, sleep_until};
use tracing::Instrument as _;

use crate::agent::{Failure, TraceContext, Unmade};
use crate::codec::Payload;
use crate::runtime::carrying;
use crate::runtime::callers::Chain;
use crate::runtime::current::Current;
use crate::runtime::failure::shortened;
use crate::runtime::function::{Encode, Function, Mode};
use crate::runtime::handle::Handle;
use crate::runtime::registry::Entry;
use crate::runtime::trace;
use crate::runtime::{Arrived, Core, Expected, FETCH, Reservation, Reserve};
use crate::support::polled;
use crate::support::signal::CancelSignal;
use crate::support::user_code::{self, UserCode};
use crate::values::sealed::Permit;
use crate::values::{Access, Admission, Ticket, Value};

/// What becomes of a call's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// It goes back.
    Answer(MessageId),
    /// It stays here.
    Stay {
        rref: RRefId,
        context: Option<ContextId>,
        /// What the arguments weighed.
        bytes: u64,
        /// A hash of the constructor's name.
        function: u64,
        /// The time that it was given.
        limit: Option<Duration>,
    },
}

impl Target {
    /// What takes the place of a value that could not be made.
    pub(crate) fn unmade(&self, core: &Core, failure: Failure) -> Value {
        let Self::Stay {
            function, limit, ..
        } = *self
        else {
            return Value::failed(failure);
        };
        let unmade = match failure.plain() {
            Ok(failure) => Unmade {
                function,
                name: core
                    .registry
                    .by_id(function)
                    .map(|entry| entry.name().to_owned()),
                limit,
                failure: Box::new(failure),
            },
            Err(other) => other,
        };
        Value::failed(Failure::Unmade(unmade))
    }
}

/// A call that may run now.
pub(crate) struct Job {
    pub(crate) from: NodeId,
    pub(crate) target: Target,
    pub(crate) began: Instant,
    core: Arc<Core>,
    entry: Option<&'static Entry>,
    arguments: Payload,
    references: Vec<Arc<Handle>>,
    ticket: Option<Ticket>,
    deadline: Option<Instant>,
    trace: TraceContext,
    context: Option<ContextId>,
    chain: Chain,
    signal: Option<Arc<CancelSignal>>,
}

impl Job {
    pub(crate) fn new(
        core: Arc<Core>,
        arrived: Arrived,
        entry: Option<&'static Entry>,
        ticket: Option<Ticket>,
    ) -> Self {
        Self {
            from: arrived.from,
            target: arrived.target,
            began: Instant::now(),
            core,
            entry,
            arguments: arrived.arguments,
            references: arrived.references,
            ticket,
            deadline: arrived.deadline,
            trace: arrived.trace,
            context: arrived.context,
            chain: Chain::new(arrived.callers, entry, arrived.on),
            signal: None,
        }
    }

    /// What runs.
    pub(crate) fn name(&self) -> &'static str {
        self.entry.map_or(FETCH, Entry::name)
    }

    /// What cancels it.
    pub(crate) fn cancel_signal(&mut self) -> Arc<CancelSignal> {
        Arc::clone(self.signal.get_or_insert_default())
    }

    pub(crate) fn start(self) {
        match self.entry {
            Some(entry) => entry.serve(self),
            None => self.fetch(),
        }
    }

    /// Sends the value itself.
    fn fetch(self) {
        let (responder, _, ticket) = self.split();
        let runtime = responder.core.runtime.clone();
        runtime.spawn(async move {
            let fetched = supervise(&responder.call, async {
                let Some(Admission::Shared(guard, permit)) = admission(ticket).await? else {
                    return Err(Failure::BadArguments("nothing to fetch".to_owned()));
                };
                // The permit is given back after the lock, wherever this ends: what was bound last goes first.
                let (permit, guard) = (permit, guard);
                let expected = responder.core.answers.fetched(guard.type_name());
                let room = responder.room(responder.reserve(&expected)).await;
                Ok((guard, permit, expected, room))
            })
            .await;
            let (context, from) = (responder.call.current.context, responder.from);
            responder.finish_with(fetched.map(|(guard, permit, expected, room)| {
                let write = move |core: &Arc<Core>| {
                    let _permit = permit;
                    let guard = guard;
                    let mut written = None;
                    let encoded = carrying::write(core, || {
                        let bytes = guard.encode(core.agent().codec());
                        written = Some(bytes.is_some());
                        bytes.unwrap_or_else(|| Ok(Vec::new()))
                    });
                    match encoded {
                        _ if written == Some(false) => {
                            Err(Failure::NotSerializable(guard.type_name().to_owned()))
                        }
                        Ok(mut encoded) => {
                            encoded.made_in(core, context, from);
                            Ok(encoded)
                        }
                        Err(error) => Err(Failure::BadResult(error.to_string())),
                    }
                };
                (write, expected, room)
            }));
        });
    }

    fn split(self) -> (Responder, Packed, Option<Ticket>) {
        let name = self.name();
        let call = Call {
            current: Current {
                core: Arc::clone(&self.core),
                caller: self.from,
                request: match self.target {
                    Target::Answer(request) => Some(request),
                    Target::Stay { .. } => None,
                },
                deadline: self.deadline,
                trace: trace::of_serving(self.trace),
                context: self.context,
                chain: self.chain,
            },
            parent: self.trace.span,
            function: self.entry.map_or(0, |entry| entry.reference().id),
            signal: self.signal,
        };
        let responder = Responder {
            name,
            entry: self.entry,
            core: self.core,
            from: self.from,
            target: Some(self.target),
            call,
            began: self.began,
        };
        let packed = Packed {
            arguments: self.arguments,
            references: self.references,
        };
        (responder, packed, self.ticket)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("function", &self.entry.map(Entry::name))
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}

/// What a running function has to know of its call.
#[derive(Clone)]
struct Call {
    current: Current,
    /// The caller's span.
    parent: u64,
    /// What runs, by its id.
    function: u64,
    signal: Option<Arc<CancelSignal>>,
}

/// Owes somebody an answer.
struct Responder {
    core: Arc<Core>,
    from: NodeId,
    /// None when it has been paid.
    target: Option<Target>,
    name: &'static str,
    entry: Option<&'static Entry>,
    call: Call,
    began: Instant,
}

impl Responder {
    /// Says that the call was cancelled, unless it is answered.
    fn give_up(&mut self) {
        match self.target.take() {
            Some(Target::Answer(request)) => {
                let outcome = Err(Failure::Cancelled);
                self.core.respond(self.from, request, outcome);
            }
            Some(target @ Target::Stay { .. }) => {
                let value = target.unmade(&self.core, Failure::Cancelled);
                self.core.keep(self.from, &target, value);
            }
            None => {}
        }
    }

    /// Sets room aside for the answer, if such answers are large (AN-1). None if that is not needed; if
    /// it has to be waited for, what to wait for.
    fn reserve(&self, expected: &Expected) -> Result<Option<Reservation>, Reserve> {
        let bytes = expected.bytes();
        let is_sent = matches!(self.target, Some(Target::Answer(_))) && self.from != self.core.me;
        if bytes == 0 || !is_sent {
            return Ok(None);
        }
        let budget = self.core.answers.of(self.from);
        match budget.try_reserve(bytes) {
            Some(room) => Ok(Some(room)),
            None => Err(budget.reserve(bytes)),
        }
    }

    /// The same for an answer of the function.
    fn reserve_for_function(&self) -> Result<Option<Reservation>, Reserve> {
        match self.entry {
            Some(entry) => self.reserve(entry.answers()),
            None => Ok(None),
        }
    }

    /// Waits for room, where that has to be.
    async fn room(&self, reserved: Result<Option<Reservation>, Reserve>) -> Option<Reservation> {
        let reserve = match reserved {
            Ok(room) => return room,
            Err(reserve) => reserve,
        };
        let _listed = match self.target {
            Some(Target::Answer(request)) => Some(self.core.answers.hold_back(self.from, request)),
            _ => None,
        };
        Some(reserve.await)
    }

    /// Sends an answer.
    fn answer(
        &self,
        request: MessageId,
        mut outcome: Result<carrying::Encoded, Failure>,
        expected: Option<&Expected>,
        room: Option<Reservation>,
    ) {
        if let Ok(encoded) = &mut outcome
            && self.from != self.core.me
        {
            if let Some(expected) = expected {
                expected.learn(encoded.payload.len() as u64);
            }
            let answers = &self.core.answers;
            answers.charge(self.from, room, &mut encoded.payload);
        }
        let outcome = outcome.map_err(shortened);
        self.core.respond(self.from, request, outcome);
    }

    /// Ends the job with a result, for which room may have been set aside.
    fn finish<T: Send + Sync + 'static>(
        mut self,
        outcome: Result<(T, Option<Reservation>), Failure>,
        encode: Option<Encode<T>>,
    ) {
        let Some(target) = self.target.take() else {
            return;
        };
        // D3: what a function says of calls of its own that ran out of its time comes too late. That
        // its time was up is what its caller has to know, be it the caller's clock or this one that
        // is first to tell.
        let outcome = match outcome {
            Err(Failure::Returned(_)) if self.call.is_late() => Err(Failure::DeadlineExceeded),
            outcome => outcome.map_err(shortened),
        };
        self.measure(outcome.is_ok());
        match target {
            Target::Answer(request) => {
                let (outcome, room) = match outcome {
                    Ok((value, room)) => (encoded(&self, value, encode), room),
                    Err(failure) => (Err(failure), None),
                };
                let expected = self.entry.map(Entry::answers);
                self.answer(request, outcome, expected, room);
            }
            Target::Stay { .. } => {
                let value = match outcome {
                    Ok((value, _)) => Value::new(value, encode),
                    Err(failure) => target.unmade(&self.core, failure),
                };
                self.core.keep(self.from, &target, value);
            }
        }
    }

    /// Ends a fetch.
    fn finish_with<W>(mut self, outcome: Result<(W, Arc<Expected>, Option<Reservation>), Failure>)
    where
        W: FnOnce(&Arc<Core>) -> Result<carrying::Encoded, Failure>,
    {
        if let Some(Target::Answer(request)) = self.target.take() {
            self.measure(outcome.is_ok());
            match outcome {
                Ok((write, expected, room)) => {
                    let written = catch_unwind(AssertUnwindSafe(|| write(&self.core)))
                        .unwrap_or_else(|panic| Err(panicked(&*panic)));
                    self.answer(request, written, Some(&expected), room);
                }
                Err(failure) => self.answer(request, Err(failure), None, None),
            }
        }
    }

    fn measure(&self, good: bool) {
        let telemetry = &self.core.telemetry;
        telemetry.served.add(1);
        if !good {
            telemetry.served_failed.add(1);
        }
        telemetry.serve_seconds.record(self.began.elapsed());
    }
}

/// SV-1: a job that is dropped, with its task, its thread pool or its value, was cancelled.
impl Drop for Responder {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Carries out a call of `F`.
pub(crate) fn serve<F: Function>(job: Job) {
    let (responder, packed, ticket) = job.split();
    let span = span_of(&responder);
    let runtime = responder.core.runtime.clone();
    match F::MODE {
        Mode::Task => drop(runtime.spawn(run::<F>(responder, ticket, packed).instrument(span))),
        Mode::Blocking => match ticket {
            None => run_blocking::<F>(responder, None, packed, span, None),
            Some(ticket) => drop(runtime.spawn(async move {
                let admitted = supervise(&responder.call, async {
                    let room = responder.room(responder.reserve_for_function()).await;
                    Ok((admission(Some(ticket)).await?, room))
                });
                match admitted.await {
                    Ok((admission, room)) => {
                        run_blocking::<F>(responder, admission, packed, span, room);
                    }
                    Err(failure) => responder.finish::<F::Output>(Err(failure), None),
                }
            })),
        },
    }
}

/// Arguments as they came.
struct Packed {
    arguments: Payload,
    references: Vec<Arc<Handle>>,
}

impl Packed {
    fn read<F: Function>(self, responder: &Responder) -> Result<F::Arguments, Failure> {
        let codec = responder.core.agent().codec();
        let context = responder.call.current.context;
        let origin = context.map(|context| (Arc::clone(&responder.core), context, responder.from));
        let read = catch_unwind(AssertUnwindSafe(|| {
            let Self {
                arguments,
                references,
            } = self;
            carrying::read(codec, arguments, references, origin, F::PARAMETERS)
        }));
        match read {
            Ok(Ok(arguments)) => Ok(arguments),
            Ok(Err(carrying::Unread::Mismatch(reason))) => Err(Failure::TypeMismatch(reason)),
            Ok(Err(carrying::Unread::Codec(reason))) => Err(Failure::BadArguments(reason.to_string())),
            Err(panic) => Err(panicked(&*panic)),
        }
    }
}

async fn run<F: Function>(responder: Responder, ticket: Option<Ticket>, packed: Packed) {
    let to = &responder;
    let outcome = supervise(&to.call, async move {
        let arguments = packed.read::<F>(to)?;
        let room = to.room(to.reserve_for_function()).await;
        let guard = enter::<F>(admission(ticket).await?)?;
        Ok((F::run(guard, arguments).await?, room))
    })
    .await;
    responder.finish(outcome, F::encoder());
}

fn run_blocking<F: Function>(
    responder: Responder,
    admission: Option<Admission>,
    packed: Packed,
    span: tracing::Span,
    room: Option<Reservation>,
) {
    let core = Arc::clone(&responder.core);
    let signal = responder.call.signal.clone();
    let task = move |responder: Responder| {
        if let Err(failure) = responder.call.check() {
            return responder.finish::<F::Output>(Err(failure), None);
        }
        // How large its answer may be is known only when others of its kind are over.
        let reserved = match room {
            Some(room) => Ok(Some(room)),
            None => responder.reserve_for_function(),
        };
        let room = match reserved {
            Ok(room) => room,
            Err(reserve) => {
                // Without the thread.
                let runtime = responder.core.runtime.clone();
                drop(runtime.spawn(async move {
                    let room = async { Ok(responder.room(Err(reserve)).await) };
                    match supervise(&responder.call, room).await {
                        Ok(room) => {
                            run_blocking::<F>(responder, admission, packed, span, room);
                        }
                        Err(failure) => responder.finish::<F::Output>(Err(failure), None),
                    }
                }));
                return;
            }
        };
        let arguments = match packed.read::<F>(&responder) {
            Ok(arguments) => arguments,
            Err(failure) => return responder.finish::<F::Output>(Err(failure), None),
        };
        let current = responder.call.current.clone();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _runtime = responder.core.runtime.enter();
            current.enter(|| {
                span.in_scope(|| {
                    let guard = enter::<F>(admission)?;
                    // A plain function is over when it has been polled once.
                    match pin!(F::run(guard, arguments))
                        .poll(&mut Context::from_waker(Waker::noop()))
                    {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => {
                            Err(Failure::Panicked("a plain function waits".to_owned()))
                        }
                    }
                })
            })
        }));
        let outcome = outcome.unwrap_or_else(|panic| Err(panicked(&*panic)));
        responder.finish(outcome.map(|value| (value, room)), F::encoder());
    };
    let place = Place(Arc::new(Queued {
        task: Mutex::new(Some((responder, Box::new(task)))),
        user_code: Arc::clone(&core.user_code),
    }));
    let cancelled = signal.is_some_and(|signal| signal.watch(&Waker::from(Arc::clone(&place.0))));
    if !cancelled {
        core.pool.submit(move || place.run());
    }
}

/// A job that waits for a thread. Waking it is cancelling it: it is dropped where it waits, and with
/// it what it carries (SV-2).
struct Queued {
    task: Mutex<Option<(Responder, Task)>>,
    user_code: Arc<UserCode>,
}

type Task = Box<dyn FnOnce(Responder) + Send>;

impl Queued {
    fn take(&self) -> Option<(Responder, Task)> {
        self.task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

impl Wake for Queued {
    fn wake(self: Arc<Self>) {
        if let Some((mut responder, task)) = self.take() {
            // Whoever asked hears of it at once.
            responder.give_up();
            // The value that it was called on may go with it, and that is the program's.
            self.user_code.run(move || drop((responder, task)));
        }
    }
}

/// A job's place in the queue of the pool. The job goes with it (SV-1): the signal, which the job
/// refers to, refers to the job in turn.
struct Place(Arc<Queued>);

impl Place {
    fn run(self) {
        if let Some((responder, task)) = self.0.take() {
            task(responder);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

impl Call {
    /// Whether it may still be begun.
    fn check(&self) -> Result<(), Failure> {
        if self
            .signal
            .as_ref()
            .is_some_and(|signal| signal.is_cancelled())
        {
            return Err(Failure::Cancelled);
        }
        if self.is_late() {
            return Err(Failure::DeadlineExceeded);
        }
        Ok(())
    }

    /// Whether its time is up.
    fn is_late(&self) -> bool {
        self.current.deadline.is_some_and(|at| at <= Instant::now())
    }
}

/// Runs a future until it is done, panics, is cancelled, or is out of time.
async fn supervise<T>(
    call: &Call,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let mut future = pin!(Some(future));
    let mut timer: Option<Pin<Box<Sleep>>> = None;
    if let Err(failure) = call.check() {
        let_go(|| future.set(None));
        return Err(failure);
    }
    let outcome = poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            let poll = || match future.as_mut().as_pin_mut() {
                Some(future) => future.poll(context),
                None => Poll::Pending,
            };
            polled::polling(call.function, || call.current.enter(poll))
        }));
        match polled {
            Ok(Poll::Ready(outcome)) => return Poll::Ready(outcome),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Err(panicked(&*panic))),
        }
        if let Some(signal) = &call.signal
            && signal.watch(context.waker())
        {
            return Poll::Ready(Err(Failure::Cancelled));
        }
        // Only what has to wait needs a timer.
        if let Some(at) = call.current.deadline {
            let timer = timer.get_or_insert_with(|| Box::pin(sleep_until(at.into())));
            if timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Failure::DeadlineExceeded));
            }
        }
        Poll::Pending
    })
    .await;
    let_go(|| future.set(None));
    outcome
}

/// Lets go of what a function leaves behind that did not come to its end. Its destructors are the
/// program's: if one panics, the call has an outcome all the same.
fn let_go(drop: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(drop)) {
        tracing::error!(failure = ?panicked(&*panic), "a destructor panicked");
    }
}

async fn admission(ticket: Option<Ticket>) -> Result<Option<Admission>, Failure> {
    match ticket {
        Some(ticket) => ticket.admitted().await.map(Some),
        None => Ok(None),
    }
}

fn enter<F: Function>(
    admission: Option<Admission>,
) -> Result<<F::Access as Access>::Guard, Failure> {
    F::Access::enter(Permit(admission)).ok_or_else(|| {
        let wanted = std::any::type_name::<<F::Access as Access>::Target>();
        Failure::TypeMismatch(format!("the value is not a `{wanted}`"))
    })
}

/// Writes a result and lets go of it. Either may panic.
fn encoded<T>(
    responder: &Responder,
    value: T,
    encode: Option<Encode<T>>,
) -> Result<carrying::Encoded, Failure> {
    let written = catch_unwind(AssertUnwindSafe(move || {
        let Some(encode) = encode else {
            let type_name = std::any::type_name::<T>().to_owned();
            return Err(Failure::NotSerializable(type_name));
        };
        let core = &responder.core;
        let mut encoded = carrying::write(core, || encode(&value, core.agent().codec()))
            .map_err(|error| Failure::BadResult(error.to_string()))?;
        encoded.made_in(core, responder.call.current.context, responder.from);
        Ok(encoded)
    }));
    written.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let message = user_code::panic_message(panic).unwrap_or("(a panic without a message)");
    Failure::Panicked(message.to_owned())
}

fn span_of(responder: &Responder) -> tracing::Span {
    let span = tracing::debug_span!(
        "farref.serve",
        worker = %responder.core.name,
        function = responder.name,
        caller = tracing::field::Empty,
        trace = responder.call.current.trace.trace,
        span = responder.call.current.trace.span,
        parent = responder.call.parent,
    );
    if !span.is_disabled() {
        let caller = responder.core.name_of(responder.from);
        span.record("caller", tracing::field::display(caller));
    }
    span
}
