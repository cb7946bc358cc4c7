//! `Streaming<T>`: items that flow from one worker to another.
//!
//! A stream stays where it is made, as a value ([`Producer`]), and what travels is a reference to it. Who has that asks
//! for batches of items. So all that is promised of calls and references holds for streams: order, the end of either
//! side, limits on memory, and what becomes of references inside of items.

mod pull;
mod reader;
mod waiting;

use std::any::type_name;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use farref_proto::{Fingerprint, RRefId};
use futures_core::Stream;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::time::Sleep;

use self::reader::{Reader, Step};
use self::waiting::Ended as EndedCall;
use super::rref::RRef;
use crate::codec::Codec;
use crate::error::{Error, FunctionName, Misuse, Result};
use crate::fingerprint;
use crate::runtime::current::Current;
use crate::runtime::handle::Handle;
use crate::runtime::registry::FunctionEntry;
use crate::runtime::stream::{After, Ended, Kept, Own, OwnResults, Producer, Source};
use crate::runtime::{Core, value_scope};
use crate::support::blocking_pool::BlockedThread;
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::support::text::{clean, shorten};
use crate::tables::labels::Labelled;
use crate::values::Value;

/// Bytes of the name of what makes a stream.
const MAX_NAME: usize = 1 << 10;

/// A stream of items that may be made on another worker.
///
/// A remote function returns one, or takes one as an argument. Its items are whatever can be sent, each as its own
/// value: references, [`Blob`](crate::Blob)s and `Result`s as well. They arrive in order, a batch at a time, when they
/// are asked for, so a slow reader slows down whoever makes them. Dropping either end ends the stream.
///
/// ```
/// use farref::Streaming;
/// # use std::pin::Pin;
/// # use std::task::{Context, Poll};
/// # /// Any stream will do; there are crates full of them.
/// # struct Counting(std::ops::Range<u64>);
/// # impl farref::Stream for Counting {
/// #     type Item = u64;
/// #     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
/// #         Poll::Ready(self.0.next())
/// #     }
/// # }
///
/// #[farref::remote]
/// async fn numbers(below: u64) -> Streaming<u64> {
///     Streaming::new(Counting(0..below))
/// }
///
/// #[farref::remote]
/// async fn sum(mut numbers: Streaming<u64>) -> farref::Result<u64> {
///     let mut sum = 0;
///     while let Some(number) = numbers.next().await {
///         sum += number?;
///     }
///     Ok(sum)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(3).await?;
/// let me = cluster.worker(0);
/// let [one, two] = [me.peer("worker1")?, me.peer("worker2")?];
///
/// let mut far = numbers::on(&one, 1000).await?;
/// assert_eq!(far.next().await.transpose()?, Some(0));
///
/// assert_eq!(sum::on(&one, Streaming::new(Counting(0..5))).await?, 10); // from here
/// let there = numbers::on(&one, 5).await?;
/// assert_eq!(sum::on(&two, there).await?, 10); // from `worker1` to `worker2`: none of it comes here
/// # drop(far);
/// # cluster.shutdown().await
/// # }
/// ```
///
/// # Whose turn it is
///
/// Nothing is made before the first item is asked for. From then on the maker may be ahead of the reader by two batches
/// of 1,024 items and 56 KiB at most (or one item that is larger), and 64 items of any size that did not fit, besides those
/// that are being read. The stream is polled on the worker that makes it, as an `async fn` is: it must not block. It is dropped
/// when its reader is, or ends with it.
///
/// One that has been begun and is idle is an open call to its maker: it is one of those that the maker
/// [accepts](crate::WorkerBuilder::max_calls_per_peer), and as it has no time limit, a shutdown waits for it in vain. Drop
/// streams that do not end by themselves first.
///
/// # Time
///
/// The limit of the call that brings a stream ends when the stream is there; reading it may take as long as it likes. So a
/// stream outlives the call that it came from, on both sides. [`timeout`](Self::timeout) limits how long to wait for an
/// item.
///
/// # Failure
///
/// The items are `Result`s. An error is the last that comes, but for [`Error::Timeout`]: the maker is lost
/// ([`Error::PeerLost`], which names it and the function), it panicked ([`Error::Remote`]), an item cannot be written or
/// read ([`Error::Codec`]). What was ready before a panic comes before it. A program's own failures are items,
/// `Streaming<Result<T, E>>`, or the end of a stream [of results](Self::of_results).
///
/// # Handing it on
///
/// A stream has one reader. One that has not been read is handed on as it is, and whoever handed it on has no part in it any
/// more. One that has been begun is read on by the worker that began it, which passes the items on: none is lost, and the
/// stream ends with that worker; what ends it there is an [`Error::Remote`] of that worker's, whatever its kind was. After it was sent, a `Streaming` is of no use
/// ([`Misuse::StreamHandedOn`](crate::Misuse::StreamHandedOn)). `remote()` leaves a stream where it is made, and
/// `to_here()` brings it; of several who bring the same one, the first that reads has it
/// ([`Misuse::StreamTaken`](crate::Misuse::StreamTaken)).
///
/// # Contexts
///
/// Items belong to no autograd context, whichever the reader is in: a tensor in an item is data.
#[must_use = "dropping this ends the stream: read it"]
pub struct Streaming<T> {
    /// Locked only to be sent: whoever reads has it to itself.
    state: Mutex<State<T>>,
    limit: Option<Duration>,
    /// Runs as long as an item is waited for.
    timer: Option<Pin<Box<Sleep>>>,
}

