//! The link with one life of one peer: its session, its present connection, and what is queued.
//!
//! A connection is made of two streams. The *main* stream carries control messages, small calls and
//! answers, and heartbeats; the *bulk* stream, made when it is first needed, carries large
//! messages. If either breaks, the connection is lost and both are closed. Each connection and each
//! attempt at one has a number, its *epoch*; whoever acts for a connection says its epoch, and acts
//! in vain if another has taken its place.
//!
//! # Invariants
//!
//! - **LI-1** The lock of a link is never held over a system call, nor while anything outside this
//!   module is called that may call back.
//! - **LI-2** What a peer sent is delivered by one thread at a time, in the order in which the session
//!   gave it, whatever connection brought it.
//! - **LI-3** A cancellation travels on the lane of the call that it cancels, so it arrives after it.
//! - **LI-4** Messages that are acknowledged or thrown away are dropped outside the lock, and not where
//!   code of the program is barred (UC-1): their buffers may be the program's, with destructors of their
//!   own.

mod busy_poll;
mod connecting;
mod connection;
mod dialing;
mod disconnecting;
mod memory_offers;
mod memory_talk;
mod peer_reads;
mod read_jobs;
mod receiving;
mod recv_stream;
mod send_stream;
mod sending;
mod table;
mod timer;
mod writer_lock;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farref_proto::{Control, Lane, MessageId, NodeId, Session, SessionEvent, Target, Time};
use foldhash::fast::FixedState;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::error;

use super::endpoint::Endpoint;
use super::frame::Packet;
use crate::agent::{Failure, LinkStatistics, Message, Origins};
use crate::rendezvous::Card;
use crate::support::lock::lock;
use crate::support::user_code;
pub(super) use connecting::PendingConnection;
use connection::Connection;
pub(super) use connection::StreamHalves;
use peer_reads::PeerReads;
pub(super) use recv_stream::RecvStream;
pub(super) use send_stream::{MAIN, SendStream};
pub(super) use table::LinkTable;
use timer::{Alarm, Timed, Timer};

/// The link with one life of one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) endpoint: Arc<Endpoint>,
    timer: Arc<Timer<Self>>,
    pub(super) peer: NodeId,
    /// When the timer looks at it.
    pub(super) alarm: Alarm,
    state: Mutex<LinkState>,
    /// Held while messages of the peer are delivered (LI-2). Locked before `state`.
    pub(super) delivery_lock: Mutex<()>,
    /// Something was acknowledged or the link has changed, for those who wait for its end.
    progress: Notify,
    /// An attempt to connect that is under way has become pointless.
    abandon: Notify,
    /// How urgent what is queued is that nobody has set out to write.
    unflushed: AtomicU8,
    /// Writes by callers since the peer was last heard.
    burst: AtomicU32,
    sent: AtomicU64,
    received: AtomicU64,
    peer_reads: Arc<PeerReads>,
}

/// What the lock of a link guards.
#[derive(Debug)]
pub(super) struct LinkState {
    session: Session<Packet>,
    /// The number of the present connection or attempt.
    epoch: u64,
    /// The latest such number that the peer has said of its own end.
    peer_epoch: u64,
    connection: ConnectionState,
    /// How to reach the peer, once it is known.
    pub(super) card: Option<Card>,
    /// The task that is to make a connection.
    dialer: Option<AbortHandle>,
    /// Since when it has been at its present attempt.
    attempt: Option<Time>,
    /// Attempts and connections in a row that brought nothing.
    pub(super) failures: u32,
    lifecycle: Lifecycle,
    /// Whether it was closed because nothing was ever said on it: the peer is welcome to another (LT-2).
    forgotten: bool,
    /// Whether the connection is to be kept though nothing is queued.
    watched: bool,
    /// Calls to the peer that travelled as bulk and are not answered (LI-3).
    pub(super) bulk_calls: HashSet<MessageId, FixedState>,
    /// Whether somebody waits for `progress`.
    has_waiters: bool,
}

/// How far the present connection has got.
#[derive(Debug)]
enum ConnectionState {
    /// There is none.
    Disconnected,
    /// The ends are in their handshake.
    Handshaking,
    /// Frames flow.
    Established(Connection),
}

/// Whether the link goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lifecycle {
    /// Connections are made as needed.
    Open,
    /// The peer left: what is queued goes out on the present connection, no other is made.
    Closing,
    /// No connection is made or taken any more: the peer misbehaved, refuses us, or is forgotten.
    Closed,
}

impl Link {
    fn new(endpoint: &Arc<Endpoint>, timer: &Arc<Timer<Self>>, peer: NodeId) -> Arc<Self> {
        let session = endpoint.session(peer);
        let timeout = session.poll_timeout();
        let link = Arc::new(Self {
            endpoint: Arc::clone(endpoint),
            timer: Arc::clone(timer),
            peer,
            alarm: Alarm::default(),
            state: Mutex::new(LinkState {
                session,
                epoch: 0,
                peer_epoch: 0,
                connection: ConnectionState::Disconnected,
                card: None,
                dialer: None,
                attempt: None,
                failures: 0,
                lifecycle: Lifecycle::Open,
                forgotten: false,
                watched: false,
                bulk_calls: HashSet::default(),
                has_waiters: false,
            }),
            delivery_lock: Mutex::new(()),
            progress: Notify::new(),
            abandon: Notify::new(),
            unflushed: AtomicU8::new(NOTHING),
            burst: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            peer_reads: Arc::default(),
        });
        link.wake_by(timeout);
        link
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        lock(&self.state)
    }

