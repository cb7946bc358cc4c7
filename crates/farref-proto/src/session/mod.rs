//! One session between two lives, over any number of connections.
//!
//! A [`Session`] is a pure state machine. Its owner brings it the time, what it has read from a
//! connection and what it wants sent, and takes from it what is to be written
//! ([`Session::poll_transmit`]), what is to be done ([`Session::poll_event`]) and when to come back
//! ([`Session::poll_timeout`]). After every input all three are to be polled until they are empty.
//!
//! On each connection both ends first exchange a [`Hello`]; from then on [`Frame`]s flow. A frame is
//! acknowledged when it is received, not when its receiver has dealt with it: an owner that stops
//! reading from a connection looks, to the other end, like a stuck one.
//!
//! # Invariants
//!
//! - **SE-1** While both lives live, every enqueued frame is handed over exactly once at the other
//!   end and in the order of its lane, however often the connection breaks.
//! - **SE-2** A frame is stored from [`Session::enqueue`] until the peer has acknowledged it, and
//!   what is replayed is what was stored.
//! - **SE-3** Nothing but our [`Hello`] leaves on a connection before the peer's is accepted.
//! - **SE-4** Heartbeats and due acknowledgements leave before any data, and of the data the more
//!   urgent [`Lane`] leaves first.
//! - **SE-5** No frame is refused. How much is stored is the owner's to limit, who is told of it
//!   ([`Session::stored_bytes`], [`Session::unacked`]) and gets back what the peer has
//!   ([`Session::handle_frame_with`]). Pending events take no memory that grows.
//! - **SE-6** The peer is suspected when it has given no sign of life for `peer_timeout`, connected
//!   or not, and not before unless it refuses connections; once for each silence.
//! - **SE-7** A connection is asked to be reset only if it stood still for `ack_timeout`, doubled
//!   for each reset in a row that helped nothing, and at most once.
//! - **SE-8** A refused [`Hello`] or [`Frame`] leaves the session exactly as it was.
//! - **SE-9** Only the life that the session is with, and only if it means this life, is heard.

mod config;
mod connection;
mod error;
mod event;
mod exchange;
mod inbox;
mod liveness;
mod outbox;
#[cfg(test)]
mod tests;
mod timers;
mod wire;

pub use config::SessionConfig;
pub use error::{HandshakeError, SessionError};
pub use event::{ResetReason, SessionCounters, SessionEvent};
pub use wire::{Acks, Frame, Hello, Lane, SESSION_VERSION};

use std::array;

use crate::ids::{GroupId, NodeId};
use crate::time::Time;

use event::Tally;
use inbox::Inbox;
use liveness::Liveness;
use outbox::Outbox;

/// How far the present connection has got.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Connection {
    /// There is none.
    Disconnected,
    /// Our greeting is on its way, the peer's has not come.
    Handshaking { since: Time },
    /// Both ends have greeted.
    Established,
}

/// One end of a session. `F` is an encoded payload; it is cloned each time it is sent, so it should
/// be cheap to clone.
///
/// Two sessions are equal if they behave alike from now on; their
/// [`counters`](Self::counters) may differ.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Session<F> {
    local: NodeId,
    remote: NodeId,
    group: GroupId,
    config: SessionConfig,
    connection: Connection,
    /// By [`Lane::index`].
    outboxes: [Outbox<F>; Lane::COUNT],
    inbox: Inbox,
    liveness: Liveness,
    /// By [`Lane::index`]: since when nothing of the lane was acknowledged although something of it
    /// is in flight. Each lane for itself, because lanes may travel on different streams: one can be
    /// stuck while the others flow.
    unacked_since: [Option<Time>; Lane::COUNT],
    /// Whether the present connection has been asked to be reset.
    reset_asked: bool,
    /// A reset that the owner has not fetched yet.
    reset: Option<ResetReason>,
    /// Resets in a row without progress in between.
    fruitless_resets: u32,
    tally: Tally,
    #[cfg(feature = "mutations")]
    dedup_broken: bool,
    #[cfg(feature = "mutations")]
    replay_broken: bool,
}

impl<F> Session<F> {
    /// A session of `local` with `remote`, not connected yet. The peer's silence counts from `now`.
    pub fn new(
        local: NodeId,
        remote: NodeId,
        group: GroupId,
        config: SessionConfig,
        now: Time,
    ) -> Self {
        Self {
            local,
            remote,
            group,
            config,
            connection: Connection::Disconnected,
            outboxes: array::from_fn(|_| Outbox::new()),
            inbox: Inbox::default(),
            liveness: Liveness::new(now),
            unacked_since: [None; Lane::COUNT],
            reset_asked: false,
            reset: None,
            fruitless_resets: 0,
            tally: Tally::default(),
            #[cfg(feature = "mutations")]
            dedup_broken: false,
            #[cfg(feature = "mutations")]
            replay_broken: false,
        }
    }

    /// Stores a frame that weighs `bytes` until the peer has it. Works connected or not.
    ///
    /// Nothing is refused: a count or a release that found no room would have to be stored elsewhere,
    /// and what users send is best held back before it is made. The volume of the control lane
    /// follows from how many references, contexts and members there are.
    pub fn enqueue(&mut self, lane: Lane, frame: F, bytes: usize) {
        self.outboxes[lane.index()].push(frame, bytes);
    }

    /// The next thing the owner is to act upon, the gravest first.
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        if let Some(silent_for) = self.liveness.take_suspicion() {
            return Some(SessionEvent::Suspect { silent_for });
        }
        self.reset.take().map(SessionEvent::Reset)
    }

    /// This end.
    pub const fn local(&self) -> NodeId {
        self.local
    }

    /// The other end.
    pub const fn remote(&self) -> NodeId {
        self.remote
    }

    /// Whether a connection stands on which both ends have greeted.
    pub const fn is_connected(&self) -> bool {
        matches!(self.connection, Connection::Established)
    }

    /// Whether no frame was ever enqueued or received: the peer, whatever it remembers, can go on with a new session instead.
    pub fn is_unused(&self) -> bool {
        let is_empty = |outbox: &Outbox<F>| outbox.first() == 0 && outbox.frames() == 0;
        self.outboxes.iter().all(is_empty) && self.inbox.acks() == Acks::default()
    }

    /// How many frames of all lanes the peer has not acknowledged, whether sent or not.
    pub fn unacked(&self) -> usize {
        self.outboxes.iter().map(Outbox::frames).sum()
    }

    /// The weight of the frames of `lane` that the peer has not acknowledged, whether sent or not.
    pub const fn stored_bytes(&self, lane: Lane) -> usize {
        self.outboxes[lane.index()].bytes()
    }

    /// The peer has acknowledged all frames of `lane` before this number.
    pub const fn acknowledged(&self, lane: Lane) -> u64 {
        self.outboxes[lane.index()].first()
    }

    /// What the session has done so far.
    pub const fn counters(&self) -> SessionCounters {
        self.tally.0
    }

    /// Makes the session hand over frames that it has handed over before.
    #[cfg(feature = "mutations")]
    pub fn break_dedup(&mut self) {
        self.dedup_broken = true;
    }

    /// Makes the session lose, with each connection, what was sent and not acknowledged.
    #[cfg(feature = "mutations")]
    pub fn break_replay(&mut self) {
        self.replay_broken = true;
    }
}