enum State<T> {
    /// Made here.
    Own(OwnStream<T>),
    /// Made elsewhere.
    Far(Box<Reader<T>>),
    /// Sent to somebody, perhaps several times in one message.
    Sent(Arc<Kept>, FunctionName),
    /// It could not be sent.
    Gone,
}

struct OwnStream<T> {
    source: Option<Box<dyn Source<T>>>,
    next: VecDeque<T>,
    name: FunctionName,
    location: &'static Location<'static>,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Streaming<T> {
    /// A stream of what another one brings, to be returned from a remote function or to be an argument of one.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    ///
    /// use farref::{Stream, Streaming};
    ///
    /// /// Any stream will do, also of one of the crates that are full of them.
    /// struct Countdown(u32);
    ///
    /// impl Stream for Countdown {
    ///     type Item = u32;
    ///
    ///     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
    ///         self.0 = self.0.saturating_sub(1);
    ///         Poll::Ready((self.0 > 0).then_some(self.0))
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut countdown = Streaming::new(Countdown(3)); // it can be read here, too
    /// assert_eq!(countdown.next().await.transpose()?, Some(2));
    /// assert_eq!(countdown.next().await.transpose()?, Some(1));
    /// assert_eq!(countdown.next().await.transpose()?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn new<S: Stream<Item = T> + Send + 'static>(stream: S) -> Self {
        Self::of_source(Box::new(Own(Box::pin(stream))), Location::caller())
    }

