//! The link with one life of one peer: its session, its present connection, and what is queued.
//!
//! A connection is made of two streams. The *main* stream carries control messages, small calls and
//! answers, and signs of life; the *bulk* stream, made when it is first needed, carries large
//! messages. If either breaks, the connection is lost and both are closed. Each connection and each
//! attempt at one has a number, its *epoch*; whoever acts for a connection says its epoch, and acts
//! in vain if another has taken its place.
//!
//! # Invariants
//!
//! - **LI-1** The lock of a link is never held over a system call, nor while anything outside this
//!   module is called that may call back.
//! - **LI-2** What a peer sent is handed in by one thread at a time, in the order in which the session
//!   gave it, whatever connection brought it.
//! - **LI-3** A cancellation travels on the lane of the call that it cancels, so it arrives after it.
//! - **LI-4** Messages that are acknowledged or thrown away are dropped outside the lock, and not where
//!   code of the program is barred (UC-1): their buffers may be the program's, with destructors of their
//!   own.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farref_proto::{Frame, Lane, MessageId, NodeId, Session, SessionEvent, Target, Time};
use foldhash::fast::FixedState;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tracing::error;

use super::channel::{Channel, MAIN};
use super::connection::Connection;
use super::dial;
use super::frame::{Batch, Packet};
use super::reader::Reader;
use super::shared::{Shared, lock};
use super::timer::Alarm;
use crate::agent::{AnswerMessage, Failure, LinkStatistics, Message, Origins};
use crate::rendezvous::Card;
use crate::support::user_code;

/// So many bytes are taken from the session at once: what is taken is beyond the reach of more urgent
/// frames.
const BATCH_BYTES: usize = 128 << 10;
/// And at most so many frames.
const BATCH_FRAMES: usize = 128;

/// The link with one life of one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) shared: Arc<Shared>,
    pub(super) peer: NodeId,
    /// When the timer looks at it.
    pub(super) alarm: Alarm,
    state: Mutex<State>,
    /// Held while messages of the peer are handed in (LI-2). Locked before `state`.
    pub(super) gate: Mutex<()>,
    /// Something was acknowledged or the link has changed, for those who wait for its end.
    pub(super) progress: Notify,
    /// An attempt to connect that is under way has become pointless.
    pub(super) abandon: Notify,
    /// Writes by callers since the peer was last heard.
    pub(super) burst: AtomicU32,
    sent: AtomicU64,
    pub(super) received: AtomicU64,
}

/// What the lock of a link guards.
#[derive(Debug)]
pub(super) struct State {
    pub(super) session: Session<Packet>,
    /// The number of the present connection or attempt.
    pub(super) epoch: u64,
    /// The latest such number that the peer has said of its own end.
    pub(super) peer_epoch: u64,
    pub(super) stage: Stage,
    /// How to reach the peer, once it is known.
    pub(super) card: Option<Card>,
    /// The task that is to make a connection.
    pub(super) dialer: Option<AbortHandle>,
    /// Since when it has been at its present attempt.
    pub(super) attempt: Option<Time>,
    /// Attempts and connections in a row that brought nothing.
    pub(super) failures: u32,
    pub(super) fate: Fate,
    /// Calls to the peer that travelled as bulk and are not answered (LI-3).
    pub(super) bulk_calls: HashSet<MessageId, FixedState>,
    /// Whether somebody waits for `progress`.
    pub(super) watched: bool,
}

/// How far the present connection has got.
#[derive(Debug)]
pub(super) enum Stage {
    /// There is none.
    Apart,
    /// The ends are greeting.
    Greeting,
    /// It stands.
    Standing(Connection),
}

/// Whether the link goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fate {
    /// Connections are made as needed.
    Lives,
    /// The peer left: what is queued goes out on the present connection, no other is made.
    Leaving,
    /// No connection is made or taken any more: the peer misbehaved, refuses us, or is forgotten.
    Over,
}

/// The connection that a caller acts for is not the present one.
#[derive(Debug)]
pub(super) struct Outdated;

