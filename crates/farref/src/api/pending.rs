//! Calls that have been made: waiting for a place, for the answer, for the time limit.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use farref_proto::{ContextId, NodeId};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use super::call::Call;
use super::outcome::{Outcome, ReturnedError};
use crate::codec::vectors::{Look, each_in};
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::runtime::registry::FunctionEntry;
use crate::runtime::{CallSpec, Core, FETCH, NotMade, OpenCall, Reply, value_scope};
use crate::support::clock::Instant;
use crate::support::mutation::mutated;

/// A type whose values can come to the caller: all that implement serde's `DeserializeOwned`.
///
/// ```
/// fn comes_here<T: farref::Returned>() {}
///
/// comes_here::<Vec<String>>();
/// ```
#[diagnostic::on_unimplemented(
    message = "a value of type `{Self}` cannot be sent to the caller: serde's `Serialize` and \
               `Deserialize` are not implemented for it",
    label = "to leave the value where it is and hold a reference to it, say `.remote()` instead",
    note = "`.remote()` makes a `farref::RRef<{Self}>` of the call at once; for a value that is to be sent, \
            add `#[derive(serde::Serialize, serde::Deserialize)]` to `{Self}`"
)]
pub trait Returned: DeserializeOwned + 'static {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + 'static> Returned for T {}

/// A call that has been made. Await it for the result; drop it to cancel the call. Its time limit runs whether it is
/// awaited or not: a call that is late is taken back when its time is up.
///
/// ```
/// use tokio::sync::Notify;
///
/// static BEGUN: Notify = Notify::const_new();
/// static CANCELLED: Notify = Notify::const_new();
///
/// #[farref::remote]
/// async fn search() -> u64 {
///     struct Tell;
///     impl Drop for Tell {
///         fn drop(&mut self) {
///             CANCELLED.notify_one();
///         }
///     }
///     let _tell = Tell;
///     BEGUN.notify_one();
///     std::future::pending().await // finds nothing, ever
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// let pending = search::on(&peer).start();
/// BEGUN.notified().await;
/// drop(pending); // never mind
/// CANCELLED.notified().await; // on the other worker, in the middle of the search
/// # cluster.shutdown().await
/// # }
/// ```
///
/// `E` is the function's own error, as with [`Call`](crate::Call).
#[must_use = "dropping this cancels the call: await it"]
pub struct Pending<T, E = Infallible> {
    pub(super) name: FunctionName,
    entry: Option<&'static FunctionEntry>,
    pub(super) state: PendingState,
    /// Whether the error that it ended with is what its own function raised, and not the constructor of the value
    /// that the function was to run on.
    pub(super) raised: bool,
    result: PhantomData<fn() -> (T, E)>,
}

pub(super) enum PendingState {
    Failed(Error),
    /// Too many wait for the peer: this one is made when there is a place for it.
    NoPlace(Box<Prepared>, AwaitsPlace),
    Begun(Begun),
    Done,
}

/// A call that is ready to be made.
pub(super) struct Prepared {
    pub(super) core: Arc<Core>,
    pub(super) to: NodeId,
    pub(super) request: CallSpec,
    pub(super) deadline: Option<Instant>,
    pub(super) began: Instant,
    /// For the time that it waits for a place.
    pub(super) timer: Option<Pin<Box<Sleep>>>,
}

impl Prepared {
    pub(super) fn begin(mut self) -> PendingState {
        let context = self.request.context;
        match self.core.begin(self.to, &mut self.request) {
            Ok(receipt) => PendingState::Begun(Begun {
                core: self.core,
                context,
                receipt,
                deadline: self.deadline,
                began: self.began,
            }),
            Err(NotMade::Failed(error)) => PendingState::Failed(error),
            Err(NotMade::NoPlace(told)) => {
                let waits = AwaitsPlace {
                    core: Arc::clone(&self.core),
                    to: self.to,
                    told,
                };
                PendingState::NoPlace(Box::new(self), waits)
            }
        }
    }

    /// Ready when its time is up.
    fn poll_deadline(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = self.deadline else {
            return Poll::Pending;
        };
        let timer = &mut self.timer;
        let timer = timer.get_or_insert_with(|| Box::pin(self.core.sleep_until(deadline)));
        timer.as_mut().poll(context)
    }
}

