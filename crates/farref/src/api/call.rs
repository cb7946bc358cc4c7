//! A call: built, then awaited, started, or left there.

use std::any::type_name;
use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use farref_proto::{ContextId, NodeId};
use serde::Serialize;

use super::outcome::{Outcome, ReturnedError};
use super::peer::Peer;
use super::pending::{Pending, PendingState, Prepared, Returned, awaited_before};
use super::rref::RRef;
use crate::agent::FunctionRef;
use crate::codec::vectors::ArgumentList as _;
use crate::codec::{Codec, CodecError};
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::fingerprint;
use crate::fingerprint::foreign::FOREIGN_VALUE;
use crate::runtime::current::{self, Current};
use crate::runtime::function::Function;
use crate::runtime::handle::{Handle, Held};
use crate::runtime::registry::{BY_METHOD, FETCHED, FunctionEntry};
use crate::runtime::{self, CallSpec, Core, trace, value_scope};
use crate::support::blocking_pool::BlockedThread;
use crate::support::clock::Instant;
use crate::support::mutation::mutated;
use crate::values::{Access, NoReceiver};

/// What a fetch is called in errors.
const FETCH: FunctionName = FunctionName::ours(runtime::FETCH);

/// A call that has been built and not been made yet.
///
/// Await it for the result, [`start`](Self::start) it to await the result later, or say
/// [`remote`](Self::remote) to leave the result where it is computed and hold a reference to it.
/// A call that is only built sends nothing. It is what surrounds the code that makes it which counts: its
/// limit and its [context](crate::context#which-context-a-call-belongs-to).
///
/// ```
/// # use std::time::Duration;
/// #[farref::remote]
/// async fn square(x: u64) -> u64 {
///     x * x
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
///
/// assert_eq!(square::on(&peer, 3).await?, 9); // the value comes back
///
/// let pending = square::on(&peer, 4).start(); // begins now
/// assert_eq!(pending.await?, 16); // is awaited later
///
/// let nine = square::on(&peer, 3).remote(); // the value stays there
/// assert_eq!(nine.to_here().timeout(Duration::from_secs(5)).await?, 9);
/// drop(nine);
/// # cluster.shutdown().await
/// # }
/// ```
///
/// `E` is the function's own error, which [`result`](Self::result) brings; awaiting the call itself brings the
/// `T`, or an [`Error`] that has the error's text. Functions whose signature does not say `Result<T, E>` have none.
#[must_use = "a call does nothing until it is awaited, started, or left there with `remote()`"]
pub struct Call<T, E = Infallible> {
    stage: CallStage<T>,
    error: PhantomData<fn() -> E>,
}

enum CallStage<T> {
    /// To be built when it is made.
    Deferred(Deferred<T>),
    Built(Built),
    /// It is being awaited.
    Made(Pending<T>),
    /// In between.
    Taken,
}

/// How to build a call when it is made, and the time limit that it was given since.
struct Deferred<T> {
    name: FunctionName,
    build: Box<dyn FnOnce() -> Call<T> + Send + Sync>,
    timeout: Option<Option<Duration>>,
}

/// What has been said about a call.
struct Built {
    to: Result<(Arc<Core>, NodeId)>,
    /// What to call; none fetches the receiver's value.
    entry: Option<&'static FunctionEntry>,
    /// In its place: one that is named as another language does.
    foreign: Option<Box<FunctionRef>>,
    name: FunctionName,
    receiver: Option<Arc<Handle>>,
    encoded: Result<value_scope::Encoded>,
    /// The context that surrounds the place where the call was built. It counts if there is none where the
    /// call is made.
    context: Option<ContextId>,
    timeout: Timeout,
    /// What the function's own limit is, if it has one.
    own_timeout: Option<Duration>,
    location: &'static Location<'static>,
}

/// The time limit of a call.
#[derive(Clone, Copy, Debug)]
enum Timeout {
    /// The function's, or else the worker's.
    Default,
    /// This one; none is unlimited.
    Set(Option<Duration>),
}

