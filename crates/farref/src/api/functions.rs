//! Functions that are named at run time.
//!
//! For crates that bring another wire ([`agent`](crate::agent)), whose workers name functions in their own
//! way, and for those that build calls out of others. Programs need none of this: what `#[farref::remote]`
//! generates builds their calls.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle;

use super::call::Call;
use super::peer::Peer;
use super::rref::RRef;
use crate::agent::{Fingerprint, FunctionRef};
use crate::error::{Error, FunctionName, Result};
use crate::fingerprint;
use crate::runtime::context_scope::ContextScope;
use crate::runtime::current::{self, Current};
use crate::runtime::registry::{BY_METHOD, FunctionEntry, Registry};
use crate::support::blocking_pool::BlockedThread;
use crate::support::clock::Instant;

pub use crate::support::blocking_pool::OneAtATime;

pub use super::foreign::{
    ForeignCodec, ForeignHandlers, ForeignType, OwnValues, Waits, call_foreign, call_foreign_method,
};
pub use crate::tables::place::Place;

/// All remote functions of the program.
///
/// ```
/// use farref::functions::Functions;
///
/// #[farref::remote(python = "maths.double")]
/// async fn double(number: i64) -> i64 {
///     2 * number
/// }
///
/// let functions = Functions::of_program()?;
/// let double = functions.by_foreign_name("maths.double").expect("it is above");
/// assert_eq!(functions.by_id(double.reference.id).map(|same| same.name), Some(double.name));
/// assert!(functions.by_foreign_name("maths.triple").is_none());
/// # Ok::<(), farref::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Functions(&'static Registry);

/// What there is to know of a function.
///
/// ```
/// use farref::functions::Functions;
///
/// struct Till(u64);
///
/// #[farref::remote(name = "tools::Till", python = "shop.Till")]
/// impl Till {
///     pub fn new() -> Self {
///         Till(0)
///     }
///
///     pub fn put(&mut self, coins: u64) -> u64 {
///         self.0 += coins;
///         self.0
///     }
/// }
///
/// let functions = Functions::of_program()?;
/// let put = functions.by_name("tools::Till::put").expect("it is above");
/// assert!(put.is_method);
/// assert_eq!(put.foreign_name, Some("shop.Till.put"));
///
/// // To make an object, Python calls its class.
/// let new = functions.by_foreign_name("shop.Till").expect("it is above");
/// assert_eq!((new.name, new.is_method), ("tools::Till::new", false));
/// assert_ne!(new.output, put.output);
/// # Ok::<(), farref::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FunctionInfo {
    /// How a call names it.
    pub reference: FunctionRef,
    /// What it is called.
    pub name: &'static str,
    /// What workers of another system call it.
    pub foreign_name: Option<&'static str>,
    /// Whether it is called on a value.
    pub is_method: bool,
    /// The type that it returns.
    pub output: Fingerprint,
}

