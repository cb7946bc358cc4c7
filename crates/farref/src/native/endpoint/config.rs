//! The settings of the native wire, all its times, sizes and counts with their defaults; and who its worker is.

use std::time::Duration;

use farref_proto::{GroupId, SessionConfig};

use crate::native::transport::Tls;
use crate::rendezvous::Card;

/// The settings of a native agent. Both ends of a connection may differ in each
/// of them, except that a message has to keep within the receiver's limits.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct NativeConfig {
    /// How long a peer may be silent before it is suspected. 10 s by default.
    pub peer_timeout: Duration,
    /// How often a peer is asked for a sign of life. 2.5 s by default.
    pub heartbeat_interval: Duration,
    /// How long an acknowledgement waits for a message that carries it along. 5 ms by default.
    pub ack_delay: Duration,
    /// After how many messages an acknowledgement waits no longer. 64 by default.
    pub ack_every: u32,
    /// How long a connection may show no progress before it is replaced; doubles with each
    /// replacement that brought none. 2 s by default.
    pub ack_timeout: Duration,

    /// Calls and answers above this size travel on a stream of their own, so that they do not hold
    /// up smaller ones. 64 KiB by default.
    pub bulk_threshold: usize,
    /// The largest message that is taken in or sent, in bytes. 4 GiB by default.
    pub max_message_bytes: u64,
    /// The largest message head (references, error texts, control messages). 16 MiB by default.
    pub max_head_bytes: u32,
    /// The most out-of-band parts of one message. 65,536 by default.
    pub max_parts: u32,

    /// How many bytes of large receive buffers (above 1 MiB) are kept for a few seconds after the
    /// program has dropped what was in them, because fresh memory costs more than the copy into it.
    /// 128 MiB by default; zero keeps none.
    pub recycle_bytes: usize,

    /// Whether peers on the same host that are the same user's may read large parts straight out of this process' memory,
    /// and this one out of theirs, where the system permits it. They may by default.
    pub shared_memory: bool,
    /// For how long at most a link over a socket is looked at again and again, before its task waits to be woken, where
    /// messages follow each other as closely. 50 µs by default; zero for never, as on a host with one core.
    pub busy_poll: Duration,

    /// How long a large part waits for a thread that reads it, where all are busy. 10 s by default.
    pub read_patience: Duration,
    /// How long the first large message of a connection waits at most until the peer says whether it reads this process'
    /// memory. 200 ms by default; peers that are not busy say it at once.
    pub memory_answer: Duration,
    /// How long nothing more is read out of memory after there was no thread for it, and no region is sent as such after
    /// the system took no more of them. 30 s by default.
    pub memory_rest: Duration,

    /// How long a connection attempt to one address may take. 5 s by default.
    pub connect_timeout: Duration,
    /// How long the handshake on a new connection may take. 5 s by default.
    pub handshake_timeout: Duration,
    /// How many connections may be in their handshake at once; beyond, the oldest is dropped.
    /// 256 by default.
    pub max_handshakes: usize,
    /// With how many who have connected, and are neither members nor joining, there may be links. 1,024 by default.
    pub max_newcomers: usize,
    /// When there are as many, how long one of them may have been connected without a word. 10 s by default.
    pub newcomer_patience: Duration,
    /// The pause after a first failed connection attempt; doubles with each. 10 ms by default.
    pub backoff_min: Duration,
    /// The longest pause between connection attempts. 1 s by default.
    pub backoff_max: Duration,
    /// How long what is queued for a peer that left is kept. 5 s by default.
    pub leave_timeout: Duration,
}

impl Default for NativeConfig {
    fn default() -> Self {
        let session = SessionConfig::default();
        Self {
            peer_timeout: session.peer_timeout,
            heartbeat_interval: session.heartbeat_interval,
            ack_delay: session.ack_delay,
            ack_every: session.ack_every,
            ack_timeout: session.ack_timeout,
            bulk_threshold: 64 << 10,
            max_message_bytes: 4 << 30,
            max_head_bytes: 16 << 20,
            max_parts: 65_536,
            recycle_bytes: 128 << 20,
            shared_memory: true,
            busy_poll: Duration::from_micros(50),
            read_patience: Duration::from_secs(10),
            memory_answer: Duration::from_millis(200),
            memory_rest: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(5),
            max_handshakes: 256,
            max_newcomers: 1024,
            newcomer_patience: Duration::from_secs(10),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            leave_timeout: Duration::from_secs(5),
        }
    }
}

impl NativeConfig {
    /// Nothing that is sent makes a session want to be woken earlier than this.
    pub(crate) fn earliest_wake(&self) -> Duration {
        self.ack_timeout
            .min(self.heartbeat_interval)
            .min(self.peer_timeout)
    }

    /// What a session is told.
    pub(crate) fn session(&self) -> SessionConfig {
        let mut session = SessionConfig::default();
        session.peer_timeout = self.peer_timeout;
        session.heartbeat_interval = self.heartbeat_interval;
        session.ack_delay = self.ack_delay;
        session.ack_every = self.ack_every;
        session.ack_timeout = self.ack_timeout;
        session
    }
}

/// Who an agent is and what it proves.
#[derive(Clone)]
pub(crate) struct Identity {
    /// What peers are told about this worker.
    pub(crate) card: Card,
    /// The group; workers of another are refused.
    pub(crate) group: GroupId,
    /// The secret that all workers of the group share. It never travels. None counts as empty.
    pub(crate) token: Option<Vec<u8>>,
    /// Its certificate, if TCP connections are to have TLS.
    pub(crate) tls: Option<Tls>,
    /// How many calls of one peer this worker is willing to have in flight.
    pub(crate) max_calls: u32,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token: this ends up in logs.
        f.debug_struct("Identity")
            .field("card", &self.card)
            .field("group", &self.group)
            .field("max_calls", &self.max_calls)
            .finish_non_exhaustive()
    }
}
