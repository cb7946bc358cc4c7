//! What can go wrong, where, and whose fault it is.
//!
//! | whose | variants |
//! | --- | --- |
//! | the remote function's | [`Error::Remote`] |
//! | what happened to the group | [`Error::PeerLost`], [`Error::OwnerLost`], [`Error::CreatorLost`], [`Error::ContextLost`], [`Error::Evicted`], [`Error::Minority`] |
//! | time's | [`Error::Timeout`] |
//! | two builds that disagree | [`Error::NoSuchFunction`], [`Error::SignatureMismatch`], [`Error::TypeMismatch`] |
//! | calls that wait for each other | [`Error::Deadlock`] |
//! | whoever says who may call what | [`Error::NotAuthorized`] |
//! | this program's | the others |
//!
//! If a value was never made because its constructor failed, every use of its reference fails as the
//! constructor did, and the error names the constructor and its worker, not what was tried with the
//! reference.

mod bind;
mod config;
mod misuse;
mod raised;
mod reference;
mod remote;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;

pub use bind::BindError;
pub use config::ConfigError;
pub use misuse::{MemberState, Misuse};
pub use raised::ErrorValue;
pub(crate) use raised::Unreadable;
pub use reference::ReferenceError;
pub(crate) use remote::THE_GROUP;
pub use remote::{FunctionName, RemoteError};
pub use tls::TlsError;

use crate::codec::CodecError;
use crate::fingerprint::signature::Signature;
use crate::rendezvous::RendezvousError;
use crate::report::leaks::LeakReport;