impl<T: Send + Sync + 'static> Call<T> {
    #[track_caller]
    pub(crate) fn on_worker<F>(to: &Peer, arguments: &mut F::Arguments) -> Self
    where
        F: Function<Output = T, Access = NoReceiver>,
    {
        let name = FunctionName::ours(F::NAME);
        match to.core() {
            Ok(core) => {
                let life = to.life(core, name);
                Self::new::<F>(core, life, None, arguments)
            }
            Err(error) => Self::broken(name, error),
        }
    }

    #[track_caller]
    pub(crate) fn on_value<F: Function<Output = T>>(
        on: &RRef<<F::Access as Access>::Target>,
        arguments: &mut F::Arguments,
    ) -> Self {
        match on.handle.held() {
            Ok(held) => {
                let receiver = Some(Arc::clone(&on.handle));
                Self::new::<F>(&held.core, Ok(held.owner), receiver, arguments)
            }
            Err(error) => Self::broken(FunctionName::ours(F::NAME), error),
        }
    }

    #[track_caller]
    fn new<F: Function<Output = T>>(
        core: &Arc<Core>,
        to: Result<NodeId>,
        receiver: Option<Arc<Handle>>,
        arguments: &mut F::Arguments,
    ) -> Self {
        let entry = core.registry.entry::<F>();
        let name = FunctionName::ours(F::NAME);
        let encoded = encode::<F::Arguments>(core, to.as_ref().ok().copied(), &name, |codec| {
            codec.encode_taking(arguments, F::Arguments::each_vector)
        });
        Self::with_encoded(core, to, receiver, entry, name, F::TIMEOUT, encoded)
    }
}

impl<T: Send + Sync + 'static, E> Call<T, E> {
    /// Leaves the result with the worker that computes it, and returns a reference to it at once.
    ///
    /// The reference can be used and handed on right away, before the value is there. If the call
    /// cannot be made or the function fails, using the reference says so. A function that takes long
    /// to make its value is not cut off, unless [`timeout`](Self::timeout) was set on this call.
    ///
    /// ```
    /// use farref::RRef;
    ///
    /// #[farref::remote]
    /// async fn load(name: String) -> Result<Vec<u8>, String> {
    ///     if name.is_empty() { Err("no name".to_owned()) } else { Ok(name.into_bytes()) }
    /// }
    ///
    /// #[farref::remote]
    /// async fn size(data: RRef<Vec<u8>>) -> farref::Result<usize> {
    ///     Ok(data.to_here().await?.len())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(3).await?;
    /// let me = cluster.worker(0);
    /// let [one, two] = [me.peer("worker1")?, me.peer("worker2")?];
    ///
    /// // `worker2` gets the data from `worker1`; none of it comes here.
    /// let data = load::on(&one, "model".to_owned()).remote();
    /// assert_eq!(size::on(&two, data.clone()).await?, 5);
    ///
    /// // There is nothing to `?` here: whoever uses the reference learns of the failure.
    /// let nothing = load::on(&one, String::new()).remote();
    /// assert!(nothing.to_here().await.unwrap_err().to_string().contains("no name"));
    /// # drop((data, nothing));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn remote(self) -> RRef<T> {
        let handle = match self.stage.build() {
            CallStage::Built(built) => built.create::<T>(),
            CallStage::Deferred(_) | CallStage::Made(_) | CallStage::Taken => Err(awaited_before()),
        };
        RRef::new(handle.unwrap_or_else(Handle::broken))
    }
}

impl Built {
    #[track_caller]
    fn create<T: Send + Sync + 'static>(self) -> Result<Arc<Handle>> {
        let (location, now) = (Location::caller(), Instant::now());
        let function = self.function().filter(|function| function.id != FETCHED);
        let function = function.ok_or(Misuse::FetchedInPlace)?;
        let deadline = match self.timeout {
            Timeout::Set(Some(limit)) => now.checked_add(limit),
            Timeout::Default if mutated!(TimeConstructors) => {
                self.own_timeout.and_then(|own| now.checked_add(own))
            }
            // R6: how long the value takes is nobody's business until it is used.
            Timeout::Set(None) | Timeout::Default => None,
        };
        let (core, to) = self.to?;
        let (current, context) = Current::and_context_of(&core);
        let context = context.or(self.context);
        let mut encoded = self.encoded?;
        encoded.made_in(&core, context, to);
        let request = CallSpec {
            function: Some(function),
            name: self.name,
            receiver: self.receiver,
            encoded,
            deadline,
            now,
            remaining: deadline.map(|at| at.saturating_duration_since(now)),
            trace: trace::of_call(current.as_deref()),
            callers: Vec::new(),
            context,
        };
        let fingerprint = fingerprint::of_type::<T>();
        core.name_type(fingerprint, type_name::<T>());
        core.create(to, request, self.entry, fingerprint, location)
    }
}

