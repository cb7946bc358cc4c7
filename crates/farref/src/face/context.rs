//! Contexts: what ties calls together that belong to one thing, across workers.
//!
//! A context is opened by one worker and travels with the calls made inside of it, and with those that
//! they make in turn. It lives until it is released *and* the last of these calls is done; then every
//! worker that took part forgets it. Distributed autograd is built on this (`farref-autograd`); programs
//! use that, or nothing of this module.
//!
//! A crate that builds on contexts keeps its own records per worker in an [`Extension`], and learns
//! there when a context is over. A type whose values leave a trace in a context when they are sent asks,
//! in its `Serialize` and `Deserialize`, for the message that it travels in: [`outgoing`], [`incoming`].
//!
//! # Which context a call belongs to
//!
//! The one that surrounds the code that *makes* it: that awaits it first, or calls `start()`, `remote()` or
//! `wait()`. So `scope.run(f::on(&peer))` is as good as `scope.run(async { f::on(&peer).await })`, and a call
//! that was built in one context and is made in another belongs to the other. Only if nothing surrounds that
//! code, it is the one in which the call was built, if any: a call that was built inside may be handed to a
//! task.
//!
//! ```
//! use farref::Worker;
//! use farref::context::{ContextId, ContextScope};
//!
//! #[farref::remote]
//! async fn here() -> Option<ContextId> {
//!     ContextScope::current().map(|scope| scope.id())
//! }
//!
//! #[farref::remote]
//! async fn further() -> farref::Result<Option<ContextId>> {
//!     let me = Worker::current().expect("inside of a remote function");
//!     here::on(&me.peer("worker2")?).await
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> farref::Result<()> {
//! let cluster = farref::testing::Cluster::start(3).await?;
//! let me = cluster.worker(0);
//! let peer = me.peer("worker1")?;
//!
//! let scope = ContextScope::open(me)?;
//! // It travels from worker to worker, and nobody has to hand it on.
//! let seen = scope.run(async { further::on(&peer).await }).await?;
//! assert_eq!(seen, Some(scope.id()));
//! scope.release().await?;
//! # cluster.shutdown().await
//! # }
//! ```

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};

pub use farref_proto::{ContextId, NodeId};

use crate::codec::scope;
use crate::error::Result;
use crate::runtime::Core;
use crate::runtime::current;
use crate::worker::Worker;

/// A worker's part in a context.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// use farref::context::ContextScope;
///
/// #[farref::remote]
/// async fn which() -> Option<String> {
///     ContextScope::current().map(|scope| scope.id().to_string())
/// }
///
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
///
/// let scope = ContextScope::open(me)?;
/// let seen = scope.run(async { which::on(&peer).await }).await?;
/// assert_eq!(seen, Some(scope.id().to_string()));
/// assert_eq!(which::on(&peer).await?, None);
///
/// scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone)]
pub struct ContextScope {
    core: Arc<Core>,
    id: ContextId,
}