    /// A stream of the items of another one, which may fail: its first error is the end, and whoever reads gets it last.
    ///
    /// For a stage that makes a stream of another one: what it reads are results, and `?` hands on what is wrong with them. A
    /// remote function that returns `impl Stream<Item = farref::Result<T>>` does the same by itself.
    ///
    /// To a reader on another worker it is an [`Error::Remote`] of the worker that made this stream, as what a function hands
    /// on with `?` is, and what the first function raised can be had of it ([`Error::downcast`]).
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    ///
    /// use farref::{Stream, Streaming};
    ///
    /// /// `input.map(|number| Ok(2 * number?))`, for who has a crate of streams.
    /// struct Doubled(Streaming<u32>);
    ///
    /// impl Stream for Doubled {
    ///     type Item = farref::Result<u32>;
    ///
    ///     fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<farref::Result<u32>>> {
    ///         Pin::new(&mut self.0).poll_next(context).map_ok(|number| 2 * number)
    ///     }
    /// }
    ///
    /// #[farref::remote]
    /// async fn doubled(input: Streaming<u32>) -> impl Stream<Item = farref::Result<u32>> {
    ///     Doubled(input)
    /// }
    ///
    /// #[farref::remote]
    /// async fn doubled_twice(input: Streaming<u32>) -> Streaming<u32> {
    ///     Streaming::of_results(Doubled(Streaming::of_results(Doubled(input))))
    /// }
    /// # struct Each(std::vec::IntoIter<u32>);
    /// # impl Stream for Each {
    /// #     type Item = u32;
    /// #     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
    /// #         Poll::Ready(self.0.next())
    /// #     }
    /// # }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let numbers = Streaming::new(Each(vec![1, 2].into_iter()));
    /// let twice = doubled_twice::on(&peer, numbers).await?;
    /// let mut thrice: Streaming<u32> = doubled::on(&peer, twice).await?;
    /// assert_eq!(thrice.next().await.transpose()?, Some(8));
    /// assert_eq!(thrice.next().await.transpose()?, Some(16));
    /// assert_eq!(thrice.next().await.transpose()?, None);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn of_results<S: Stream<Item = Result<T>> + Send + 'static>(stream: S) -> Self {
        Self::of_source(Box::new(OwnResults(Box::pin(stream))), Location::caller())
    }

    fn of_source(source: Box<dyn Source<T>>, location: &'static Location<'static>) -> Self {
        // The one who writes an item has to know what it is read with.
        fingerprint::trace::<T>();
        let function = Current::get().and_then(|current| current.entry);
        let name = match function.map(FunctionEntry::name) {
            Some(name) => FunctionName::stream_of(name),
            None => FunctionName::stream_of(&format!("Streaming::new at {location}")),
        };
        Self::in_state(State::Own(OwnStream {
            source: Some(source),
            next: VecDeque::new(),
            name,
            location,
        }))
    }
}

impl<T> Streaming<T> {
    fn in_state(state: State<T>) -> Self {
        Self {
            state: Mutex::new(state),
            limit: None,
            timer: None,
        }
    }