impl Functions {
    /// The functions, or what is wrong with them: two that have the same name.
    ///
    /// ```
    /// #[farref::remote(name = "tools::ping")]
    /// async fn ping() {}
    ///
    /// let functions = farref::functions::Functions::of_program()?;
    /// assert!(functions.by_name("tools::ping").is_some());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn of_program() -> Result<Self> {
        Registry::of_program().map(Self)
    }

    /// The function that workers of another system call so: by `#[farref::remote(python = "..")]`.
    ///
    /// ```
    /// #[farref::remote(python = "maths.half")]
    /// async fn half(number: f64) -> f64 {
    ///     number / 2.0
    /// }
    ///
    /// let functions = farref::functions::Functions::of_program()?;
    /// assert!(functions.by_foreign_name("maths.half").is_some());
    /// assert!(functions.by_foreign_name("half").is_none());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_foreign_name(&self, name: &str) -> Option<FunctionInfo> {
        self.0.by_foreign_name(name).map(info)
    }

    /// The function that is called so: its path in the program, or `#[farref::remote(name = "..")]`.
    ///
    /// ```
    /// #[farref::remote(name = "tools::add")]
    /// async fn sum(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// let functions = farref::functions::Functions::of_program()?;
    /// assert_eq!(functions.by_name("tools::add").and_then(|add| add.foreign_name), None);
    /// assert!(functions.by_name("tools::sum").is_none());
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_name(&self, name: &str) -> Option<FunctionInfo> {
        self.by_id(fingerprint::of_name(name))
    }

    /// The function that a call names by this hash. An agent that got a call finds out so what to say on
    /// its wire.
    ///
    /// ```
    /// #[farref::remote(name = "tools::pong")]
    /// async fn pong() {}
    ///
    /// let functions = farref::functions::Functions::of_program()?;
    /// let pong = functions.by_name("tools::pong").expect("it is above");
    /// assert_eq!(functions.by_id(pong.reference.id), Some(pong));
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn by_id(&self, id: u64) -> Option<FunctionInfo> {
        self.0.by_id(id).map(info)
    }

    /// A method by what it is called on a value, whatever type the value turns out to have. For wires whose
    /// calls say no more than that. If the type has no such method, the call fails with
    /// [`Failure::NoSuchFunction`](crate::agent::Failure::NoSuchFunction).
    ///
    /// ```
    /// let functions = farref::functions::Functions::of_program()?;
    /// let put = functions.method("put"); // of a till, of a purse, ..
    /// assert_eq!(put, functions.method("put"));
    /// assert_ne!(put, functions.method("take"));
    /// assert!(functions.by_id(put.id).is_none(), "it is no function by itself");
    /// # Ok::<(), farref::Error>(())
    /// ```
    pub fn method(&self, name: &str) -> FunctionRef {
        FunctionRef {
            id: fingerprint::of_name(name),
            signature: BY_METHOD,
            on_first_reference: false,
        }
    }

    /// Builds a call of a function on a worker. What it returns is up to whoever asks: a value that is not
    /// a `T` is an error when it is read.
    ///
    /// ```
    /// use farref::functions::Functions;
    ///
    /// #[farref::remote(python = "maths.halve")]
    /// async fn halve(number: i64) -> i64 {
    ///     number / 2
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let functions = Functions::of_program()?;
    /// let halve = functions.by_foreign_name("maths.halve").expect("it is above");
    /// assert_eq!(functions.call::<i64>(&peer, &halve, &(42,)).await?, 21);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn call<T>(
        &self,
        on: &Peer,
        function: &FunctionInfo,
        arguments: &(impl Serialize + 'static),
    ) -> Call<T> {
        let name = FunctionName::ours(function.name);
        let core = match on.core() {
            Ok(core) => core,
            Err(error) => return Call::broken(name, error),
        };
        let life = on.life(core, name);
        let entry = core.registry.by_id(function.reference.id);
        Call::with_arguments(core, life, None, entry, function.name, None, arguments)
    }

    /// Builds a call of a method on a far value.
    ///
    /// ```
    /// use farref::functions::Functions;
    ///
    /// pub struct Purse(u64);
    ///
    /// #[farref::remote(python = "shop.Purse")]
    /// impl Purse {
    ///     pub fn new(coins: u64) -> Self {
    ///         Purse(coins)
    ///     }
    ///
    ///     pub fn coins(&self) -> u64 {
    ///         self.0
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let purse = Purse::new_on(&peer, 3).remote();
    /// let functions = Functions::of_program()?;
    /// let coins = functions.by_foreign_name("shop.Purse.coins").expect("it is above");
    /// assert_eq!(functions.call_method::<u64, _>(&purse, &coins, &()).await?, 3);
    /// # drop(purse);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn call_method<T, V: 'static>(
        &self,
        on: &RRef<V>,
        method: &FunctionInfo,
        arguments: &(impl Serialize + 'static),
    ) -> Call<T> {
        let held = match on.handle.held() {
            Ok(held) => held,
            Err(error) => return Call::broken(FunctionName::ours(method.name), error),
        };
        let entry = held.core.registry.by_id(method.reference.id);
        let receiver = Some(Arc::clone(&on.handle));
        let to = Ok(held.owner);
        Call::with_arguments(
            &held.core,
            to,
            receiver,
            entry,
            method.name,
            None,
            arguments,
        )
    }
}