/// A result whose error is farref's [`enum@Error`].
///
/// Remote functions use it, and so does what calls them: `?` hands an error on.
///
/// ```
/// use farref::{Peer, Worker};
///
/// #[farref::remote]
/// async fn double(x: i64) -> i64 {
///     x * 2
/// }
///
/// #[farref::remote]
/// async fn double_twice(x: i64) -> farref::Result<i64> {
///     let me: Peer = Worker::caller().expect("inside of a remote function");
///     double::on(&me, double(x).await).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// assert_eq!(double_twice::on(&peer, 3).await?, 12);
/// # cluster.shutdown().await
/// # }
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something did not work. Cheap to clone: one cause may fail many calls.
///
/// ```
/// use farref::Error;
///
/// #[farref::remote]
/// async fn divide(a: i64, b: i64) -> Result<i64, String> {
///     a.checked_div(b).ok_or_else(|| "division by zero".to_owned())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
///
/// // The function failed: its worker is well, and the same call would fail again.
/// match divide::on(&peer, 1, 0).await {
///     Err(Error::Remote(error)) => assert_eq!(error.message(), "division by zero"),
///     other => panic!("{other:?}"),
/// }
///
/// // The worker failed: another one may do better.
/// cluster.crash(1).await;
/// match divide::on(&peer, 6, 3).await {
///     Err(Error::PeerLost { peer, function, .. }) => {
///         assert_eq!(&*peer, "worker1");
///         assert!(function.as_str().ends_with("divide"));
///     }
///     other => panic!("{other:?}"),
/// }
/// assert_eq!(divide::on(&me.me(), 6, 3).await?, 2);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The remote function returned an error or panicked. The worker that ran it lives on.
    #[error(transparent)]
    Remote(#[from] RemoteError),

    /// The peer died, left or was cut off before it answered. Whether the function ran cannot be
    /// known; it was not and will not be run a second time. Of a stream, there is no more.
    #[error("{}{}", .function.lost_with(.peer), because(.cause.as_deref()))]
    PeerLost {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
        /// Why it and this worker could not connect, where one of them does not take the other: another token, a
        /// certificate that does not count there, or none.
        cause: Option<Arc<RendezvousError>>,
    },

    /// The worker that had the value is gone, and the value with it.
    #[error("worker `{owner}`, which had the value, is gone: make the value anew")]
    OwnerLost {
        /// Who had it.
        owner: Arc<str>,
    },

    /// The worker that asked for the value died before its owner got to know of it. There never was
    /// a value.
    #[error("the value was never made: worker `{creator}` died before its request arrived")]
    CreatorLost {
        /// Who asked for it.
        creator: Arc<str>,
    },

    /// A worker that took part in the autograd context is gone: what the context has is incomplete.
    #[error(
        "worker `{peer}`, which took part in the context, is gone: start the step again in a new context"
    )]
    ContextLost {
        /// Who is gone.
        peer: Arc<str>,
    },

    /// The autograd context has been released.
    #[error("the context has been released: make the call inside of a live one")]
    ContextReleased,

    /// The call took longer than it was allowed to. It has been cancelled.
    #[error("{}", .function.late_on(.peer, *.limit))]
    Timeout {
        /// The peer's name. Of a lookup in the whole group, the first who did not say whether it has the name; `any of the
        /// group` if all have, and nobody has it.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
        /// The time it was given; what was left of the caller's own if that was less. Of a constructor,
        /// whoever uses its value learns what was left of it when the call reached the value's owner.
        limit: Duration,
    },

    /// The call was on a value that one of its own callers uses, which waits for the call: it would have
    /// waited for ever. Nothing was run.
    ///
    /// ```
    /// use farref::{Error, RRef};
    ///
    /// struct Counter(u64);
    ///
    /// #[farref::remote]
    /// impl Counter {
    ///     pub async fn new() -> Self {
    ///         Self(0)
    ///     }
    ///
    ///     pub async fn add(&mut self, n: u64) {
    ///         self.0 += n;
    ///     }
    ///
    ///     pub async fn add_twice(&mut self, me: RRef<Counter>) -> farref::Result<bool> {
    ///         // `add` would wait until `add_twice` has ended. (`self.add(1).await` would do.)
    ///         let refused = me.add(1).await;
    ///         Ok(matches!(refused, Err(Error::Deadlock { .. })))
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let counter = Counter::new_on(&cluster.worker(0).peer("worker1")?).remote();
    /// assert!(counter.add_twice(counter.clone()).await?);
    /// # drop(counter);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[error(
        "{function} on worker `{peer}` would have waited for ever for a value that one of its own callers \
         uses ({}): use the value directly there, or `start()` the call and let that caller end",
        .cycle.join(" -> ")
    )]
    Deadlock {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
        /// The functions from the one that uses the value to the one that was called.
        cycle: Vec<String>,
    },

    /// The peer does not let the caller call that function ([`authorize`](crate::WorkerBuilder::authorize)). Nothing was
    /// run.
    #[error(
        "{function} was refused: worker `{peer}` does not let the worker call it that did; allow it in \
         `WorkerBuilder::authorize` there, or make the call on a worker that may"
    )]
    NotAuthorized {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
    },

    /// Too many calls wait for the peer, and this one could not wait to be made
    /// ([`start`](crate::Call::start), [`remote`](crate::Call::remote)).
    #[error(
        "too many calls, or more than 1 GiB of their arguments, wait for worker `{peer}`, {function} was not made: \
         await calls as you make them; how many may wait is `max_waiting_calls_per_peer`"
    )]
    TooManyCalls {
        /// The peer's name.
        peer: Arc<str>,
        /// What was to be called.
        function: FunctionName,
    },

    /// The call was cancelled on the way.
    #[error("{function} on worker `{peer}` was cancelled")]
    Cancelled {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
    },

    /// The peer has no function of that name.
    #[error(
        "worker `{peer}` has no function {function}{}: build both workers from the same source, or give \
         the function a name with #[farref::remote(name = \"..\")]",
        suggestion(.similar)
    )]
    NoSuchFunction {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
        /// A function that the peer has and that ends alike.
        similar: Option<String>,
    },

    /// The two workers were built with different signatures of one function.
    #[error(
        "the signature of {function} differs: here it is `{ours}`, on worker `{peer}` it is \
         `{theirs}`; {}: build both from the same source",
        .ours.difference(.theirs)
    )]
    SignatureMismatch {
        /// The peer's name.
        peer: Arc<str>,
        /// What was called.
        function: FunctionName,
        /// What this worker believes.
        ours: Box<Signature>,
        /// What the peer has.
        theirs: Box<Signature>,
    },

    /// A reference leads to a value of another type than its holder believes.
    #[error("{0}")]
    TypeMismatch(String),

    /// Arguments, a result, a value or a function's error could not be written or read.
    #[error("{what} of {function} cannot be {action}: {reason}")]
    Codec {
        /// Which of these.
        what: &'static str,
        /// What was called.
        function: FunctionName,
        /// Written or read.
        action: &'static str,
        /// Why.
        reason: CodecError,
    },

    /// The value's type cannot be sent; it can only be used where it is.
    #[error(
        "a `{type_name}` cannot be sent because it is not `Serialize`: derive it, or use the value \
         where it is with methods or `.remote()`"
    )]
    NotSerializable {
        /// The type.
        type_name: String,
    },

    /// The value is on another worker.
    #[error("the value is on worker `{owner}`: copy it with `to_here()`, or call a method on it")]
    NotOwner {
        /// Who has it.
        owner: Arc<str>,
    },

    /// There is no worker of that name in the group.
    #[error("{}; there are: {}", nobody(.name, *.waited), .known.join(", "))]
    NoSuchPeer {
        /// The name.
        name: String,
        /// Who is there.
        known: Vec<String>,
        /// How long [`wait_for_peer`](crate::Worker::wait_for_peer) waited for it, if that did.
        waited: Option<Duration>,
    },

    /// A reference was used in a way that cannot work.
    #[error(transparent)]
    Reference(#[from] ReferenceError),

    /// A reference or a peer of one worker was used in a call of another worker in the same process.
    #[error(
        "a reference or peer held by worker `{held_by}`{which} cannot be sent by worker `{sent_by}`: send it with a \
         call of the worker that holds it, or get it anew"
    )]
    ForeignReference {
        /// Whose it is.
        held_by: Arc<str>,
        /// Which worker that is, if both have the same name.
        which: &'static str,
        /// Whose call it is.
        sent_by: Arc<str>,
    },

    /// The worker has been shut down, or is not a member yet.
    #[error("worker `{name}` is not a member of the group (any more): {state}")]
    NotMember {
        /// This worker's name.
        name: Arc<str>,
        /// Where it is in its membership.
        state: MemberState,
    },

    /// The others have declared this worker dead, for instance because it was stopped for longer than
    /// `peer_timeout`. What it owned and held is lost; it may join again.
    #[error(
        "the group has declared worker `{name}` dead: it was silent for too long or misbehaved; \
         start it again to join anew, or raise `peer_timeout`"
    )]
    Evicted {
        /// This worker's name.
        name: Arc<str>,
    },

    /// This worker sees no majority of its group any more, and [needs one](crate::WorkerBuilder::require_majority): it has
    /// given the group up. What it owned and held is lost; it may join again.
    #[error(
        "worker `{name}` sees {left} of the {of} workers of its group, which is no majority, and has given it up \
         (`require_majority`); when the network is whole again, start it again to join anew"
    )]
    Minority {
        /// This worker's name.
        name: Arc<str>,
        /// How many are left, this one among them.
        left: usize,
        /// How many there were.
        of: usize,
    },

    /// The group did not come together.
    #[error(transparent)]
    Rendezvous(Arc<RendezvousError>),

    /// This worker could not listen.
    #[error(transparent)]
    Bind(Arc<BindError>),

    /// A setting is missing or makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),

    /// The program used something in a way that cannot work.
    #[error(transparent)]
    Misuse(#[from] Misuse),

    /// Two functions have the same name.
    #[error(
        "two remote functions are called `{name}`: {first} and {second}; \
         give one another name with #[farref::remote(name = \"..\")], or #[farref::remote(python = \"..\")] \
         if that is the name in Python"
    )]
    DuplicateFunction {
        /// The name.
        name: &'static str,
        /// One of them: how it is declared, and where.
        first: String,
        /// The other.
        second: String,
    },

    /// The graceful shutdown could not be completed in time.
    #[error(
        "the shutdown was not complete after {waited:?}; still waiting for: {}",
        .waiting_for.join("; ")
    )]
    ShutdownTimeout {
        /// How long was waited.
        waited: Duration,
        /// Who was not done, and what it had left.
        waiting_for: Vec<String>,
        /// References that were still held on this worker.
        leaks: LeakReport,
    },

    /// References were still held when everything else was done (only if the worker was told to
    /// treat that as an error).
    #[error("references were never dropped:\n{0}")]
    Leaked(LeakReport),
}