/// Writes the arguments of a call.
fn encode<A: 'static>(
    core: &Arc<Core>,
    to: Option<NodeId>,
    name: &FunctionName,
    write: impl FnOnce(&Codec) -> std::result::Result<Vec<u8>, CodecError>,
) -> Result<value_scope::Encoded> {
    let encoded = value_scope::write_typed::<A>(core, to, || write(core.agent().codec()));
    encoded.map_err(|unwritten| match unwritten {
        value_scope::Unwritten::Foreign(error) => error,
        value_scope::Unwritten::Codec(reason) => Error::Codec {
            what: "the arguments",
            function: name.clone(),
            action: "written",
            reason,
        },
    })
}

impl<T> CallStage<T> {
    /// Builds what is to be built when it is made.
    fn build(self) -> Self {
        let Self::Deferred(Deferred { build, timeout, .. }) = self else {
            return self;
        };
        match timeout {
            Some(limit) => build().timeout(limit).stage,
            None => build().stage,
        }
        .build()
    }
}

impl<T> Call<T> {
    fn at(stage: CallStage<T>) -> Self {
        Self {
            stage,
            error: PhantomData,
        }
    }

    fn built(built: Built) -> Self {
        Self::at(CallStage::Built(built))
    }

    /// The same call, of a function that has such errors.
    pub(super) fn typed<E>(self) -> Call<T, E> {
        Call {
            stage: self.stage,
            error: PhantomData,
        }
    }

    /// A call of a function on one life of a worker.
    #[track_caller]
    pub(super) fn with_arguments<A: Serialize + 'static>(
        core: &Arc<Core>,
        to: Result<NodeId>,
        receiver: Option<Arc<Handle>>,
        entry: Option<&'static FunctionEntry>,
        name: &'static str,
        own_timeout: Option<Duration>,
        arguments: &A,
    ) -> Self {
        let name = FunctionName::ours(name);
        let encoded = encode::<A>(core, to.as_ref().ok().copied(), &name, |codec| {
            codec.encode(arguments)
        });
        Self::with_encoded(core, to, receiver, entry, name, own_timeout, encoded)
    }

    /// A call of a function that is named as another language does.
    #[track_caller]
    pub(super) fn foreign<A: Serialize + 'static>(
        core: &Arc<Core>,
        to: Result<NodeId>,
        receiver: Option<Arc<Handle>>,
        function: FunctionRef,
        name: FunctionName,
        arguments: &A,
    ) -> Self {
        let encoded = encode::<A>(core, to.as_ref().ok().copied(), &name, |codec| {
            codec.of_foreigners().encode(arguments)
        });
        let mut call = Self::with_encoded(core, to, receiver, None, name, None, encoded);
        if let CallStage::Built(built) = &mut call.stage {
            built.foreign = Some(Box::new(function));
        }
        call
    }

    #[track_caller]
    #[inline]
    fn with_encoded(
        core: &Arc<Core>,
        to: Result<NodeId>,
        receiver: Option<Arc<Handle>>,
        entry: Option<&'static FunctionEntry>,
        name: FunctionName,
        own_timeout: Option<Duration>,
        encoded: Result<value_scope::Encoded>,
    ) -> Self {
        Self::built(Built {
            to: to.map(|to| (Arc::clone(core), to)),
            entry,
            foreign: None,
            name,
            receiver,
            encoded,
            context: current::context_of(core),
            timeout: Timeout::Default,
            own_timeout,
            location: Location::caller(),
        })
    }

    /// A call that is built when it is made.
    pub(super) fn deferred(
        name: FunctionName,
        build: impl FnOnce() -> Self + Send + Sync + 'static,
    ) -> Self {
        Self::at(CallStage::Deferred(Deferred {
            name,
            build: Box::new(build),
            timeout: None,
        }))
    }

    /// One that has been made.
    pub(super) fn made(pending: Pending<T>) -> Self {
        Self::at(CallStage::Made(pending))
    }

    /// A call that fetches the value behind a reference.
    #[track_caller]
    pub(crate) fn fetch(handle: &Arc<Handle>) -> Self {
        match handle.held() {
            Ok(held) => Self::built(Built {
                to: Ok((Arc::clone(&held.core), held.owner)),
                entry: None,
                foreign: foreign_fetch(held).map(Box::new),
                name: FETCH,
                receiver: Some(Arc::clone(handle)),
                encoded: Ok(value_scope::Encoded::default()),
                context: current::context_of(&held.core),
                timeout: Timeout::Default,
                own_timeout: None,
                location: Location::caller(),
            }),
            Err(error) => Self::broken(FETCH, error),
        }
    }

    #[track_caller]
    pub(super) fn broken(name: FunctionName, error: Error) -> Self {
        Self::built(Built {
            to: Err(error),
            entry: None,
            foreign: None,
            name,
            receiver: None,
            encoded: Ok(value_scope::Encoded::default()),
            context: None,
            timeout: Timeout::Default,
            own_timeout: None,
            location: Location::caller(),
        })
    }
}

