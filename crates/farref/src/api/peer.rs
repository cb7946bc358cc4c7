//! A handle to another worker, or to oneself.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farref_proto::{Departure, Incarnation, NodeId, WorkerId};

use crate::error::{Error, FunctionName, ReferenceError, Result};
use crate::runtime::Core;

/// A worker that functions can be called on.
///
/// It stands for the name, not for one life of it: when the worker dies and comes back under the same
/// name, calls go to the new life. (References lead to the life that has the value.)
///
/// It can be put into arguments, results and items of streams, anywhere inside of them, and arrives as a `Peer` of the
/// worker that gets it, which reaches the same worker: it is told whom to turn to.
///
/// ```
/// #[farref::remote]
/// async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let mut cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
/// let ps = cluster.worker(0).peer("ps")?;
/// assert_eq!(add::on(&ps, 1, 2).await?, 3);
///
/// // The handle outlives the life that it was made in.
/// cluster.crash(1).await;
/// cluster.restart(1).await?;
/// assert_eq!(add::on(&ps, 3, 4).await?, 7);
/// # cluster.shutdown().await
/// # }
/// ```
///
/// Whom to ask, as an argument:
///
/// ```
/// use farref::{Peer, Worker};
///
/// #[farref::remote]
/// async fn greet() -> String {
///     let caller = Worker::caller().expect("inside of a remote function");
///     format!("welcome, {}", caller.name())
/// }
///
/// #[farref::remote]
/// async fn introduce(to: Vec<Peer>) -> farref::Result<Vec<String>> {
///     let mut greetings = Vec::new();
///     for peer in to {
///         greetings.push(greet::on(&peer).await?); // from there, straight to it
///     }
///     Ok(greetings)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start_named(&["host", "guest", "cook"]).await?;
/// let host = cluster.worker(0);
/// let guest = host.peer("guest")?;
/// let greetings = introduce::on(&guest, vec![host.me(), host.peer("cook")?]).await?;
/// assert_eq!(greetings, ["welcome, guest", "welcome, guest"]);
/// # cluster.shutdown().await
/// # }
/// ```
pub struct Peer {
    /// The worker that calls it. None where the shape of a type is traced: then there is nobody to be called.
    core: Option<Arc<Core>>,
    worker: WorkerId,
    name: Arc<str>,
    /// The life that was found last, and in its upper half the number of the view in which it was.
    life: AtomicU64,
}

impl Clone for Peer {
    fn clone(&self) -> Self {
        Self {
            core: self.core.clone(),
            worker: self.worker,
            name: Arc::clone(&self.name),
            life: AtomicU64::new(self.life.load(Ordering::Relaxed)),
        }
    }
}

impl Peer {
    pub(crate) fn of(core: &Arc<Core>, node: NodeId) -> Self {
        Self {
            core: Some(Arc::clone(core)),
            worker: node.worker,
            name: core.name_of(node),
            life: AtomicU64::new(0),
        }
    }

    /// The same for one whose name is at hand.
    pub(crate) fn called(core: &Arc<Core>, node: NodeId, name: Arc<str>) -> Self {
        Self {
            core: Some(Arc::clone(core)),
            worker: node.worker,
            name,
            life: AtomicU64::new(0),
        }
    }

    /// One that stands for nobody, for whoever traces the shape of a type.
    pub(super) fn hollow() -> Self {
        Self {
            core: None,
            worker: WorkerId(0),
            name: Arc::from("nobody"),
            life: AtomicU64::new(0),
        }
    }

    /// The worker that calls it.
    #[inline]
    pub(crate) fn core(&self) -> Result<&Arc<Core>> {
        self.core
            .as_ref()
            .ok_or_else(|| ReferenceError::Hollow.into())
    }