impl Link {
    pub(super) fn new(shared: Arc<Shared>, peer: NodeId) -> Arc<Self> {
        let session = shared.session(peer);
        let timeout = session.poll_timeout();
        let link = Arc::new(Self {
            shared: Arc::clone(&shared),
            peer,
            alarm: Alarm::default(),
            state: Mutex::new(State {
                session,
                epoch: 0,
                peer_epoch: 0,
                stage: Stage::Apart,
                card: None,
                dialer: None,
                attempt: None,
                failures: 0,
                fate: Fate::Lives,
                bulk_calls: HashSet::default(),
                watched: false,
            }),
            gate: Mutex::new(()),
            progress: Notify::new(),
            abandon: Notify::new(),
            burst: AtomicU32::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
        });
        shared.timer.arm(&link, timeout);
        link
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Queues a message and sees to it that there will be a connection.
    pub(super) fn enqueue(self: &Arc<Self>, message: Message) {
        let kind = Kind::of(&message);
        let Some(packet) = self.encode(message) else {
            return;
        };
        let size = packet.size();
        let weight = packet.weight();
        let rejected = {
            let mut state = self.state();
            if state.fate == Fate::Over {
                Some(packet)
            } else {
                let lane = state.lane(kind, size, self.shared.config.bulk_threshold);
                state.session.enqueue(lane, packet, weight);
                dial::ensure(self, &mut state);
                None
            }
        };
        // LI-4; the runtime has locked its tables.
        if let Some(packet) = rejected
            && packet.has_programs_buffers()
        {
            self.shared.user_code.put_off(move || drop(packet));
        }
    }

    /// Encodes a message. An answer that no peer would take is replaced; what calls may have, the
    /// runtime has asked for first ([`Packet::check_call`]).
    fn encode(&self, message: Message) -> Option<Packet> {
        let now = || self.shared.now();
        let answer = match &message {
            Message::Answer(answer) => Some(answer.head.clone()),
            _ => None,
        };
        let (error, unsent) = match Packet::new(message, now, &self.shared.limits) {
            Ok(packet) => return Some(packet),
            Err(error) => error,
        };
        // LI-4
        if unsent.has_programs_buffers() {
            self.shared.user_code.put_off(move || drop(unsent));
        }
        error!(peer = %self.peer, %error, "a message cannot be sent");
        let failure = Message::Answer(AnswerMessage {
            head: answer?,
            origins: Origins::default(),
            outcome: Err(Failure::BadResult(error.to_string())),
        });
        Packet::new(failure, now, &self.shared.limits).ok()
    }

    /// Writes what is queued, as far as that can be done without waiting.
    pub(super) fn flush(self: &Arc<Self>) {
        let (main, bulk) = {
            let state = self.state();
            let Stage::Standing(connection) = &state.stage else {
                return;
            };
            let bulk = connection
                .bulk
                .as_ref()
                .filter(|_| state.session.stored_bytes(Lane::Bulk) > 0);
            (Arc::clone(&connection.main), bulk.cloned())
        };
        main.pump(self);
        if let Some(bulk) = bulk {
            bulk.pump(self);
        }
    }

    /// The streams of the connection, if it stands.
    pub(super) fn streams(&self) -> Vec<(Arc<Channel>, Arc<Reader>)> {
        match &self.state().stage {
            Stage::Standing(connection) => connection.readers.clone(),
            Stage::Apart | Stage::Greeting => Vec::new(),
        }
    }

    /// Takes frames for a stream from the session. Says whether those were all.
    pub(super) fn fill(
        self: &Arc<Self>,
        channel: &Channel,
        batch: &mut Batch,
    ) -> Result<bool, Outdated> {
        let now = self.shared.now();
        let mut ask_for_bulk = false;
        let mut emptied = false;
        let mut timeout = None;
        {
            let mut state = self.state();
            let state = &mut *state;
            if state.epoch != channel.epoch {
                return Err(Outdated);
            }
            let mut bytes = 0;
            while bytes < BATCH_BYTES && batch.waiting() < BATCH_FRAMES {
                let Some(frame) = state.session.poll_transmit_on(now, channel.lanes) else {
                    emptied = true;
                    break;
                };
                if let Frame::Data { payload, .. } = &frame {
                    bytes += payload.size();
                }
                batch.push(frame);
            }
            if channel.lanes == MAIN
                && let Stage::Standing(connection) = &mut state.stage
                && connection.lacks_bulk()
                && state.session.stored_bytes(Lane::Bulk) > 0
            {
                ask_for_bulk = dial::ask_for_bulk(self, connection);
            }
            // What was taken makes the session want to be woken some time later.
            if !self.alarm.fires_by(now + self.shared.config.patience()) {
                timeout = state.session.poll_timeout();
            }
        }
        self.shared.timer.arm(self, timeout);
        if ask_for_bulk {
            batch.push_open_bulk();
        }
        batch.encode(now);
        Ok(emptied)
    }

    /// A stream has taken so many bytes. `partly` says that a frame is written in part.
    pub(super) fn wrote(&self, channel: &Channel, bytes: usize, partly: bool) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.shared.meters.bytes_sent.add(bytes as u64);
        if partly {
            let now = self.shared.now();
            let mut state = self.state();
            if state.epoch == channel.epoch {
                for lane in channel.lanes {
                    state.session.handle_bytes_written(now, *lane);
                }
            }
        }
    }

    /// Does what has fallen due. Returns when something falls due next.
    pub(super) fn handle_timeout(self: &Arc<Self>, now: Time) -> Option<Time> {
        let (epoch, events) = {
            let mut state = self.state();
            let due = state.session.poll_timeout().is_some_and(|at| at <= now);
            if !due {
                return state.session.poll_timeout();
            }
            state.session.handle_timeout(now);
            (state.epoch, state.events())
        };
        self.act(epoch, events);
        self.flush();
        self.state().session.poll_timeout()
    }

