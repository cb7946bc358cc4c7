//! What all links of an agent share: who it is, its clock, its tasks and the table of links.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError, Weak};
use std::time::{Duration, Instant};

use farref_proto::{Incarnation, NodeId, Session, Time, WorkerId};
use foldhash::fast::FixedState;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

use super::Contacts;
use super::config::{Identity, NativeConfig};
use super::frame::{Limits, Packet, Recycler};
use super::handshake::{Nonce, Refusal};
use super::link::Link;
use super::listen::Waiting;
use super::memory::MemoryNetwork;
use super::metering::Meters;
use super::timer::Timer;
use crate::agent::Inbound;
use crate::support::io_thread::IoThread;
use crate::support::user_code::UserCode;

/// The parts of an agent that its tasks need.
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) key: hmac::Key,
    pub(super) config: NativeConfig,
    pub(super) limits: Limits,
    pub(super) recycler: Arc<Recycler>,
    pub(super) contacts: Arc<dyn Contacts>,
    pub(super) inbound: Weak<dyn Inbound>,
    pub(super) network: Option<(MemoryNetwork, String)>,
    pub(super) timer: Timer,
    pub(super) meters: Meters,
    pub(super) waiting: Waiting,
    pub(super) observers: AtomicUsize,
    /// Whether the tasks of streams do not get to run, and are helped.
    pub(super) is_helping: AtomicBool,
    random: SystemRandom,
    /// Of the system's clock: both runtimes read it, and either may have a clock of its own.
    epoch: Instant,
    io: Arc<IoThread>,
    /// The program's runtime, where streams are read.
    pub(super) handle: Handle,
    /// Where buffers of the program are let go of that must not be where they are.
    pub(super) user_code: Arc<UserCode>,
    tasks: Mutex<Option<JoinSet<()>>>,
    closing: AtomicBool,
    table: RwLock<Table>,
}

#[derive(Default)]
struct Table {
    links: HashMap<NodeId, Arc<Link>, FixedState>,
    /// Of each worker the latest life that is over: nothing is said to it nor to those before it, and
    /// nothing heard.
    departed: HashMap<WorkerId, Incarnation, FixedState>,
    /// Whether the agent has stopped: there are no links any more, nor will there be.
    stopped: bool,
}