/// A call that is built when it is made, in the same context. For one that needs others to be made first.
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
/// let peer = cluster.worker(0).peer("worker1")?;
/// let call = farref::functions::deferred("my_crate::later", move || square::on(&peer, 4));
/// assert_eq!(call.await?, 16); // built just now
/// # cluster.shutdown().await
/// # }
/// ```
pub fn deferred<T: 'static, E: 'static>(
    name: &'static str,
    build: impl FnOnce() -> Call<T, E> + Send + Sync + 'static,
) -> Call<T, E> {
    let built_in = ContextScope::current();
    let call = Call::deferred(FunctionName::ours(name), move || {
        let call = match built_in {
            // One of another worker is none for its calls.
            Some(scope) if current::context_of(&scope.core).is_none() => scope.enter(build),
            _ => build(),
        };
        call.untyped()
    });
    call.typed()
}

/// A call that cannot be made: whoever awaits it gets the error.
///
/// ```
/// use farref::{Call, Error};
///
/// # #[tokio::main]
/// # async fn main() {
/// let call: Call<u64> = farref::functions::failed("maths.double", Error::ContextReleased);
/// assert!(matches!(call.await, Err(Error::ContextReleased)));
/// # }
/// ```
#[track_caller]
pub fn failed<T>(name: impl Into<String>, error: Error) -> Call<T> {
    Call::broken(FunctionName::theirs(name.into()), error)
}

/// The same call, under another name in errors and traces.
///
/// ```
/// #[farref::remote]
/// async fn refuse() -> Result<(), String> {
///     Err("not today".to_owned())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let call = farref::functions::named(refuse::on(&peer), "shop.open");
/// assert!(call.await.unwrap_err().to_string().contains("shop.open"));
/// # cluster.shutdown().await
/// # }
/// ```
pub fn named<T, E>(call: Call<T, E>, name: impl Into<String>) -> Call<T, E> {
    call.named(FunctionName::theirs(name.into()))
}

/// What code runs for: the call that a remote function works for, its deadline, its trace, its context.
///
/// The runtime knows it of the thread or the task that it runs a function on. Where a function goes on somewhere else, as
/// a coroutine on an event loop of its own, it is taken along.
///
/// ```
/// use std::time::Duration;
///
/// use farref::functions::CallScope;
/// use farref::Worker;
///
/// #[farref::remote]
/// async fn caller_seen_from_another_thread() -> Option<String> {
///     let scope = CallScope::current().expect("inside of a remote function");
///     let thread = std::thread::spawn(move || {
///         assert!(Worker::caller().is_none()); // this thread knows nothing
///         scope.enter(|| Worker::caller().map(|caller| caller.name().to_owned()))
///     });
///     thread.join().expect("no panic")
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// let seen = caller_seen_from_another_thread::on(&peer).await?;
/// assert_eq!(seen.as_deref(), Some("worker0"));
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone)]
pub struct CallScope(Arc<Current>);

impl CallScope {
    /// That of this code, if it runs in a remote function.
    pub fn current() -> Option<Self> {
        Current::get().map(Self)
    }

    /// Whether the result stays with this worker, and a reference to it goes to others. Otherwise it is sent back: a driver
    /// that has to prepare values for that can do it while the function runs.
    pub fn result_stays(&self) -> bool {
        self.0.request().is_none()
    }