    /// Acts on what the session said under the connection with this epoch.
    pub(super) fn act(self: &Arc<Self>, epoch: u64, events: Vec<SessionEvent>) {
        for event in events {
            match event {
                SessionEvent::Suspect { silent_for } => {
                    tracing::debug!(peer = %self.peer, ?silent_for, "suspected");
                    if let Some(inbound) = self.shared.inbound() {
                        inbound.suspect(self.peer, silent_for);
                    }
                }
                SessionEvent::Reset(reason) => {
                    self.lose(epoch, &format_args!("stuck: {reason:?}"));
                }
                _ => {}
            }
        }
    }

    /// Ends the link: closes its connection and stops its tasks. What is queued goes with the link.
    pub(super) fn discard(&self) {
        let (old, dialer) = {
            let mut state = self.state();
            state.fate = Fate::Over;
            state.epoch += 1;
            state.session.connection_lost(self.shared.now());
            let _nobody_is_told = state.events();
            (state.take_connection(), state.dialer.take())
        };
        drop(old);
        if let Some(dialer) = dialer {
            dialer.abort();
        }
        self.progress.notify_waiters();
    }

    /// Whether nothing is left to be delivered, or nothing can be.
    pub(super) fn is_drained(&self) -> bool {
        let state = self.state();
        match state.fate {
            Fate::Lives => state.session.unacked() == 0,
            Fate::Leaving => {
                state.session.unacked() == 0 || !matches!(state.stage, Stage::Standing(_))
            }
            Fate::Over => true,
        }
    }

    /// Waits until [`is_drained`](Self::is_drained).
    pub(super) async fn drained(&self) {
        self.until(Self::is_drained).await;
    }

    /// Waits until there is no connection.
    pub(super) async fn closed(&self) {
        self.until(|link| !matches!(link.state().stage, Stage::Standing(_)))
            .await;
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        self.state().watched = true;
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
    pub(super) fn leave(&self) {
        let mut state = self.state();
        if state.fate == Fate::Lives {
            state.fate = Fate::Leaving;
        }
    }

    /// Says all that is owed, before the connection is closed for good.
    pub(super) fn say_last(self: &Arc<Self>) {
        self.state().session.acknowledge_now();
        // From here, not by a task that may not live to do it.
        self.burst.store(0, Ordering::Relaxed);
        self.flush();
    }

    pub(super) fn statistics(&self) -> LinkStatistics {
        let state = self.state();
        let counters = state.session.counters();
        LinkStatistics {
            peer: self.peer,
            transport: match &state.stage {
                Stage::Standing(connection) => Some(connection.transport),
                Stage::Apart | Stage::Greeting => None,
            },
            connections: counters.connections,
            queued_messages: state.session.unacked(),
            queued_bytes: Lane::ALL
                .iter()
                .map(|lane| state.session.stored_bytes(*lane))
                .sum(),
            bytes_sent: self.sent.load(Ordering::Relaxed),
            bytes_received: self.received.load(Ordering::Relaxed),
            replayed: counters.replayed,
        }
    }
}

/// LI-4: whatever task was the last to hold it.
impl Drop for Link {
    fn drop(&mut self) {
        if user_code::is_barred() {
            let shared = &self.shared;
            let empty = shared.session(self.peer);
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            let session = std::mem::replace(&mut state.session, empty);
            shared.user_code.put_off(move || drop(session));
        }
    }
}

impl State {
    /// On which lane a message travels.
    fn lane(&mut self, kind: Kind, size: usize, threshold: usize) -> Lane {
        let lane = if size > threshold {
            Lane::Bulk
        } else {
            Lane::Call
        };
        match kind {
            Kind::Control => Lane::Control,
            Kind::Call(id) => {
                if lane == Lane::Bulk {
                    self.bulk_calls.extend(id);
                }
                lane
            }
            Kind::Cancel(id) => {
                if self.bulk_calls.remove(&id) {
                    Lane::Bulk
                } else {
                    Lane::Call
                }
            }
            Kind::Answer => lane,
        }
    }

    /// All that the session wants done.
    pub(super) fn events(&mut self) -> Vec<SessionEvent> {
        std::iter::from_fn(|| self.session.poll_event()).collect()
    }

    pub(super) fn take_connection(&mut self) -> Option<Connection> {
        match std::mem::replace(&mut self.stage, Stage::Apart) {
            Stage::Standing(connection) => Some(connection),
            Stage::Apart | Stage::Greeting => None,
        }
    }
}

/// What decides about a message's lane, beside its size.
#[derive(Clone, Copy)]
enum Kind {
    Control,
    Call(Option<MessageId>),
    Cancel(MessageId),
    Answer,
}

impl Kind {
    fn of(message: &Message) -> Self {
        match message {
            Message::Control(_) | Message::Credit { .. } => Self::Control,
            Message::Call(call) => Self::Call(match call.head.target {
                Target::Answer(id) | Target::Fetch(id, ..) => Some(id),
                Target::Stay(_) => None,
            }),
            Message::Cancel(id) => Self::Cancel(*id),
            Message::Answer(_) => Self::Answer,
        }
    }
}