impl ContextScope {
    /// Opens a context. It must be [released](Self::release) by this worker.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let scope = ContextScope::open(me)?;
    /// assert_eq!(me.snapshot().contexts, 1);
    /// scope.release().await?;
    /// assert_eq!(me.snapshot().contexts, 0);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn open(worker: &Worker) -> Result<Self> {
        let core = Arc::clone(&worker.core);
        if !core.is_member() {
            return Err(core.not_member());
        }
        let id = core.input(|node, _| node.open_context());
        Ok(Self { core, id })
    }

    /// A worker's part in a context that it takes part in already, or opened itself.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let scope = ContextScope::open(me)?;
    /// let same = ContextScope::find(me, scope.id()).expect("it is open");
    /// same.release().await?;
    /// assert!(ContextScope::find(me, scope.id()).is_none());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn find(worker: &Worker, id: ContextId) -> Option<Self> {
        let core = Arc::clone(&worker.core);
        let open = core.look(|node| node.check_context(id).is_ok());
        open.then_some(Self { core, id })
    }

    /// The context that this code runs in: that of the call that a remote function works for, or the
    /// one that was entered last.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let scope = ContextScope::open(me)?;
    /// assert!(ContextScope::current().is_none());
    /// scope.enter(|| {
    ///     let current = ContextScope::current().expect("inside of one");
    ///     assert_eq!(current.id(), scope.id());
    /// });
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        let (core, id) = current::context()?;
        Some(Self { core, id })
    }

    /// Which context it is. Unique in the group, also over restarts.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let [one, two] = [ContextScope::open(me)?, ContextScope::open(me)?];
    /// assert_ne!(one.id(), two.id());
    /// assert_eq!(one.id().origin, me.node()); // who opened it
    /// tokio::try_join!(one.release(), two.release())?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn id(&self) -> ContextId {
        self.id
    }

    /// The worker that takes part.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// #[farref::remote]
    /// async fn where_am_i() -> Option<String> {
    ///     ContextScope::current().map(|scope| scope.worker().name().to_owned())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let scope = ContextScope::open(me)?;
    /// assert_eq!(scope.worker().name(), "worker0");
    /// // The same context, and another worker's part in it.
    /// let there = scope.run(async { where_am_i::on(&peer).await }).await?;
    /// assert_eq!(there.as_deref(), Some("worker1"));
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn worker(&self) -> Worker {
        Worker::of(&self.core)
    }

    /// Whether calls can be made in it: an error says whether it was released or a worker was lost.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::context::ContextScope;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let scope = ContextScope::open(me)?;
    /// scope.check()?;
    /// scope.release().await?;
    /// assert!(matches!(scope.check(), Err(Error::ContextReleased)));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn check(&self) -> Result<()> {
        let checked = self.core.look(|node| node.check_context(self.id));
        checked.map_err(|error| self.core.explain_context(error))
    }

    /// Runs code inside of the context: calls of this worker that are made there belong to it, and those
    /// that are built there and made outside of any context.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// #[farref::remote]
    /// async fn is_inside() -> bool {
    ///     ContextScope::current().is_some()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let scope = ContextScope::open(me)?;
    /// let call = is_inside::on(&peer); // built outside
    /// let call = scope.enter(|| call.start()); // and made inside
    /// assert!(call.await?);
    ///
    /// let call = scope.enter(|| is_inside::on(&peer)); // built inside
    /// assert!(call.await?); // and made where there is no other context
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        current::enter_context(Some((Arc::clone(&self.core), self.id)), f)
    }

    /// The same for a future, which may be a call. Tasks that it spawns are not inside.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// #[farref::remote]
    /// async fn is_inside() -> bool {
    ///     ContextScope::current().is_some()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let scope = ContextScope::open(me)?;
    /// let both = scope.run(async {
    ///     tokio::try_join!(is_inside::on(&peer).start(), is_inside::on(&peer).start())
    /// });
    /// assert_eq!(both.await?, (true, true));
    /// assert!(scope.run(is_inside::on(&peer)).await?);
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn run<F: Future>(&self, future: F) -> InContext<F> {
        InContext {
            scope: self.clone(),
            future: Box::pin(future),
        }
    }

    /// Releases the context and waits until its calls are done and every worker has forgotten it.
    /// What the calls still do goes on. If the wait is dropped, the release is not.
    ///
    /// ```
    /// use farref::context::ContextScope;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let scope = ContextScope::open(me)?;
    /// scope.run(async { ping::on(&peer).await }).await?;
    /// scope.release().await?;
    /// // Nobody remembers it.
    /// assert_eq!(me.snapshot().contexts, 0);
    /// assert_eq!(peer.snapshot().await?.contexts, 0);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn release(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let released = self.core.release_context(self.id);
        let core = Arc::clone(&self.core);
        async move {
            match released? {
                Some(released) => released.await.map_err(|_| core.not_member()),
                None => Ok(()),
            }
        }
    }
}

