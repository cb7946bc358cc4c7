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

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll};

pub use farref_proto::{ContextId, NodeId};

use crate::codec::scope;
use crate::current;
use crate::error::Result;
use crate::protocol::Core;
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
    pub fn open(worker: &Worker) -> Result<Self> {
        let core = Arc::clone(&worker.core);
        if !core.is_member() {
            return Err(core.not_member());
        }
        let id = core.input(|node, _| node.open_context());
        Ok(Self { core, id })
    }

    /// The context that this code runs in: that of the call that a remote function works for, or the
    /// one that was entered last.
    pub fn current() -> Option<Self> {
        let (core, id) = current::context()?;
        Some(Self { core, id })
    }

    /// Which context it is. Unique in the group, also over restarts.
    pub fn id(&self) -> ContextId {
        self.id
    }

    /// The worker that takes part.
    pub fn worker(&self) -> Worker {
        Worker::of(&self.core)
    }

    /// Whether calls can be made in it: an error says whether it was released or a worker was lost.
    pub fn check(&self) -> Result<()> {
        let checked = self.core.look(|node| node.check_context(self.id));
        checked.map_err(|error| self.core.explain_context(error))
    }

    /// Runs code inside of the context: calls of this worker that are built there belong to it.
    pub fn enter<T>(&self, f: impl FnOnce() -> T) -> T {
        current::enter_context(Some((Arc::clone(&self.core), self.id)), f)
    }

    /// The same for a future. Tasks that it spawns are not inside.
    pub fn run<F: Future>(&self, future: F) -> InContext<F> {
        InContext {
            scope: self.clone(),
            future: Box::pin(future),
        }
    }

    /// Releases the context and waits until its calls are done and every worker has forgotten it.
    /// What the calls still do goes on. If the wait is dropped, the release is not.
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

/// A message of a context that is being written, or read.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The context, as the worker sees it that writes or reads.
    pub scope: ContextScope,
    /// Who it goes to, or comes from.
    pub peer: NodeId,
    /// For one that is being written: a number that no other message of this worker has.
    pub number: u64,
}

/// The message that the value being serialized on this thread goes into; none outside of a context.
pub fn outgoing() -> Option<Message> {
    let (core, id, peer, number) = scope::outgoing()?;
    Some(Message {
        scope: ContextScope { core, id },
        peer,
        number,
    })
}

/// The message that the value being deserialized on this thread came in; none outside of a context.
pub fn incoming() -> Option<Message> {
    let (core, id, peer) = scope::incoming()?;
    Some(Message {
        scope: ContextScope { core, id },
        peer,
        number: 0,
    })
}

/// What a crate keeps for a worker, as long as the worker runs. See [`Worker::extension`].
pub trait Extension: Any + Send + Sync {
    /// The context is over on this worker: whatever was recorded for it can go.
    fn context_closed(&self, worker: &Worker, context: ContextId) {
        let _ = (worker, context);
    }

    /// A worker that took part in the context is gone. The context is still to be released.
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

    pub(crate) fn clear(&self) {
        // Their destructors may come back here.
        let extensions = std::mem::take(&mut *self.lock());
        drop(extensions);
    }
}