    /// Sees to it that the timer looks at the link by then.
    fn wake_by(self: &Arc<Self>, at: Option<Time>) {
        self.timer.arm(self, at);
    }

    /// Queues a message and sees to it that there will be a connection. Says whether it is to be
    /// [flushed](Self::flush_queued): whoever was told so before, and has not begun to, flushes this one too.
    pub(super) fn enqueue(self: &Arc<Self>, message: &mut Message) -> bool {
        let kind = MessageKind::of(message);
        let Some(packet) = self.encode(message) else {
            return false;
        };
        let size = packet.size();
        let weight = packet.weight();
        self.endpoint.recycler.take_back(packet.parts());
        let mut needs_flush = false;
        let rejected = {
            let mut state = self.state();
            if state.lifecycle == Lifecycle::Closed {
                Some(packet)
            } else {
                let lane = state.lane(kind, size, self.endpoint.config.bulk_threshold);
                state.session.enqueue(lane, packet, weight);
                self.ensure_dialing(&mut state);
                let urgency = kind.urgency();
                if lane == Lane::Bulk || !state.will_write(urgency) {
                    needs_flush = true;
                    self.unflushed.fetch_max(urgency, Ordering::SeqCst);
                }
                None
            }
        };
        // LI-4; the runtime has locked its tables.
        if let Some(packet) = rejected
            && packet.has_programs_buffers()
        {
            self.endpoint.user_code.defer(move || drop(packet));
        }
        needs_flush
    }

    /// Writes what was queued, unless somebody else does.
    pub(super) fn flush_queued(self: &Arc<Self>) {
        match self.unflushed.swap(NOTHING, Ordering::SeqCst) {
            NOTHING => {}
            NOT_URGENT => self.flush_later(),
            _ => self.flush(),
        }
    }

    /// Encodes a message. An answer that no peer would take is replaced; what calls may have, the
    /// runtime has asked for first ([`Packet::check_call`]).
    fn encode(&self, message: &mut Message) -> Option<Packet> {
        let now = || self.endpoint.now();
        let (error, unsent) = match Packet::new(message, now, &self.endpoint.limits) {
            Ok(packet) => return Some(packet),
            Err(error) => error,
        };
        // LI-4
        if unsent.has_programs_buffers() {
            self.endpoint.user_code.defer(move || drop(unsent));
        }
        error!(peer = %self.peer, %error, "a message cannot be sent");
        let Message::Answer(answer) = message else {
            return None;
        };
        answer.origins = Origins::default();
        answer.outcome = Err(Failure::BadResult(error.to_string()));
        Packet::new(message, now, &self.endpoint.limits).ok()
    }

    /// The streams of the connection, if it is established.
    pub(super) fn streams(&self) -> Vec<StreamHalves> {
        match &self.state().connection {
            ConnectionState::Established(connection) => connection.streams(),
            ConnectionState::Disconnected | ConnectionState::Handshaking => Vec::new(),
        }
    }

    /// Acts on what the session said under the connection with this epoch.
    pub(super) fn handle_events(self: &Arc<Self>, epoch: u64, events: Vec<SessionEvent>) {
        for event in events {
            match event {
                SessionEvent::Suspect { silent_for } => {
                    tracing::debug!(peer = %self.peer, ?silent_for, "suspected");
                    if let Some(inbound) = self.endpoint.inbound() {
                        inbound.suspect(self.peer, silent_for);
                    }
                }
                SessionEvent::Reset(reason) => {
                    self.lose_connection(epoch, &format_args!("stuck: {reason:?}"));
                }
                _ => {}
            }
        }
    }

    /// Whether nothing is left to be delivered, or nothing can be.
    pub(super) fn is_drained(&self) -> bool {
        let state = self.state();
        match state.lifecycle {
            Lifecycle::Open => state.session.unacked() == 0,
            Lifecycle::Closing => {
                state.session.unacked() == 0
                    || !matches!(state.connection, ConnectionState::Established(_))
            }
            Lifecycle::Closed => true,
        }
    }

    /// Waits until [`is_drained`](Self::is_drained).
    pub(super) async fn drained(&self) {
        self.until(Self::is_drained).await;
    }