impl fmt::Debug for ContextScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContextScope({})", self.id)
    }
}

/// A future that runs inside of a context. See [`ContextScope::run`].
///
/// ```
/// use farref::context::{ContextScope, InContext};
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let cluster = farref::testing::Cluster::start(1).await?;
/// # let me = cluster.worker(0);
/// let scope = ContextScope::open(me)?;
/// // On a task of its own it is still inside.
/// let inside: InContext<_> = scope.run(async { ContextScope::current().is_some() });
/// assert!(tokio::spawn(inside).await.expect("no panic"));
/// scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
#[must_use = "futures do nothing unless they are awaited"]
pub struct InContext<F> {
    scope: ContextScope,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for InContext<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        this.scope.enter(|| this.future.as_mut().poll(context))
    }
}

impl<F> fmt::Debug for InContext<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InContext({})", self.scope.id)
    }
}

/// A message of a context that is being made, or read.
///
/// See [`Record`] and [`incoming`] for where it comes from.
///
/// ```
/// use farref::context::Message;
///
/// /// What a crate may write down of a message that it takes part in.
/// fn describe(message: &Message) -> String {
///     format!("number {} of {}, to {}", message.number, message.scope.id(), message.peer)
/// }
/// # use std::sync::Mutex;
/// # use farref::context::Record;
/// # use serde::{Deserialize, Serialize, Serializer};
/// # static SEEN: Mutex<Option<String>> = Mutex::new(None);
/// # #[derive(Default)]
/// # struct Seen;
/// # impl Record for Seen {
/// #     fn made(self: Box<Self>, message: &Message) {
/// #         *SEEN.lock().unwrap() = Some(describe(message));
/// #     }
/// # }
/// # #[derive(Deserialize)]
/// # struct Traced;
/// # impl Serialize for Traced {
/// #     fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
/// #         farref::context::outgoing(|_: &mut Seen| ());
/// #         serializer.serialize_unit_struct("Traced")
/// #     }
/// # }
/// # #[farref::remote]
/// # async fn take(traced: Traced) { drop(traced) }
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let cluster = farref::testing::Cluster::start(2).await?;
/// # let me = cluster.worker(0);
/// # let peer = me.peer("worker1")?;
/// # let scope = farref::context::ContextScope::open(me)?;
/// # scope.run(async { take::on(&peer, Traced).await }).await?;
/// # let seen = SEEN.lock().unwrap().take().unwrap();
/// # assert!(seen.contains(&scope.id().to_string()), "{seen}");
/// # scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The context, as the worker sees it that makes or reads it.
    pub scope: ContextScope,
    /// Who it goes to, or comes from.
    pub peer: NodeId,
    /// For one that is being made: a number that no other message of this worker has.
    pub number: u64,
}

impl Message {
    pub(crate) fn new(core: &Arc<Core>, id: ContextId, peer: NodeId, number: u64) -> Self {
        let core = Arc::clone(core);
        Self {
            scope: ContextScope { core, id },
            peer,
            number,
        }
    }
}

/// What values note of the message that they go into, for the context that it is made in.
///
/// The arguments of a call are written when it is built, and which context it belongs to turns out when it is made. So
/// a value that is being serialized leaves what the context is to know of it in a record, by [`outgoing`].
///
/// ```
/// use farref::context::{Message, Record};
///
/// /// How many values went into a message.
/// #[derive(Default)]
/// struct Count(usize);
///
/// impl Record for Count {
///     fn made(self: Box<Self>, message: &Message) {
///         println!("{} of {}: {} values", message.number, message.scope.id(), self.0);
///     }
/// }
/// ```
pub trait Record: Any + Send + Sync {
    /// The message is made now, in a context. Outside of any the record is dropped, as that of a call that
    /// is never made.
    fn made(self: Box<Self>, message: &Message);
}