/// How a value is fetched of whose type nothing is known: as another language has it.
fn foreign_fetch(held: &Held) -> Option<FunctionRef> {
    let is_foreign = held.fingerprint == FOREIGN_VALUE;
    match held.core.agent().codec() {
        Codec::Postcard if is_foreign => Some(FunctionRef {
            id: FETCHED,
            signature: BY_METHOD,
            on_first_reference: false,
        }),
        _ => None,
    }
}

impl<T, E> Call<T, E> {
    /// The same, under this name in errors and traces.
    pub(super) fn named(mut self, name: FunctionName) -> Self {
        if let CallStage::Built(built) = &mut self.stage {
            built.name = name;
        }
        self
    }

    /// The call without the type of its function's errors, for who keeps calls of several functions. It is the
    /// same call: its error can be had as what it is with [`Error::downcast`].
    ///
    /// ```
    /// use farref::Call;
    ///
    /// #[farref::remote]
    /// async fn parse(text: String) -> Result<u32, std::num::ParseIntError> {
    ///     text.parse()
    /// }
    ///
    /// #[farref::remote]
    /// async fn length(text: String) -> u32 {
    ///     text.len() as u32
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let text = "42".to_owned();
    /// let calls: [Call<u32>; 2] = [parse::on(&peer, text.clone()).untyped(), length::on(&peer, text)];
    /// let mut sum = 0;
    /// for call in calls {
    ///     sum += call.await?;
    /// }
    /// assert_eq!(sum, 44);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn untyped(self) -> Call<T> {
        Call::at(self.stage)
    }

    /// Sets the time limit of this call, from when it is made until its result is here: waiting in
    /// queues, the way there, the function and the way back together. `None` is unlimited.
    ///
    /// A call made inside a remote function never outlives the limit of the call that the function
    /// works for.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    ///
    /// #[farref::remote]
    /// async fn answer(ever: bool) -> u64 {
    ///     if ever { 42 } else { std::future::pending().await }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let limit = Duration::from_millis(20);
    /// let late = answer::on(&peer, false).timeout(limit).await;
    /// assert!(matches!(late, Err(Error::Timeout { limit: given, .. }) if given == limit));
    ///
    /// assert_eq!(answer::on(&peer, true).timeout(None).await?, 42); // as long as it takes
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        match &mut self.stage {
            CallStage::Built(built) => built.timeout = Timeout::Set(limit.into()),
            CallStage::Deferred(deferred) => deferred.timeout = Some(limit.into()),
            CallStage::Made(_) | CallStage::Taken => {}
        }
        self
    }
}

impl Built {
    /// How the call names what it calls; none fetches the receiver's value.
    #[inline]
    fn function(&self) -> Option<FunctionRef> {
        match self.entry {
            Some(entry) => Some(entry.reference()),
            None => self.foreign.as_deref().copied(),
        }
    }

    fn limit(&self, core: &Core) -> Option<Duration> {
        match (self.timeout, self.own_timeout) {
            (Timeout::Set(limit), _) => limit,
            (Timeout::Default, Some(Duration::MAX)) => None,
            (Timeout::Default, Some(own)) => Some(own),
            (Timeout::Default, None) => core.settings.call_timeout,
        }
    }

    /// Makes the call. What it sends is taken out.
    fn make<T>(&mut self, awaited: bool) -> Pending<T> {
        let state = match self.prepare(awaited) {
            Ok(prepared) => prepared.begin(),
            Err(error) => PendingState::Failed(error),
        };
        Pending::new(self.name.clone(), self.entry, state)
    }