    /// Waits until there is no connection.
    pub(super) async fn disconnected(&self) {
        self.until(|link| !matches!(link.state().connection, ConnectionState::Established(_)))
            .await;
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        self.state().has_waiters = true;
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            if is_so(self) {
                return;
            }
            progress.await;
        }
    }

    /// The peer left: no more connections are made to it.
    pub(super) fn begin_closing(&self) {
        let mut state = self.state();
        if state.lifecycle == Lifecycle::Open {
            state.lifecycle = Lifecycle::Closing;
        }
    }

    /// Sends all that is owed, before the connection is closed for good.
    pub(super) fn acknowledge_and_flush(self: &Arc<Self>) {
        self.state().session.acknowledge_now();
        for stream in self.streams() {
            stream.send.memory.stop_awaiting();
        }
        // From here, not by a task that may not live to do it.
        self.burst.store(0, Ordering::Relaxed);
        self.flush();
        // Also what the tasks were to write.
        for stream in self.streams() {
            stream.send.write_for_task(self);
        }
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let state = self.state();
        let counters = state.session.counters();
        LinkStatistics {
            peer: self.peer,
            transport: match &state.connection {
                ConnectionState::Established(connection) => Some(connection.transport),
                ConnectionState::Disconnected | ConnectionState::Handshaking => None,
            },
            connections: counters.connections,
            queued_messages: state.session.unacked(),
            queued_bytes: Lane::ALL
                .iter()
                .map(|lane| state.session.stored_bytes(*lane))
                .sum(),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            bytes_from_memory: self.peer_reads.bytes(),
            bytes_in_place: self.peer_reads.in_place(),
            replayed: counters.replayed,
        }
    }
}

impl Timed for Link {
    fn peer(&self) -> NodeId {
        self.peer
    }

    fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    fn handle_timeout(self: &Arc<Self>, now: Time) -> Option<Time> {
        let (epoch, events) = {
            let mut state = self.state();
            let due = state.session.poll_timeout().is_some_and(|at| at <= now);
            if !due {
                return state.session.poll_timeout();
            }
            state.session.handle_timeout(now);
            (state.epoch, state.events())
        };
        self.handle_events(epoch, events);
        self.flush();
        self.state().session.poll_timeout()
    }
}

/// LI-4: whatever task was the last to hold it.
impl Drop for Link {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // PM-3: before what was not acknowledged goes.
        drop(state.take_connection());
        if user_code::is_barred() {
            let endpoint = &self.endpoint;
            let empty = endpoint.session(self.peer);
            let session = std::mem::replace(&mut state.session, empty);
            endpoint.user_code.defer(move || drop(session));
        }
    }
}

impl LinkState {
    /// On which lane a message travels.
    fn lane(&mut self, kind: MessageKind, size: usize, threshold: usize) -> Lane {
        let lane = if size > threshold {
            Lane::Bulk
        } else {
            Lane::Call
        };
        match kind {
            MessageKind::Control | MessageKind::References => Lane::Control,
            MessageKind::Call(id) => {
                if lane == Lane::Bulk {
                    self.bulk_calls.extend(id);
                }
                lane
            }
            MessageKind::Cancel(id) => {
                if self.bulk_calls.remove(&id) {
                    Lane::Bulk
                } else {
                    Lane::Call
                }
            }
            MessageKind::Answer => lane,
        }
    }

    /// Whether the task of the main stream is about to write what is queued (SD-1), and soon enough.
    fn will_write(&self, urgency: u8) -> bool {
        match &self.connection {
            ConnectionState::Established(connection) => {
                let writer_lock = &connection.main.send.writer_lock;
                match urgency {
                    URGENT => writer_lock.is_awaited(),
                    _ => writer_lock.is_handed_over(),
                }
            }
            ConnectionState::Disconnected | ConnectionState::Handshaking => false,
        }
    }

    /// All that the session wants done.
    fn events(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    fn take_connection(&mut self) -> Option<Connection> {
        match std::mem::replace(&mut self.connection, ConnectionState::Disconnected) {
            ConnectionState::Established(connection) => Some(connection),
            ConnectionState::Disconnected | ConnectionState::Handshaking => None,
        }
    }
}

/// What is queued is none, or nobody waits for it, or somebody may.
const NOTHING: u8 = 0;
const NOT_URGENT: u8 = 1;
const URGENT: u8 = 2;

/// What decides about a message's lane, beside its size, and about when it is written.
#[derive(Clone, Copy)]
enum MessageKind {
    Control,
    /// The tables of references keep each other up to date.
    References,
    Call(Option<MessageId>),
    Cancel(MessageId),
    Answer,
}

impl MessageKind {
    fn of(message: &Message) -> Self {
        match message {
            Message::Control(
                Control::Register(_)
                | Control::Confirm(_)
                | Control::Release(_)
                | Control::Accept(_),
            ) => Self::References,
            Message::Control(_) | Message::Credit { .. } => Self::Control,
            Message::Call(call) => Self::Call(match call.head.target {
                Target::Answer(id) | Target::Fetch(id, ..) => Some(id),
                Target::Stay(_) => None,
            }),
            Message::Cancel(id) => Self::Cancel(*id),
            Message::Answer(_) => Self::Answer,
        }
    }

    fn urgency(self) -> u8 {
        match self {
            Self::References => NOT_URGENT,
            _ => URGENT,
        }
    }
}