/// Waits to be told that there may be a place for a call. Dropped with the word unheard, it passes the
/// place on.
pub(super) struct AwaitsPlace {
    pub(super) core: Arc<Core>,
    pub(super) to: NodeId,
    pub(super) told: oneshot::Receiver<()>,
}

impl Drop for AwaitsPlace {
    fn drop(&mut self) {
        // From here on whoever tells notices that nobody listens.
        self.told.close();
        if self.told.try_recv().is_ok() {
            self.core.pass_place_on(self.to);
        }
    }
}

impl<T> Pending<T> {
    pub(super) fn new(
        name: FunctionName,
        entry: Option<&'static FunctionEntry>,
        state: PendingState,
    ) -> Self {
        Self {
            name,
            entry,
            state,
            raised: false,
            result: PhantomData,
        }
    }

    /// The same call, of a function that has such errors.
    pub(super) fn typed<E>(self) -> Pending<T, E> {
        self.with_errors()
    }
}

impl<T, E> Pending<T, E> {
    /// The call without the type of its function's errors, for who keeps calls of several functions, as
    /// [`Call::untyped`](crate::Call::untyped).
    ///
    /// ```
    /// use farref::Pending;
    ///
    /// #[farref::remote]
    /// async fn half(n: u32) -> Result<u32, String> {
    ///     if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let pending: Pending<u32> = half::on(&peer, 3).start().untyped();
    /// let error = pending.await.unwrap_err();
    /// assert_eq!(error.downcast::<String>().unwrap(), "3 is odd");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn untyped(self) -> Pending<T> {
        self.with_errors()
    }

    fn with_errors<F>(mut self) -> Pending<T, F> {
        Pending {
            name: std::mem::replace(&mut self.name, FunctionName::UNKNOWN),
            entry: self.entry,
            // Nothing is left here to cancel.
            state: std::mem::replace(&mut self.state, PendingState::Done),
            raised: self.raised,
            result: PhantomData,
        }
    }

    /// Brings what the function returned, its own error included, as [`Call::result`](crate::Call::result) does.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn half(n: u32) -> Result<u32, String> {
    ///     if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd")) }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let [odd, even] = [3, 4].map(|n| half::on(&peer, n).start());
    /// assert_eq!(odd.result().await?, Err("3 is odd".to_owned()));
    /// assert_eq!(even.result().await?, Ok(2));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn result(self) -> Outcome<T, E>
    where
        T: Returned,
        E: ReturnedError,
    {
        Outcome::of(Call::made(self.untyped()))
    }

    /// Waits until the call is made, or cannot be.
    fn poll_made(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while let PendingState::NoPlace(prepared, waits) = &mut self.state {
            // Whoever was to tell goes without a word only with the peer, or when this worker is out of
            // the group.
            if Pin::new(&mut waits.told).poll(context).is_ready() {
                if let PendingState::NoPlace(mut prepared, waits) =
                    std::mem::replace(&mut self.state, PendingState::Done)
                {
                    prepared.request.made_at(Instant::now());
                    self.state = prepared.begin();
                    if matches!(self.state, PendingState::Failed(_)) {
                        // The place is still there.
                        waits.core.pass_place_on(waits.to);
                    }
                }
            } else if prepared.poll_deadline(context).is_ready() {
                let limit = prepared.deadline.map(|at| at - prepared.began);
                self.state = PendingState::Failed(Error::Timeout {
                    peer: prepared.core.name_of(prepared.to),
                    function: self.name.clone(),
                    limit: limit.unwrap_or_default(),
                });
            } else {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

pub(super) struct Begun {
    pub(super) core: Arc<Core>,
    pub(super) context: Option<ContextId>,
    pub(super) receipt: OpenCall,
    pub(super) deadline: Option<Instant>,
    pub(super) began: Instant,
}

impl<T: Returned, E> Future for Pending<T, E> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = self.get_mut();
        if this.poll_made(context).is_pending() {
            return Poll::Pending;
        }
        let answer = match &mut this.state {
            PendingState::Begun(begun) => Some(ready!(begun.poll(context))),
            _ => None,
        };
        // It is answered: there is nothing to cancel, nor to poll again should the program panic in reading it.
        let state = std::mem::replace(&mut this.state, PendingState::Done);
        let (begun, (outcome, came)) = match (state, answer) {
            (PendingState::Begun(begun), Some(answer)) => (begun, answer),
            (PendingState::Failed(error), _) => return Poll::Ready(Err(error)),
            _ => return Poll::Ready(Err(awaited_before())),
        };
        let took = match came {
            Some(came) => came.saturating_duration_since(begun.began),
            None => begun.began.elapsed(),
        };
        let metrics = &begun.core.metrics;
        metrics.call_seconds.record(took);
        let outcome = outcome.and_then(|(payload, references)| {
            let reading = Some(value_scope::Reading {
                core: Arc::clone(&begun.core),
                from: begun.receipt.peer,
                context: begun.context,
            });
            let codec = begun.core.agent().codec();
            let each_vector = |value: &mut T, look: Look<'_>| match this.entry {
                Some(entry) => entry.each_vector(value, look),
                None => each_in(value, look),
            };
            let read = value_scope::read(codec, payload, references, reading, &[], each_vector);
            read.map_err(|unread| match unread {
                value_scope::Unread::Mismatch(reason) => Error::TypeMismatch(reason),
                value_scope::Unread::Codec(reason) => Error::Codec {
                    what: "the result",
                    function: this.name.clone(),
                    action: "read",
                    reason,
                },
            })
        });
        if outcome.is_err() {
            metrics.failed.add(1);
        }
        let (deadline, began) = (begun.deadline, begun.began);
        Poll::Ready(outcome.map_err(|error| {
            let limit = deadline.map(|at| at.saturating_duration_since(began));
            let (error, is_own) = complete(error, this.name.clone(), this.entry, limit);
            this.raised = is_own;
            error
        }))
    }
}