    /// All that making the call takes. `awaited`: whoever makes it goes on only when it is answered.
    fn prepare(&mut self, awaited: bool) -> Result<Prepared> {
        let (core, to) = self.to.clone()?;
        let began = Instant::now();
        let limit = self.limit(&core);
        let own = limit.and_then(|limit| began.checked_add(limit));
        let (current, context) = Current::and_context_of(&core);
        let context = context.or(self.context);
        let inherited = current.as_ref().and_then(|current| current.deadline);
        let (deadline, remaining) = match (own, inherited) {
            (own, Some(inherited)) if own.is_none_or(|own| inherited < own) => {
                let left = inherited.saturating_duration_since(began);
                (Some(inherited), Some(left))
            }
            (None, _) => (None, None),
            (own, _) => (own, limit),
        };
        let trace = trace::of_call(current.as_deref());
        tracing::trace!(
            worker = %core.name,
            function = self.name.as_str(),
            location = %self.location,
            trace = trace.trace,
            parent = trace.span,
            "call"
        );
        // Should the program panic in what follows, there is no second time.
        let mut encoded = std::mem::replace(&mut self.encoded, Err(awaited_before()))?;
        encoded.made_in(&core, context, to);
        let request = CallSpec {
            function: self.function(),
            name: self.name.clone(),
            receiver: self.receiver.take(),
            encoded,
            deadline,
            now: began,
            remaining,
            trace,
            callers: match &current {
                Some(current) if awaited && Arc::ptr_eq(&current.core, &core) => {
                    current.chain.callers()
                }
                _ => Vec::new(),
            },
            context,
        };
        Ok(Prepared {
            core,
            to,
            request,
            deadline,
            began,
            timer: None,
        })
    }
}

impl<T: Returned, E> Call<T, E> {
    /// Makes the call and brings what the function returned, its own error included: the outer `Result` says
    /// whether farref could do its part, the inner one is the function's.
    ///
    /// It is awaited as the call is, or [waited for](Outcome::wait). A call that has been started has the same
    /// ([`Pending::result`]). Who does not care writes `call.await?`, and who handles some of the errors and hands the rest on
    /// asks the error of that ([`Error::downcast_ref`]).
    ///
    /// The error's type is the one in the function's signature: of an alias that leaves it out, such as
    /// `farref::Result<u32>`, await the call and ask its error ([`Error::downcast`]). It has to implement serde's
    /// traits, as the value's does, and an error takes 64 KiB at most
    /// and carries no references: one that does is an [`Error::Codec`] here, and its text where it is not asked
    /// for. A panic is an [`Error::Remote`], and so is the failure of the constructor of the value that the call
    /// is on.
    ///
    /// ```
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
    /// enum Refusal {
    ///     #[error("there are only {left} left")]
    ///     TooFew { left: u32 },
    ///     #[error("we are closed")]
    ///     Closed,
    /// }
    ///
    /// #[farref::remote]
    /// async fn buy(n: u32) -> Result<u32, Refusal> {
    ///     match n {
    ///         0 => Err(Refusal::Closed),
    ///         1..=3 => Ok(10 * n),
    ///         _ => Err(Refusal::TooFew { left: 3 }),
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let shop = cluster.worker(0).peer("worker1")?;
    ///
    /// let price = match buy::on(&shop, 5).result().await? {
    ///     Ok(price) => price,
    ///     Err(Refusal::TooFew { left }) => buy::on(&shop, left).await?, // anything else is farref's
    ///     Err(Refusal::Closed) => 0,
    /// };
    /// assert_eq!(price, 30);
    ///
    /// let pending = buy::on(&shop, 0).start();
    /// assert_eq!(pending.result().await?, Err(Refusal::Closed));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn result(self) -> Outcome<T, E>
    where
        E: ReturnedError,
    {
        Outcome::of(self.untyped())
    }