    /// Sets how long to wait for an item at most, from when it is asked for; `None` is unlimited, which it is at first. An
    /// item that does not come in time is an [`Error::Timeout`], after which the stream can be read on: nothing is lost.
    /// Streams that are made by this program itself, and were not sent, have no limit.
    ///
    /// ```
    /// use std::pin::Pin;
    /// use std::task::{Context, Poll};
    /// use std::time::Duration;
    ///
    /// use farref::{Error, Stream, Streaming};
    ///
    /// struct Silence;
    ///
    /// impl Stream for Silence {
    ///     type Item = ();
    ///
    ///     fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<()>> {
    ///         Poll::Pending
    ///     }
    /// }
    ///
    /// #[farref::remote]
    /// async fn listen() -> Streaming<()> {
    ///     Streaming::new(Silence)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let mut silence = listen::on(&peer).await?.timeout(Duration::from_millis(20));
    /// assert!(matches!(silence.next().await, Some(Err(Error::Timeout { .. }))));
    /// # drop(silence);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.limit = limit.into();
        self.timer = None;
        self
    }

    /// The next item has its own time.
    #[inline]
    fn forget_timer(&mut self) {
        if self.timer.is_some() {
            self.timer = None;
        }
    }

    #[inline]
    fn state(&mut self) -> &mut State<T> {
        self.state.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: DeserializeOwned + 'static> Streaming<T> {
    /// Waits for the next item; none at the end. Nothing is lost if this is dropped before.
    ///
    /// The same as `StreamExt::next` of the crates that have it.
    ///
    /// ```
    /// # use std::pin::Pin;
    /// # use std::task::{Context, Poll};
    /// # struct Counting(std::ops::Range<u64>);
    /// # impl farref::Stream for Counting {
    /// #     type Item = u64;
    /// #     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
    /// #         Poll::Ready(self.0.next())
    /// #     }
    /// # }
    /// use farref::Streaming;
    ///
    /// async fn sum(mut numbers: Streaming<u64>) -> farref::Result<u64> {
    ///     let mut sum = 0;
    ///     while let Some(number) = numbers.next().await {
    ///         sum += number?;
    ///     }
    ///     Ok(sum)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// assert_eq!(sum(Streaming::new(Counting(0..5))).await?, 10);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<Result<T>> {
        // One that was dropped may have left its own.
        self.forget_timer();
        poll_fn(|context| self.poll_item(context)).await
    }

    /// The same for code that is not async: blocks this thread until the next item is here.
    ///
    /// Inside of a remote function it ends with the call that the function runs for: when the time of that is up
    /// ([`Error::Timeout`]), or it is cancelled ([`Error::Cancelled`]), there are no more items for it, though some may be
    /// ready. The stream is not over by that.
    ///
    /// # Panics
    ///
    /// Inside async code, where it would keep other tasks from running. Use [`next`](Self::next) there.
    ///
    /// ```
    /// # use std::pin::Pin;
    /// # use std::task::{Context, Poll};
    /// # struct Counting(std::ops::Range<u64>);
    /// # impl farref::Stream for Counting {
    /// #     type Item = u64;
    /// #     fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
    /// #         Poll::Ready(self.0.next())
    /// #     }
    /// # }
    /// use farref::Streaming;
    ///
    /// // A plain function runs on a thread that may block.
    /// #[farref::remote]
    /// fn count(mut numbers: Streaming<u64>) -> farref::Result<u64> {
    ///     let mut count = 0;
    ///     while let Some(number) = numbers.wait_next() {
    ///         number?;
    ///         count += 1;
    ///     }
    ///     Ok(count)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(count::on(&peer, Streaming::new(Counting(0..5))).await?, 5);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn wait_next(&mut self) -> Option<Result<T>> {
        let far = match self.state() {
            State::Far(reader) => reader.producer.held().ok(),
            _ => None,
        };
        let runtime = match far {
            Some(held) => Some(held.core.runtime.clone()),
            None => tokio::runtime::Handle::try_current().ok(),
        };
        let _waiting = BlockedThread::begin();
        let Some(runtime) = runtime else {
            return waiting::block_on(self.next());
        };
        let Some(call) = Current::get() else {
            return runtime.block_on(self.next());
        };
        let waited = runtime.block_on(waiting::during(&call, self.next()));
        waited.unwrap_or_else(|ended| Some(Err(self.ended_with(&call, ended))))
    }

    /// What somebody hears who waits inside of a call that is to end.
    #[cold]
    fn ended_with(&mut self, call: &Current, ended: EndedCall) -> Error {
        let (owner, function) = match self.state() {
            State::Far(reader) => (
                reader.producer.held().map(|held| held.owner).ok(),
                reader.name.clone(),
            ),
            State::Own(own) => (None, own.name.clone()),
            State::Sent(..) | State::Gone => return Misuse::StreamHandedOn.into(),
        };
        let peer = call.core.name_of(owner.unwrap_or(call.core.me));
        match ended {
            EndedCall::Late(limit) => Error::Timeout {
                peer,
                function,
                limit,
            },
            EndedCall::Cancelled => Error::Cancelled { peer, function },
        }
    }

    #[inline]
    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let item = loop {
            // All that there is to do for most items.
            if let Some(item) = self.take() {
                break Some(Ok(item));
            }
            match ready!(self.poll_step(context)) {
                Step::Item(item) => break Some(Ok(item)),
                Step::Take => {}
                Step::End => break None,
                Step::Failed(error) => break Some(Err(error)),
            }
        };
        self.forget_timer();
        Poll::Ready(item)
    }

    /// The next item, if it is here.
    #[inline]
    fn take(&mut self) -> Option<T> {
        match self.state() {
            State::Far(reader) => reader.take(),
            State::Own(own) => own.next.pop_front(),
            State::Sent(..) | State::Gone => None,
        }
    }

    /// Waits for an item to take, or for the time to be up.
    #[inline(never)]
    fn poll_step(&mut self, context: &mut Context<'_>) -> Poll<Step<T>> {
        let polled = match self.state() {
            State::Far(reader) => reader.poll(context),
            State::Own(own) => own.poll(context),
            State::Sent(..) | State::Gone => {
                Poll::Ready(Step::Failed(Misuse::StreamHandedOn.into()))
            }
        };
        match polled {
            Poll::Pending if self.limit.is_some() => self.poll_limit(context).map(Step::Failed),
            polled => polled,
        }
    }

    /// Waits for the time to be up.
    fn poll_limit(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let (State::Far(reader), Some(limit)) = (state, self.limit) else {
            return Poll::Pending;
        };
        let Ok(held) = reader.producer.held() else {
            return Poll::Pending;
        };
        if self.timer.is_none() {
            let at = Instant::now().checked_add(limit);
            self.timer = at.map(|at| Box::pin(held.core.sleep_until(at)));
        }
        let Some(timer) = &mut self.timer else {
            return Poll::Pending;
        };
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Error::Timeout {
            peer: held.core.name_of(held.owner),
            function: reader.name.clone(),
            limit,
        })
    }
}

