//! This worker's end of all links: who it is, what it was told, its clock and its tasks.

mod callbacks;
mod config;
mod wire_metrics;

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farref_proto::{NodeId, Session, Time};
use ring::hmac;
use tokio::runtime::Handle;
use tokio::task::{AbortHandle, JoinSet};

pub(crate) use callbacks::{BoxFuture, WireCallbacks};
pub(crate) use config::{Identity, NativeConfig};

use super::frame::{Limits, Packet, Recycler};
use super::transport::{OwnMemory, Reach};
use crate::agent::Inbound;
use crate::support::clock::{Instant, RuntimeInstant};
use crate::support::io_thread::IoThread;
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::simulation::unsteady;
use crate::support::user_code::UserCode;
use crate::support::waiting_threads::NoThread;
use wire_metrics::WireMetrics;

/// Room for so many messages is kept where messages are gathered that have been acknowledged.
const KEPT_ROOM: usize = 1024;

/// What all links of an agent and all its tasks need.
pub(crate) struct Endpoint {
    pub(crate) identity: Identity,
    pub(crate) key: hmac::Key,
    pub(crate) config: NativeConfig,
    pub(crate) limits: Limits,
    pub(crate) recycler: Arc<Recycler>,
    /// This process' memory, if peers on the same host may read it, and this end theirs.
    pub(crate) own_memory: Option<OwnMemory>,
    pub(crate) callbacks: Arc<dyn WireCallbacks>,
    pub(crate) inbound: Weak<dyn Inbound>,
    pub(crate) reach: Reach,
    pub(crate) metrics: WireMetrics,
    /// Of the system's clock: both runtimes read it, and either may have a clock of its own.
    epoch: Instant,
    io: Arc<IoThread>,
    /// The program's runtime, where streams are read.
    pub(crate) runtime: Handle,
    /// Where buffers of the program are dropped that must not be where they are.
    pub(crate) user_code: Arc<UserCode>,
    tasks: Mutex<Option<JoinSet<()>>>,
    closing: AtomicBool,
    /// Whether tasks of streams do not get to run.
    #[cfg(test)]
    pub(crate) is_starved: AtomicBool,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("identity", &self.identity)
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// To be called within a tokio runtime, which then reads streams.
    pub(crate) fn new(
        identity: Identity,
        config: NativeConfig,
        callbacks: Arc<dyn WireCallbacks>,
        inbound: Weak<dyn Inbound>,
        reach: Reach,
        io: Arc<IoThread>,
    ) -> Arc<Self> {
        let name = &identity.card.name;
        let tls = identity.tls.as_ref().map(|tls| tls.for_worker(name));
        let identity = Identity { tls, ..identity };
        let token = identity.token.as_deref().unwrap_or_default();
        Arc::new(Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, token),
            limits: Limits {
                message_bytes: config.max_message_bytes,
                head_bytes: config.max_head_bytes,
                parts: config.max_parts,
            },
            recycler: Recycler::new(config.recycle_bytes, Some(Handle::current())),
            own_memory: config.shared_memory.then(OwnMemory::new).flatten(),
            metrics: WireMetrics::new(&identity.card.name),
            identity,
            config,
            callbacks,
            inbound,
            reach,
            epoch: Instant::now(),
            io,
            runtime: Handle::current(),
            user_code: Arc::new(UserCode::new(Handle::current())),
            tasks: Mutex::new(Some(JoinSet::new())),
            closing: AtomicBool::new(false),
            #[cfg(test)]
            is_starved: AtomicBool::new(false),
        })
    }

    pub(crate) fn node(&self) -> NodeId {
        self.identity.card.node
    }

    /// A fresh session with a peer.
    pub(crate) fn session(&self, peer: NodeId) -> Session<Packet> {
        Session::new(
            self.node(),
            peer,
            self.identity.group,
            self.config.session(),
            self.now(),
        )
    }

    /// The time as sessions see it.
    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The clock's reading at a time.
    pub(crate) fn instant(&self, time: Time) -> RuntimeInstant {
        (self.epoch + Duration::from_nanos(time.0)).into()
    }

    /// The runtime, unless it is gone or nothing is delivered any more.
    pub(crate) fn inbound(&self) -> Option<Arc<dyn Inbound>> {
        if self.is_closing() {
            return None;
        }
        self.inbound.upgrade()
    }

    /// Whether a node has said good-bye.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        let inbound = self.inbound.upgrade();
        inbound.is_some_and(|inbound| inbound.has_left(node))
    }

    /// Whether nothing that a peer could still say is awaited.
    pub(crate) fn is_done_with(&self, peer: NodeId) -> bool {
        self.inbound()
            .is_some_and(|inbound| inbound.is_done_with(peer))
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn begin_closing(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// Starts a task on the program's runtime that ends with the agent at the latest. None once the agent
    /// has stopped.
    pub(crate) fn spawn(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        self.spawn_on(unsteady(task), &self.runtime)
    }

    /// The same on the thread that no program can keep from running.
    pub(crate) fn spawn_io(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> Option<AbortHandle> {
        // Where streams cannot be read on that thread, peers must not be blamed there either.
        let can_read = cfg!(unix);
        let runtime = if can_read {
            self.io.handle()
        } else {
            &self.runtime
        };
        self.spawn_on(IoThread::as_task(task), runtime)
    }

    /// Does something that may take long on a thread that neither the program nor anything else here waits for, if there
    /// is one.
    pub(crate) fn run_waiting(&self, job: impl FnOnce() + Send + 'static) -> Result<(), NoThread> {
        self.io.waiting_threads().run(job)
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

    /// Drops messages (LI-4). Nearly none has anything of the program's.
    pub(crate) fn drop_packets(&self, packets: &mut Vec<Packet>) {
        if packets.iter().any(Packet::has_programs_buffers) {
            let packets = std::mem::take(packets);
            self.user_code.run(move || drop(packets));
        }
        packets.drain(..).for_each(Packet::recycle);
        packets.shrink_to(KEPT_ROOM);
    }

    /// Ends all tasks. Returns them, for those who want to wait for them.
    pub(crate) fn stop_tasks(&self) -> JoinSet<()> {
        self.begin_closing();
        let mut tasks = lock(&self.tasks).take().unwrap_or_default();
        if mutated!(KeepTasks) {
            tasks.detach_all();
        }
        tasks.abort_all();
        tasks
    }
}