/// Notes something of the message that the value being serialized on this thread goes into, in the message's record of
/// this type. Returns the number of the message, which no other message of this worker has, and what `note`
/// returned; nothing if no message is being written.
///
/// ```
/// use std::sync::Mutex;
///
/// use farref::context::{self, ContextId, ContextScope, Message, Record};
/// use serde::{Deserialize, Serialize, Serializer};
///
/// /// Contexts in which a `Traced` was sent.
/// static SENT_IN: Mutex<Vec<ContextId>> = Mutex::new(Vec::new());
///
/// #[derive(Default)]
/// struct Count(usize);
///
/// impl Record for Count {
///     fn made(self: Box<Self>, message: &Message) {
///         SENT_IN.lock().unwrap().extend(vec![message.scope.id(); self.0]);
///     }
/// }
///
/// #[derive(Deserialize)]
/// struct Traced(u64);
///
/// impl Serialize for Traced {
///     fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
///         context::outgoing(|count: &mut Count| count.0 += 1);
///         serializer.serialize_newtype_struct("Traced", &self.0)
///     }
/// }
///
/// #[farref::remote]
/// async fn take(traced: Traced) -> u64 {
///     traced.0
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// assert_eq!(take::on(&peer, Traced(1)).await?, 1);
/// assert!(SENT_IN.lock().unwrap().is_empty()); // outside of any context
///
/// let scope = ContextScope::open(me)?;
/// assert_eq!(scope.run(take::on(&peer, Traced(2))).await?, 2);
/// assert_eq!(*SENT_IN.lock().unwrap(), [scope.id()]);
/// scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
pub fn outgoing<R: Record + Default, T>(note: impl FnOnce(&mut R) -> T) -> Option<(u64, T)> {
    scope::note(note)
}

/// The message that the value being deserialized on this thread came in; none outside of a context.
///
/// ```
/// use farref::context::{self, ContextScope, NodeId};
/// use serde::{Deserialize, Deserializer, Serialize};
///
/// /// Learns who sent it when it is read.
/// #[derive(Serialize)]
/// struct Letter {
///     text: String,
///     #[serde(skip)]
///     from: Option<NodeId>,
/// }
///
/// impl<'de> Deserialize<'de> for Letter {
///     fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
///         #[derive(Deserialize)]
///         #[serde(rename = "Letter")]
///         struct Sent {
///             text: String,
///         }
///         let Sent { text } = Sent::deserialize(deserializer)?;
///         let from = context::incoming().map(|message| message.peer);
///         Ok(Letter { text, from })
///     }
/// }
///
/// #[farref::remote]
/// async fn sender(letter: Letter) -> Option<NodeId> {
///     letter.from
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// let scope = ContextScope::open(me)?;
/// let letter = Letter { text: "hello".to_owned(), from: None };
/// let seen = scope.run(async { sender::on(&peer, letter).await }).await?;
/// assert_eq!(seen, Some(me.node()));
/// scope.release().await?;
/// # cluster.shutdown().await
/// # }
/// ```
pub fn incoming() -> Option<Message> {
    let (core, id, peer) = scope::incoming()?;
    Some(Message::new(&core, id, peer, 0))
}