impl Error {
    /// The error that the remote function returned, as what it is; or this error again, if it is anything else, or did
    /// not travel ([`Call::result`](crate::Call::result) says why not).
    ///
    /// Where the function handed on with `?` what another one raised, as a `farref::Error`, in an `anyhow::Error`, or as
    /// the [source](std::error::Error::source) of an error that is not sent itself, that is what is found: wherever
    /// the `Error` went since. (The source of an error that is `#[error(transparent)]` cannot be seen; `#[source]` can.) That
    /// includes the failure of a function whose value was to stay ([`remote`](crate::Call::remote)). In an
    /// `anyhow::Error`, look for the `farref::Error` first: `error.downcast::<farref::Error>()?.downcast::<E>()`.
    ///
    /// ```
    /// use farref::{Error, RRef, Worker};
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
    /// #[error("there are only {0} left")]
    /// struct TooFew(u32);
    ///
    /// #[farref::remote]
    /// async fn take(n: u32) -> Result<u32, TooFew> {
    ///     if n > 3 { Err(TooFew(3)) } else { Ok(n) }
    /// }
    ///
    /// // It does not care why.
    /// #[farref::remote]
    /// async fn take_two(n: u32) -> farref::Result<u32> {
    ///     let caller = Worker::caller().expect("inside of a remote function");
    ///     Ok(take::on(&caller, n).await? + take::on(&caller, n).await?)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let error = take_two::on(&peer, 5).await.unwrap_err();
    /// assert_eq!(error.downcast::<TooFew>().unwrap(), TooFew(3));
    ///
    /// // A value that was never made.
    /// let taken: RRef<u32> = take::on(&peer, 5).remote();
    /// let error = taken.to_here().await.unwrap_err();
    /// assert_eq!(error.downcast::<TooFew>().unwrap(), TooFew(3));
    ///
    /// // Anything else stays what it was.
    /// let error: Error = Error::ContextReleased.downcast::<TooFew>().unwrap_err();
    /// assert!(matches!(error, Error::ContextReleased));
    /// # drop(taken);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn downcast<E: DeserializeOwned + 'static>(self) -> std::result::Result<E, Self> {
        let value = match &self {
            Self::Remote(remote) => remote.value.as_deref(),
            _ => None,
        };
        match value.map(ErrorValue::read) {
            Some(Ok(error)) => Ok(error),
            Some(Err(_)) | None => Err(self),
        }
    }

    /// The same for who only looks at it: handles some of the function's errors, say, and hands the rest on as they came.
    ///
    /// ```
    /// use farref::Worker;
    /// use serde::{Deserialize, Serialize};
    ///
    /// #[derive(PartialEq, Debug, Serialize, Deserialize, thiserror::Error)]
    /// enum Stock {
    ///     #[error("there are only {0} left")]
    ///     TooFew(u32),
    ///     #[error("it is closed")]
    ///     Closed,
    /// }
    ///
    /// #[farref::remote]
    /// async fn take(n: u32) -> Result<u32, Stock> {
    ///     match n {
    ///         0 => Err(Stock::Closed),
    ///         1..=3 => Ok(n),
    ///         _ => Err(Stock::TooFew(3)),
    ///     }
    /// }
    ///
    /// // As many as there are, if there are any.
    /// #[farref::remote]
    /// async fn take_up_to(n: u32) -> farref::Result<u32> {
    ///     let caller = Worker::caller().expect("inside of a remote function");
    ///     match take::on(&caller, n).await {
    ///         Err(error) => match error.downcast_ref() {
    ///             Some(&Stock::TooFew(left)) => take::on(&caller, left).await,
    ///             _ => Err(error), // as it is
    ///         },
    ///         taken => taken,
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(take_up_to::on(&peer, 9).await?, 3);
    /// let error = take_up_to::on(&peer, 0).await.unwrap_err();
    /// assert_eq!(error.downcast_ref(), Some(&Stock::Closed));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn downcast_ref<E: DeserializeOwned + Send + Sync + 'static>(&self) -> Option<&E> {
        match self {
            Self::Remote(remote) => remote.value.as_deref()?.lend(),
            _ => None,
        }
    }
}