impl Table {
    fn is_over(&self, life: NodeId) -> bool {
        let latest = self.departed.get(&life.worker);
        latest.is_some_and(|latest| life.incarnation <= *latest)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// To be called within a tokio runtime, which then reads streams.
    pub(super) fn new(
        identity: Identity,
        config: NativeConfig,
        contacts: Arc<dyn Contacts>,
        inbound: Weak<dyn Inbound>,
        network: Option<(MemoryNetwork, String)>,
        io: Arc<IoThread>,
    ) -> Arc<Self> {
        let token = identity.token.as_deref().unwrap_or_default();
        Arc::new(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, token),
            limits: Limits {
                message_bytes: config.max_message_bytes,
                head_bytes: config.max_head_bytes,
                parts: config.max_parts,
            },
            recycler: Recycler::new(config.recycle_bytes, Some(Handle::current())),
            waiting: Waiting::new(config.max_handshakes),
            observers: AtomicUsize::new(0),
            is_helping: AtomicBool::new(false),
            meters: Meters::new(&identity.card.name),
            identity,
            config,
            contacts,
            inbound,
            network,
            timer: Timer::default(),
            random: SystemRandom::new(),
            epoch: Instant::now(),
            io,
            handle: Handle::current(),
            user_code: Arc::new(UserCode::new(Handle::current())),
            tasks: Mutex::new(Some(JoinSet::new())),
            closing: AtomicBool::new(false),
            table: RwLock::default(),
        })
    }

    pub(super) fn node(&self) -> NodeId {
        self.identity.card.node
    }

    /// A fresh session with a peer.
    pub(super) fn session(&self, peer: NodeId) -> Session<Packet> {
        Session::new(
            self.node(),
            peer,
            self.identity.group,
            self.config.session(),
            self.now(),
        )
    }

    /// The time as sessions see it.
    pub(super) fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The clock's reading at a time.
    pub(super) fn instant(&self, time: Time) -> tokio::time::Instant {
        (self.epoch + Duration::from_nanos(time.0)).into()
    }

    /// A fresh nonce. None if the system has no randomness to give.
    pub(super) fn nonce(&self) -> Option<Nonce> {
        let mut nonce = Nonce::default();
        self.random.fill(&mut nonce).ok()?;
        Some(nonce)
    }

    /// The runtime, unless it is gone or nothing is handed in any more.
    pub(super) fn inbound(&self) -> Option<Arc<dyn Inbound>> {
        if self.is_closing() {
            return None;
        }
        self.inbound.upgrade()
    }

    /// Whether a node has said good-bye.
    pub(super) fn has_left(&self, node: NodeId) -> bool {
        let inbound = self.inbound.upgrade();
        inbound.is_some_and(|inbound| inbound.has_left(node))
    }

    /// Whether nothing that a peer could still say is awaited.
    pub(super) fn is_done_with(&self, peer: NodeId) -> bool {
        self.inbound()
            .is_some_and(|inbound| inbound.is_done_with(peer))
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(super) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Starts a task on the program's runtime that ends with the agent at the latest. None once the agent
    /// has stopped.
    pub(super) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        self.spawn_on(task, &self.handle)
    }

    /// The same on the thread that no program can keep from running.
    pub(super) fn spawn_io(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        // Who cannot help out there with reading must not blame peers for it there either.
        let helps = cfg!(unix);
        let runtime = if helps {
            self.io.handle()
        } else {
            &self.handle
        };
        self.spawn_on(task, runtime)
    }

    fn spawn_on(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
        runtime: &Handle,
    ) -> Option<AbortHandle> {
        let mut tasks = lock(&self.tasks);
        let tasks = tasks.as_mut()?;
        while tasks.try_join_next().is_some() {}
        Some(tasks.spawn_on(task, runtime))
    }

    /// Lets go of messages (LI-4). Nearly none has anything of the program's.
    pub(super) fn let_go(&self, mut packets: Vec<Packet>) {
        packets.retain(Packet::has_programs_buffers);
        if !packets.is_empty() {
            self.user_code.run(move || drop(packets));
        }
    }

    /// Ends all tasks and forgets all links. Returns the tasks, for those who want to wait for them.
    pub(super) fn stop(&self) -> JoinSet<()> {
        self.begin_closing();
        let mut tasks = lock(&self.tasks).take().unwrap_or_default();
        tasks.abort_all();
        let links: Vec<_> = {
            let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
            table.stopped = true;
            table.links.drain().map(|(_, link)| link).collect()
        };
        for link in &links {
            link.discard();
        }
        tasks
    }

    pub(super) fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.links.get(&node).cloned()
    }

    pub(super) fn links(&self) -> Vec<Arc<Link>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.links.values().cloned().collect()
    }

    /// The link with a node, made if there is none. None if the node is gone or is this one, or the
    /// agent has stopped.
    pub(super) fn link_or_new(self: &Arc<Self>, node: NodeId) -> Option<Arc<Link>> {
        if let Some(link) = self.link(node) {
            return Some(link);
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.stopped || node == self.node() || table.is_over(node) {
            return None;
        }
        let link = table
            .links
            .entry(node)
            .or_insert_with(|| Link::new(Arc::clone(self), node));
        Some(Arc::clone(link))
    }

    /// The link for a connection that a node has made and proved to be its own.
    pub(super) fn link_for_dialer(self: &Arc<Self>, node: NodeId) -> Result<Arc<Link>, Refusal> {
        let known = self.link(node);
        if self.is_closing() {
            // Only what is still to be delivered is worth a connection.
            return known
                .filter(|link| !link.is_drained())
                .ok_or(Refusal::Closing);
        }
        let inbound = self.inbound.upgrade().ok_or(Refusal::Closing)?;
        if inbound.is_gone(node) {
            return Err(Refusal::Gone);
        }
        self.link_or_new(node).ok_or(Refusal::Gone)
    }

    /// Of how many workers it is remembered that a life is over.
    #[cfg(test)]
    pub(super) fn departed(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.departed.len()
    }

    /// Takes a link out of the table for good.
    pub(super) fn depart(&self, node: NodeId) -> Option<Arc<Link>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let latest = table
            .departed
            .entry(node.worker)
            .or_insert(node.incarnation);
        *latest = node.incarnation.max(*latest);
        table.links.remove(&node)
    }
}

/// Locks a mutex, poisoned or not: what it guards is consistent between any two statements.
pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The same for who does not wait: none if somebody else has it.
pub(super) fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