impl<T: DeserializeOwned + 'static> Stream for Streaming<T> {
    type Item = Result<T>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        self.get_mut().poll_item(context)
    }
}

// Nothing in it is borrowed from itself, whatever the items are.
impl<T> Unpin for Streaming<T> {}

impl<T> OwnStream<T> {
    /// Sees to it that there is an item to take, which there was not.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Step<T>> {
        let Some(source) = &mut self.source else {
            return Poll::Ready(Step::End);
        };
        let after = source.take(context, &mut self.next, 1);
        if !self.next.is_empty() {
            return Poll::Ready(Step::Take);
        }
        match after {
            After::More | After::Pending => Poll::Pending,
            After::End => {
                self.source = None;
                Poll::Ready(Step::End)
            }
            After::Failed(error) => {
                self.source = None;
                Poll::Ready(Step::Failed(error))
            }
        }
    }
}

/// Passes on what is read of a stream that has been begun.
struct Relay<T>(Box<Reader<T>>);

impl<T: DeserializeOwned + Send + 'static> Source<T> for Relay<T> {
    fn take(&mut self, context: &mut Context<'_>, items: &mut VecDeque<T>, most: usize) -> After {
        let end = items.len() + most;
        while items.len() < end {
            if let Some(item) = self.0.take() {
                items.push_back(item);
                continue;
            }
            match self.0.poll(context) {
                Poll::Ready(Step::Item(item)) => items.push_back(item),
                Poll::Ready(Step::Take) => {}
                Poll::Ready(Step::End) => return After::End,
                Poll::Ready(Step::Failed(error)) => return After::Failed(error),
                Poll::Pending => return After::Pending,
            }
        }
        After::More
    }
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Streaming<T> {
    /// A reference to the stream, for a message of `core`. From then on it is the receiver's.
    fn send(&self, core: &Arc<Core>) -> Result<(Arc<Handle>, FunctionName)> {
        if let Codec::Custom(_) = core.agent().codec() {
            return Err(Misuse::NoStreams.into());
        }
        // Until it is sent: of several who bring it at once, each is to have it. Nothing of the program's runs meanwhile, but
        // for the stream's destructor should this worker be out of the group by now.
        if !core.is_member() {
            return Err(core.not_member());
        }
        let mut state = lock(&self.state);
        let kept = Arc::new(Kept::default());
        let (handle, name) = match std::mem::replace(&mut *state, State::Gone) {
            State::Own(own) => {
                let OwnStream {
                    source,
                    name,
                    location,
                    ..
                } = own;
                let source = source.unwrap_or_else(|| Box::new(Ended));
                let producer = Producer::new(source).kept_by(&kept);
                (produce(core, producer, &name, location, None)?, name)
            }
            State::Far(reader) if !reader.has_begun() => {
                (Arc::clone(&reader.producer), reader.name.clone())
            }
            State::Far(reader) => {
                // From here on this is one who writes items.
                fingerprint::trace::<T>();
                let name = reader.name.clone();
                let made_as = reader.producer.held().map(|held| held.rref).ok();
                let producer = Producer::new(Box::new(Relay(reader))).kept_by(&kept);
                (
                    produce(core, producer, &name, Location::caller(), made_as)?,
                    name,
                )
            }
            State::Sent(kept, name) => {
                let known = kept.producer();
                *state = State::Sent(kept, name.clone());
                let handle = match known {
                    Some(handle) => handle,
                    // It went with its reader: others are told that it had one.
                    None => produce(core, Producer::taken(), &name, Location::caller(), None)?,
                };
                return Ok((handle, name));
            }
            State::Gone => return Err(Misuse::StreamHandedOn.into()),
        };
        kept.keep(&handle);
        *state = State::Sent(kept, name.clone());
        Ok((handle, name))
    }
}