    /// Makes the call now; the result can be awaited later. Dropping what this returns cancels it.
    ///
    /// If the peer has as many calls as it accepts, this one waits for its turn, up to
    /// [`max_waiting_calls_per_peer`](crate::WorkerBuilder::max_waiting_calls_per_peer) of them; beyond
    /// that it fails with [`Error::TooManyCalls`]. A call that is awaited right away waits instead.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn square(x: u64) -> u64 {
    ///     x * x
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// // All of them are under way before the first is awaited.
    /// let pending: Vec<_> = (0..10).map(|x| square::on(&peer, x).start()).collect();
    /// let mut sum = 0;
    /// for square in pending {
    ///     sum += square.await?;
    /// }
    /// assert_eq!(sum, 285);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn start(self) -> Pending<T, E> {
        let mut built = match self.stage.build() {
            CallStage::Built(built) => built,
            CallStage::Made(pending) => return pending.typed(),
            CallStage::Deferred(_) | CallStage::Taken => {
                return Pending::new(FunctionName::UNKNOWN, None, PendingState::Done).typed();
            }
        };
        let mut pending: Pending<T> = built.make(false);
        if let PendingState::NoPlace(prepared, _) = &pending.state {
            let Prepared { core, to, .. } = &**prepared;
            let error = core.too_many_calls(*to, pending.name.clone());
            pending.state = PendingState::Failed(error);
        }
        pending.typed()
    }

    /// Makes the call and blocks this thread until the result is here. For code that is not async:
    /// plain remote functions, threads, `main`.
    ///
    /// # Panics
    ///
    /// Inside async code, where it would keep other tasks from running. Use `.await` there.
    ///
    /// ```
    /// use farref::Worker;
    ///
    /// #[farref::remote]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// // A plain function runs on a thread that may block.
    /// #[farref::remote]
    /// fn sum(numbers: Vec<i64>) -> farref::Result<i64> {
    ///     let caller = Worker::caller().expect("inside of a remote function");
    ///     numbers.into_iter().try_fold(0, |sum, number| add::on(&caller, sum, number).wait())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert_eq!(sum::on(&peer, vec![1, 2, 3]).await?, 6);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn wait(self) -> Result<T> {
        self.block_on(|call| call)?
    }
}

// A future itself, and not only something that becomes one: the compiler then says what is the matter
// with a type that cannot come back.
impl<T: Returned, E> Future for Call<T, E> {
    type Output = Result<T>;

    /// Makes the call, the first time.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        match self.get_mut().make() {
            Some(pending) => Pin::new(pending).poll(context),
            None => Poll::Ready(Err(awaited_before())),
        }
    }
}

impl<T, E> Call<T, E> {
    /// Makes the call and blocks this thread until what is awaited of it is here.
    #[track_caller]
    pub(super) fn block_on<F: Future>(
        mut self,
        awaited: impl FnOnce(Self) -> F,
    ) -> Result<F::Output> {
        let runtime = match self.make().map(|pending| &pending.state) {
            Some(PendingState::Begun(begun)) => begun.core.runtime.clone(),
            Some(PendingState::NoPlace(prepared, _)) => prepared.core.runtime.clone(),
            Some(PendingState::Failed(error)) => return Err(error.clone()),
            Some(PendingState::Done) | None => return Err(awaited_before()),
        };
        let _waiting = BlockedThread::begin();
        Ok(runtime.block_on(awaited(self)))
    }

    /// Makes the call, the first time. None if it can no longer be made.
    pub(super) fn make(&mut self) -> Option<&mut Pending<T>> {
        if let CallStage::Deferred(_) = self.stage {
            self.stage = std::mem::replace(&mut self.stage, CallStage::Taken).build();
        }
        if let CallStage::Built(built) = &mut self.stage {
            self.stage = CallStage::Made(built.make(true));
        }
        match &mut self.stage {
            CallStage::Made(pending) => Some(pending),
            CallStage::Deferred(_) | CallStage::Built(_) | CallStage::Taken => None,
        }
    }
}

impl<T, E> fmt::Debug for Call<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Call");
        match &self.stage {
            CallStage::Built(built) => debug
                .field("function", &built.name)
                .field("location", &built.location),
            CallStage::Deferred(deferred) => debug.field("function", &deferred.name),
            CallStage::Made(pending) => debug.field("function", &pending.name),
            CallStage::Taken => &mut debug,
        };
        debug.finish_non_exhaustive()
    }
}

impl<T> RRef<T> {
    /// Copies the value over.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn primes(below: u32) -> Vec<u32> {
    ///     (2..below).filter(|n| (2..*n).all(|d| n % d > 0)).collect()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let there = primes::on(&peer, 12).remote();
    /// let here: Vec<u32> = there.to_here().await?;
    /// assert_eq!(here, [2, 3, 5, 7, 11]);
    /// # drop(there);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn to_here(&self) -> Call<T> {
        Call::fetch(&self.handle)
    }
}