/// What a crate keeps for a worker, as long as the worker runs. See [`Worker::extension`].
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
///
/// use farref::Worker;
/// use farref::context::{ContextId, ContextScope, Extension};
///
/// /// How often each context came by.
/// #[derive(Default)]
/// struct Visits(Mutex<HashMap<ContextId, u32>>);
///
/// impl Extension for Visits {
///     fn context_closed(&self, _: &Worker, context: ContextId) {
///         self.0.lock().unwrap().remove(&context);
///     }
/// }
///
/// #[farref::remote]
/// async fn visit() -> u32 {
///     let scope = ContextScope::current().expect("called in a context");
///     let visits = scope.worker().extension::<Visits>();
///     let mut visits = visits.0.lock().unwrap();
///     let count = visits.entry(scope.id()).or_default();
///     *count += 1;
///     *count
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// let scope = ContextScope::open(me)?;
/// assert_eq!(scope.run(async { visit::on(&peer).await }).await?, 1);
/// assert_eq!(scope.run(async { visit::on(&peer).await }).await?, 2);
///
/// // When this is over, this worker's extensions have been told, and the others' are being told.
/// scope.release().await?;
/// let there = cluster.worker(1).extension::<Visits>();
/// while !there.0.lock().unwrap().is_empty() {
///     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
/// }
/// # cluster.shutdown().await
/// # }
/// ```
pub trait Extension: Any + Send + Sync {
    /// The context is over on this worker: whatever was recorded for it can go.
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use std::sync::Mutex;
    ///
    /// use farref::Worker;
    /// use farref::context::{ContextId, ContextScope, Extension};
    ///
    /// #[derive(Default)]
    /// struct Open(Mutex<HashSet<ContextId>>);
    ///
    /// impl Extension for Open {
    ///     fn context_closed(&self, _: &Worker, context: ContextId) {
    ///         self.0.lock().unwrap().remove(&context);
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let scope = ContextScope::open(me)?;
    /// let open = me.extension::<Open>();
    /// open.0.lock().unwrap().insert(scope.id());
    ///
    /// scope.release().await?;
    /// assert!(open.0.lock().unwrap().is_empty());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    fn context_closed(&self, worker: &Worker, context: ContextId) {
        let _ = (worker, context);
    }

    /// A worker that took part in the context is gone. The context is still to be released.
    ///
    /// ```
    /// use std::sync::Mutex;
    ///
    /// use farref::context::{ContextId, ContextScope, Extension, NodeId};
    /// use farref::{Error, Worker};
    /// use tokio::sync::Notify;
    ///
    /// #[derive(Default)]
    /// struct Losses {
    ///     seen: Mutex<Vec<(ContextId, NodeId)>>,
    ///     more: Notify,
    /// }
    ///
    /// impl Extension for Losses {
    ///     fn context_failed(&self, _: &Worker, context: ContextId, lost: NodeId) {
    ///         self.seen.lock().unwrap().push((context, lost));
    ///         self.more.notify_one();
    ///     }
    /// }
    ///
    /// #[farref::remote]
    /// async fn take_part() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let losses = me.extension::<Losses>(); // there is nobody to tell before
    /// let scope = ContextScope::open(me)?;
    /// scope.run(async { take_part::on(&peer).await }).await?;
    ///
    /// let lost = cluster.worker(1).node();
    /// cluster.crash(1).await;
    /// losses.more.notified().await;
    /// assert_eq!(*losses.seen.lock().unwrap(), [(scope.id(), lost)]);
    /// assert!(matches!(scope.check(), Err(Error::ContextLost { .. })));
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    fn context_failed(&self, worker: &Worker, context: ContextId, lost: NodeId) {
        let _ = (worker, context, lost);
    }
}

/// The extensions of one worker.
#[derive(Default)]
pub(crate) struct Extensions(Mutex<HashMap<TypeId, Arc<dyn Extension>>>);

impl Extensions {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TypeId, Arc<dyn Extension>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get<T: Extension + Default>(&self) -> Arc<T> {
        let extension = Arc::clone(
            self.lock()
                .entry(TypeId::of::<T>())
                .or_insert_with(|| Arc::new(T::default())),
        );
        let any: Arc<dyn Any + Send + Sync> = extension;
        // The map's key is the type.
        any.downcast().unwrap_or_default()
    }

    pub(crate) fn all(&self) -> Vec<Arc<dyn Extension>> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn clear(&self) {
        // Their destructors may come back here.
        let extensions = std::mem::take(&mut *self.lock());
        drop(extensions);
    }
}