/// Makes a stream a value of this worker's. Leak reports say where it was made: there, or where that one was that it
/// takes the place of.
fn produce(
    core: &Arc<Core>,
    producer: Producer,
    name: &FunctionName,
    location: &'static Location<'static>,
    made_as: Option<RRefId>,
) -> Result<Arc<Handle>> {
    let fingerprint = fingerprint::of_type::<Producer>();
    core.name_type(fingerprint, "farref::Streaming");
    let label = producer.label();
    let value = Value::new(producer, None);
    let handle = core.create_in_place_of(value, fingerprint, location, made_as)?;
    let _ = label.set(core.labels.put(Labelled::Stream(handle.held()?.rref), name));
    Ok(handle)
}

/// A stream as it travels.
#[derive(Serialize, Deserialize)]
#[serde(rename = "Streaming", bound = "T: Serialize + DeserializeOwned")]
struct Sent<T> {
    producer: RRef<Producer>,
    name: String,
    /// R8: of the items' type.
    fingerprint: u64,
    /// Never there: whoever traces the shape of a signature sees the items' here (R8).
    item: Option<T>,
}

impl<T: Serialize + DeserializeOwned + Send + 'static> Serialize for Streaming<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(core) = value_scope::sender() else {
            return Err(serde::ser::Error::custom(
                "a stream can only be sent inside a call or an answer",
            ));
        };
        let (handle, name) = self.send(&core).map_err(|error| {
            value_scope::complain(error.clone());
            serde::ser::Error::custom(error)
        })?;
        let sent = Sent::<T> {
            producer: RRef::new(handle),
            name: name.as_str().to_owned(),
            fingerprint: fingerprint::of_type::<T>().0,
            item: None,
        };
        sent.serialize(serializer)
    }
}

impl<'de, T: Serialize + DeserializeOwned + Send + 'static> Deserialize<'de> for Streaming<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sent = Sent::<T>::deserialize(deserializer)?;
        let is_hollow = sent.producer.handle.held().is_err();
        if Fingerprint(sent.fingerprint) != fingerprint::of_type::<T>() && !is_hollow {
            let reason = format!(
                "a stream of `{}` has items of another type: build all workers from the same source",
                type_name::<T>()
            );
            value_scope::refuse(reason.clone());
            return Err(D::Error::custom(reason));
        }
        let mut name = sent.name;
        shorten(&mut name, MAX_NAME);
        let name = FunctionName::stream_of(&clean(name, |_| false));
        let reader = Reader::new(Arc::clone(&sent.producer.handle), name);
        Ok(Self::in_state(State::Far(Box::new(reader))))
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &*lock(&self.state) {
            State::Own(own) => Some(own.name.clone()),
            State::Far(reader) => Some(reader.name.clone()),
            State::Sent(_, name) => Some(name.clone()),
            State::Gone => None,
        };
        f.debug_struct("Streaming")
            .field("items", &type_name::<T>())
            .field("of", &name)
            .finish_non_exhaustive()
    }
}