impl From<RendezvousError> for Error {
    fn from(error: RendezvousError) -> Self {
        Self::Rendezvous(Arc::new(error))
    }
}

/// So that `?` does where a certificate is read.
///
/// ```no_run
/// fn certificate() -> farref::Result<farref::Tls> {
///     Ok(farref::Tls::from_files("worker.pem", "worker.key", "ca.pem")?)
/// }
/// ```
impl From<TlsError> for Error {
    fn from(error: TlsError) -> Self {
        Self::Config(error.into())
    }
}

impl From<BindError> for Error {
    fn from(error: BindError) -> Self {
        Self::Bind(Arc::new(error))
    }
}

/// What is said of a worker that is not there.
fn nobody(name: &str, waited: Option<Duration>) -> String {
    match waited {
        Some(waited) => format!("no worker called `{name}` came within {waited:?}"),
        None => format!(
            "no worker is called `{name}`, and `wait_for_peer` would wait for one that is yet to join"
        ),
    }
}

/// What is said of a worker that could not be connected with.
fn because(cause: Option<&RendezvousError>) -> String {
    cause.map_or_else(String::new, |cause| {
        format!(". They could not connect: {cause}")
    })
}

fn suggestion(similar: &Option<String>) -> String {
    similar
        .as_ref()
        .map_or_else(String::new, |name| format!(" (but it has `{name}`)"))
}
