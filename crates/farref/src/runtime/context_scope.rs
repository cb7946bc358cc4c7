//! A worker's part in a context, and the messages of a context.

use std::any::Any;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use farref_proto::{ContextId, NodeId};

use super::{Core, current};
use crate::error::Result;

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
    pub(crate) core: Arc<Core>,
    pub(crate) id: ContextId,
}

impl ContextScope {
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
/// See [`Record`] and [`incoming`](crate::context::incoming) for where it comes from.
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
/// a value that is being serialized leaves what the context is to know of it in a record, by [`outgoing`](crate::context::outgoing).
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
