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

use std::any::Any;
use std::sync::Arc;

pub use farref_proto::{ContextId, NodeId};

use super::Worker;
use crate::error::Result;
pub use crate::runtime::context_scope::{ContextScope, InContext, Message, Record};
use crate::runtime::{Core, value_scope};
use crate::tables::extensions::ContextListener;

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
    value_scope::note(note)
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
    let (core, id, peer) = value_scope::origin()?;
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

    /// Whether [`context_closed`](Self::context_closed) takes next to no time for this context, runs no code of others, and
    /// may therefore be called where the worker reads messages. Otherwise it is called on a thread, which costs more.
    fn closes_quickly(&self, context: ContextId) -> bool {
        let _ = context;
        false
    }

    /// What there is to say of the context on this worker, in a few words, for whoever
    /// [looks](crate::Snapshot::open_contexts). Called on a thread that may wait, but not for long.
    ///
    /// ```
    /// use farref::context::{ContextId, ContextScope, Extension};
    ///
    /// #[derive(Default)]
    /// struct Steps;
    ///
    /// impl Extension for Steps {
    ///     fn describe(&self, _: ContextId) -> Option<String> {
    ///         Some("3 steps".to_owned())
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// me.extension::<Steps>();
    /// let scope = ContextScope::open(me)?;
    /// assert_eq!(me.snapshot().open_contexts[0].notes, ["3 steps"]);
    /// scope.release().await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    fn describe(&self, context: ContextId) -> Option<String> {
        let _ = context;
        None
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

/// An extension, as the runtime tells it what happens.
struct ExtensionListener<T>(Arc<T>);

impl<T: Extension> ContextListener<Core> for ExtensionListener<T> {
    fn context_closed(&self, core: &Arc<Core>, context: ContextId) {
        self.0.context_closed(&Worker::of(core), context);
    }

    fn closes_quickly(&self, context: ContextId) -> bool {
        self.0.closes_quickly(context)
    }

    fn describe(&self, context: ContextId) -> Option<String> {
        self.0.describe(context)
    }

    fn context_failed(&self, core: &Arc<Core>, context: ContextId, lost: NodeId) {
        self.0.context_failed(&Worker::of(core), context, lost);
    }
}

impl Worker {
    /// What a crate keeps for this worker, made when it is first asked for.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use farref::Worker;
    /// use farref::context::Extension;
    ///
    /// #[derive(Default)]
    /// struct Hits(AtomicU64);
    ///
    /// impl Extension for Hits {}
    ///
    /// #[farref::remote]
    /// async fn hit() -> u64 {
    ///     let me = Worker::current().expect("inside of a remote function");
    ///     me.extension::<Hits>().0.fetch_add(1, Ordering::Relaxed) + 1
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// // One for each worker, though they share a process here.
    /// assert_eq!(hit::on(&peer).await?, 1);
    /// assert_eq!(hit::on(&peer).await?, 2);
    /// assert_eq!(hit::on(&me.me()).await?, 1);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn extension<T: Extension + Default>(&self) -> Arc<T> {
        self.core
            .extensions
            .get(|extension: &Arc<T>| Arc::new(ExtensionListener(Arc::clone(extension))))
    }
}