impl Begun {
    /// The reply, and when it came.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<(Reply, Option<Instant>)> {
        let reply = Pin::new(&mut self.receipt.reply).poll(context);
        reply.map(|reply| match reply {
            Some((reply, came)) => (reply, Some(came)),
            // The sender goes without a word only if this worker is being torn down.
            None => (Err(self.core.not_member()), None),
        })
    }
}

/// Fills in what only the caller knows. Says whether the error is of the function that was called.
pub(super) fn complete(
    mut error: Error,
    name: FunctionName,
    entry: Option<&'static FunctionEntry>,
    time_limit: Option<Duration>,
) -> (Error, bool) {
    // F2: nothing runs at the owner when its value is fetched. What is lost is the value.
    if let Error::PeerLost { peer, function, .. } = &error
        && function.is_unsaid()
        && name.as_str() == FETCH
    {
        let owner = Arc::clone(peer);
        return (Error::OwnerLost { owner }, false);
    }
    let unsaid = match &mut error {
        Error::Remote(remote) => &mut remote.function,
        Error::PeerLost { function, .. }
        | Error::Cancelled { function, .. }
        | Error::Deadlock { function, .. }
        | Error::NotAuthorized { function, .. }
        | Error::NoSuchFunction { function, .. }
        | Error::Codec { function, .. }
        | Error::Timeout { function, .. }
        | Error::SignatureMismatch { function, .. } => function,
        _ => return (error, false),
    };
    // What names a function already speaks of another one, which made the value.
    if !unsaid.is_unsaid() {
        return (error, false);
    }
    if !mutated!(ErrorsUnnamed) {
        *unsaid = name;
    }
    match &mut error {
        Error::Timeout { limit, .. } => *limit = time_limit.unwrap_or_default(),
        Error::SignatureMismatch { ours, .. } => {
            **ours = entry.map(FunctionEntry::signature).unwrap_or_default();
        }
        _ => {}
    }
    (error, true)
}

impl<T, E> Drop for Pending<T, E> {
    fn drop(&mut self) {
        if let PendingState::Begun(begun) = &self.state
            && begun.core.cancel(begun.receipt.peer, begun.receipt.request)
        {
            begun.core.metrics.cancelled.add(1);
        }
    }
}

impl<T, E> fmt::Debug for Pending<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("function", &self.name)
            .finish_non_exhaustive()
    }
}

pub(super) fn awaited_before() -> Error {
    Misuse::AwaitedTwice.into()
}
