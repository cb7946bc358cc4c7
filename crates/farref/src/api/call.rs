//! A call: built, then awaited, started, or left there.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use farref_proto::{ContextId, NodeId};
use serde::Serialize;

use super::peer::Peer;
use super::pending::{Pending, PendingState, Prepared, Returned, awaited_before};
use super::rref::RRef;
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::fingerprint;
use crate::runtime::current::{self, Current};
use crate::runtime::function::Function;
use crate::runtime::handle::Handle;
use crate::runtime::registry::FunctionEntry;
use crate::runtime::{self, CallSpec, Core, trace, value_scope};
use crate::support::blocking_pool::BlockedThread;
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
#[must_use = "a call does nothing until it is awaited, started, or left there with `remote()`"]
pub struct Call<T> {
    stage: CallStage<T>,
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
    pub(crate) fn on_worker<F>(to: &Peer, arguments: &F::Arguments) -> Self
    where
        F: Function<Output = T, Access = NoReceiver>,
    {
        let life = to.life(FunctionName::ours(F::NAME));
        Self::new::<F>(&to.core, life, None, arguments)
    }

    #[track_caller]
    pub(crate) fn on_value<F: Function<Output = T>>(
        on: &RRef<<F::Access as Access>::Target>,
        arguments: &F::Arguments,
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
        arguments: &F::Arguments,
    ) -> Self {
        let entry = core.registry.entry::<F>();
        Self::with_arguments(core, to, receiver, entry, F::NAME, F::TIMEOUT, arguments)
    }

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
        let entry = self.entry.ok_or(Misuse::FetchedInPlace)?;
        let deadline = match self.timeout {
            Timeout::Set(Some(limit)) => now.checked_add(limit),
            // R6: how long the value takes is nobody's business until it is used.
            Timeout::Set(None) | Timeout::Default => None,
        };
        let (core, to) = self.to?;
        let (current, context) = Current::and_context_of(&core);
        let context = context.or(self.context);
        let mut encoded = self.encoded?;
        encoded.made_in(&core, context, to);
        let request = CallSpec {
            function: Some(entry.reference()),
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
        core.create(to, request, entry, fingerprint, location)
    }
}

/// Writes the arguments of a call.
fn encode<A: Serialize + 'static>(
    core: &Arc<Core>,
    name: &FunctionName,
    arguments: &A,
) -> Result<value_scope::Encoded> {
    let codec = core.agent().codec();
    let encoded = value_scope::write_typed::<A>(core, || codec.encode(arguments));
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
    fn built(built: Built) -> Self {
        Self {
            stage: CallStage::Built(built),
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
        let encoded = encode(core, &name, arguments);
        Self::built(Built {
            to: to.map(|to| (Arc::clone(core), to)),
            entry,
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
        Self {
            stage: CallStage::Deferred(Deferred {
                name,
                build: Box::new(build),
                timeout: None,
            }),
        }
    }

    /// The same, under this name in errors and traces.
    pub(super) fn named(mut self, name: FunctionName) -> Self {
        if let CallStage::Built(built) = &mut self.stage {
            built.name = name;
        }
        self
    }

    /// A call that fetches the value behind a reference.
    #[track_caller]
    pub(crate) fn fetch(handle: &Arc<Handle>) -> Self {
        match handle.held() {
            Ok(held) => Self::built(Built {
                to: Ok((Arc::clone(&held.core), held.owner)),
                entry: None,
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
            name,
            receiver: None,
            encoded: Ok(value_scope::Encoded::default()),
            context: None,
            timeout: Timeout::Default,
            own_timeout: None,
            location: Location::caller(),
        })
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
        Pending {
            name: self.name.clone(),
            entry: self.entry,
            state: match self.prepare(awaited) {
                Ok(prepared) => prepared.begin(),
                Err(error) => PendingState::Failed(error),
            },
            result: PhantomData,
        }
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
            function: self.entry.map(FunctionEntry::reference),
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

impl<T: Returned> Call<T> {
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
    pub fn start(self) -> Pending<T> {
        let mut built = match self.stage.build() {
            CallStage::Built(built) => built,
            CallStage::Made(pending) => return pending,
            CallStage::Deferred(_) | CallStage::Taken => {
                return Pending {
                    name: FunctionName::UNKNOWN,
                    entry: None,
                    state: PendingState::Done,
                    result: PhantomData,
                };
            }
        };
        let mut pending = built.make(false);
        if let PendingState::NoPlace(prepared, _) = &pending.state {
            let Prepared { core, to, .. } = &**prepared;
            let error = core.too_many_calls(*to, pending.name.clone());
            pending.state = PendingState::Failed(error);
        }
        pending
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
        let CallStage::Built(mut built) = self.stage.build() else {
            return Err(awaited_before());
        };
        let runtime = match &built.to {
            Ok((core, _)) => core.runtime.clone(),
            Err(error) => return Err(error.clone()),
        };
        let pending = built.make(true);
        if let PendingState::Failed(error) = &pending.state {
            return Err(error.clone());
        }
        let _waiting = BlockedThread::begin();
        runtime.block_on(pending)
    }
}

// A future itself, and not only something that becomes one: the compiler then says what is the matter
// with a type that cannot come back.
impl<T: Returned> Future for Call<T> {
    type Output = Result<T>;

    /// Makes the call, the first time.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        if let CallStage::Deferred(_) = this.stage {
            this.stage = std::mem::replace(&mut this.stage, CallStage::Taken).build();
        }
        if let CallStage::Built(built) = &mut this.stage {
            this.stage = CallStage::Made(built.make(true));
        }
        match &mut this.stage {
            CallStage::Made(pending) => Pin::new(pending).poll(context),
            CallStage::Deferred(_) | CallStage::Built(_) | CallStage::Taken => {
                Poll::Ready(Err(awaited_before()))
            }
        }
    }
}

impl<T> fmt::Debug for Call<T> {
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
