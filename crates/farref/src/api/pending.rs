//! Calls that have been made: waiting for a place, for the answer, for the time limit.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use farref_proto::{ContextId, NodeId};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::error::{Error, FunctionName, Misuse, Result};
use crate::runtime::registry::FunctionEntry;
use crate::runtime::{CallSpec, Core, FETCH, NotMade, OpenCall, Reply, value_scope};

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
pub trait Returned: DeserializeOwned {}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned> Returned for T {}

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
#[must_use = "dropping this cancels the call: await it"]
pub struct Pending<T> {
    pub(super) name: FunctionName,
    pub(super) entry: Option<&'static FunctionEntry>,
    pub(super) state: PendingState,
    pub(super) result: PhantomData<fn() -> T>,
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

impl<T: Returned> Future for Pending<T> {
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
            let origin = begun
                .context
                .map(|context| (Arc::clone(&begun.core), context, begun.receipt.peer));
            let codec = begun.core.agent().codec();
            let read = value_scope::read(codec, payload, references, origin, &[]);
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
            complete(error, this.name.clone(), this.entry, limit)
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

/// Fills in what only the caller knows.
fn complete(
    mut error: Error,
    name: FunctionName,
    entry: Option<&'static FunctionEntry>,
    time_limit: Option<Duration>,
) -> Error {
    // F2: nothing runs at the owner when its value is fetched. What is lost is the value.
    if let Error::PeerLost { peer, function } = &error
        && function.is_unsaid()
        && name.as_str() == FETCH
    {
        return Error::OwnerLost {
            owner: Arc::clone(peer),
        };
    }
    let unsaid = match &mut error {
        Error::Remote(remote) => &mut remote.function,
        Error::PeerLost { function, .. }
        | Error::Cancelled { function, .. }
        | Error::Deadlock { function, .. }
        | Error::NoSuchFunction { function, .. }
        | Error::Codec { function, .. }
        | Error::Timeout { function, .. }
        | Error::SignatureMismatch { function, .. } => function,
        _ => return error,
    };
    // What names a function already speaks of another one, which made the value.
    if !unsaid.is_unsaid() {
        return error;
    }
    *unsaid = name;
    match &mut error {
        Error::Timeout { limit, .. } => *limit = time_limit.unwrap_or_default(),
        Error::SignatureMismatch { ours, .. } => {
            **ours = entry.map(FunctionEntry::signature).unwrap_or_default();
        }
        _ => {}
    }
    error
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let PendingState::Begun(begun) = &self.state
            && begun.core.cancel(begun.receipt.peer, begun.receipt.request)
        {
            begun.core.metrics.cancelled.add(1);
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("function", &self.name)
            .finish_non_exhaustive()
    }
}

pub(super) fn awaited_before() -> Error {
    Misuse::AwaitedTwice.into()
}