    /// What it is called.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert_eq!(peer.name(), "worker1");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number in the group: the rank, if the group was made with ranks.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// // A peer for each of some keys, the same on every worker.
    /// let of_key = |key: usize| me.peers().swap_remove(key % 2);
    /// assert_eq!(of_key(7).rank(), peer.rank());
    /// assert_eq!(peer.rank(), 1);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn rank(&self) -> u32 {
        self.worker.0
    }

    /// Whether this is the worker that the handle was made by.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let others: Vec<_> = me.peers().into_iter().filter(|peer| !peer.is_me()).collect();
    /// assert_eq!(others.len(), 1);
    /// assert_eq!(others[0].name(), peer.name());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn is_me(&self) -> bool {
        self.core
            .as_ref()
            .is_some_and(|core| self.worker == core.me.worker)
    }

    /// Whether it is a member of the group, as far as this worker knows.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert!(peer.is_alive());
    ///
    /// cluster.crash(1).await;
    /// ping::on(&peer).await.unwrap_err(); // known by now
    /// assert!(!peer.is_alive());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn is_alive(&self) -> bool {
        self.core
            .as_ref()
            .is_some_and(|core| self.present(core).is_some())
    }

    /// Ends when the life of the worker is over that this handle reaches now, and says whether it left or died; at
    /// once if there is none. A worker that the group has never heard of is an error. One that is about to join counts as there; one that comes back under the name is another life.
    ///
    /// Whoever was silent for too long is taken for dead, and so has [died](Departure::Died). It is an error if this
    /// worker itself ends before. Dropping the future is all it takes to wait no longer.
    ///
    /// ```
    /// use farref::Departure;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(3).await?;
    /// let me = cluster.worker(0).clone();
    /// let [leaves, dies] = [me.peer("worker1")?, me.peer("worker2")?];
    /// let gone = tokio::spawn(leaves.gone());
    ///
    /// cluster.worker(1).leave().await?;
    /// assert_eq!(gone.await.expect("no panic")?, Departure::Left);
    ///
    /// let gone = dies.gone();
    /// cluster.crash(2).await;
    /// cluster.restart(2).await?;
    /// assert_eq!(gone.await?, Departure::Died); // though another life is there by now
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn gone(&self) -> impl Future<Output = Result<Departure>> + Send + use<> {
        let gone = self.core().and_then(|core| {
            let standing = core.look(|node| node.membership().view().standing(self.worker));
            let known = standing.map(|standing| NodeId {
                worker: self.worker,
                incarnation: standing.incarnation,
            });
            let is_over =
                known.is_some_and(|life| core.look(|node| node.membership().view().is_gone(life)));
            let followed = is_over.then(|| core.life_called(&self.name)).flatten();
            let life = match followed.or(known) {
                Some(life) => life,
                // Nobody is to look for a worker that the group has never heard of: it would be declared dead.
                None => self.life(core, FunctionName::ours("gone"))?,
            };
            Ok(core.gone(life))
        });
        async { gone?.await }
    }

    /// The life that is there: of the number that the worker had, or else of its name. A worker that has taken the group's store
    /// along with it when it died has another number when it comes back (F3).
    pub(super) fn present(&self, core: &Core) -> Option<NodeId> {
        core.current_life(self.worker)
            .or_else(|| core.life_called(&self.name))
    }

    /// The life that a call would go to.
    pub(crate) fn life(&self, core: &Core, function: FunctionName) -> Result<NodeId> {
        // First, so that what is found is never taken for newer than it is.
        let view = core.view_number() << 32;
        let known = self.life.load(Ordering::Relaxed);
        if view != 0 && known & !u64::from(u32::MAX) == view {
            return Ok(NodeId {
                worker: self.worker,
                incarnation: Incarnation(known as u32),
            });
        }
        let found = self.present(core);
        if let Some(life) = found.filter(|life| life.worker == self.worker) {
            let known = view | u64::from(life.incarnation.0);
            self.life.store(known, Ordering::Relaxed);
        }
        found.ok_or_else(|| {
            let stage = *core.stage.borrow();
            if stage == crate::runtime::WorkerStage::Member {
                Error::PeerLost {
                    peer: Arc::clone(&self.name),
                    function,
                    cause: core.rejections.of_worker(self.worker),
                }
            } else {
                core.not_member()
            }
        })
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({} {})", self.name, self.worker)
    }
}