    /// Waits until nobody wants the result any more: the call was cancelled, or its time is up. A function whose thread waits for
    /// something can wait for this beside it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use farref::Error;
    /// use farref::functions::{CallScope, block_on};
    ///
    /// #[farref::remote]
    /// fn wait_for_ever() {
    ///     let scope = CallScope::current().expect("in a remote function");
    ///     block_on(&tokio::runtime::Handle::current(), scope.given_up());
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let call = wait_for_ever::on(&peer).timeout(Duration::from_millis(1));
    /// assert!(matches!(call.await, Err(Error::Timeout { .. })));
    /// # cluster.shutdown().await // and no thread is left
    /// # }
    /// ```
    pub async fn given_up(&self) {
        let cancelled = poll_fn(|context| match self.0.signal.watch(context.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        });
        match self.0.deadline {
            Some(at) => drop(tokio::time::timeout_at(at.into(), cancelled).await),
            None => cancelled.await,
        }
    }

    /// Whether the time of the call is up (D3).
    ///
    /// ```
    /// use farref::functions::CallScope;
    ///
    /// #[farref::remote]
    /// fn is_late() -> bool {
    ///     CallScope::current().is_some_and(|scope| scope.is_late())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert!(!is_late::on(&peer).timeout(None).await?);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn is_late(&self) -> bool {
        self.0.is_late()
    }

    /// Runs `f` as part of the remote function.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.enter(f)
    }

    /// Runs `f` as part of no remote function: what it calls has its own time, and goes on when the caller of the function
    /// does not wait any more.
    ///
    /// ```
    /// use farref::Worker;
    /// use farref::functions::CallScope;
    ///
    /// #[farref::remote]
    /// fn callers() -> (bool, bool) {
    ///     (Worker::caller().is_some(), CallScope::outside(|| Worker::caller().is_some()))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(callers::on(&peer).await?, (true, false));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn outside<T>(f: impl FnOnce() -> T) -> T {
        current::enter_nothing(f)
    }
}

impl fmt::Debug for CallScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let function = self.0.entry.map(FunctionEntry::name);
        f.debug_tuple("CallScope").field(&function).finish()
    }
}

/// Blocks this thread until a future is done: [`Call::wait`] for futures of any kind. If it is a thread of plain remote
/// functions, another takes its place meanwhile.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let runtime = tokio::runtime::Handle::current();
/// let waited = std::thread::spawn(move || {
///     farref::functions::block_on(&runtime, async {
///         tokio::time::sleep(Duration::from_millis(1)).await;
///         7
///     })
/// });
/// assert_eq!(tokio::task::block_in_place(|| waited.join()).expect("no panic"), 7);
/// # Ok(())
/// # }
/// ```
pub fn block_on<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _waiting = BlockedThread::begin();
    runtime.block_on(future)
}

/// The same, no longer than `limit`: then it is none, and the future has not been finished.
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let runtime = tokio::runtime::Handle::current();
/// let waited = std::thread::spawn(move || {
///     let never = std::future::pending::<()>();
///     farref::functions::block_on_for(&runtime, never, Duration::from_millis(1))
/// });
/// assert_eq!(tokio::task::block_in_place(|| waited.join()).expect("no panic"), None);
/// # Ok(())
/// # }
/// ```
pub fn block_on_for<F: Future>(runtime: &Handle, future: F, limit: Duration) -> Option<F::Output> {
    thread_local! {
        static UNPARK: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    }
    let _waiting = BlockedThread::begin();
    let _runtime = runtime.enter();
    let until = Instant::now() + limit;
    let mut future = pin!(future);
    // Not a timer of the runtime's, whose thread would be woken to hear of it.
    UNPARK.with(|waker| {
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Some(output);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn info(entry: &FunctionEntry) -> FunctionInfo {
    FunctionInfo {
        reference: entry.reference(),
        name: entry.name(),
        foreign_name: entry.foreign_name(),
        is_method: entry.needs_receiver(),
        output: entry.output(),
    }
}
