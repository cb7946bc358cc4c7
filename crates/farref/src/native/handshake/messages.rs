//! The messages of a handshake.

use farref_proto::{GroupId, Hello, NodeId};
use serde::{Deserialize, Serialize};

use crate::rendezvous::Card;

/// The version of everything that native agents say to each other.
pub(crate) const VERSION: u16 = 8;

/// A number that is used once.
pub(crate) type Nonce = [u8; 16];

/// The number by which both ends know a connection: part of the acceptor's nonce.
pub(crate) fn connection_id(nonce: &Nonce) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *nonce;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// What the dialer says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Greeting {
    /// A worker's.
    Worker {
        group: GroupId,
        /// Whom the dialer means to talk to.
        to: NodeId,
        nonce: Nonce,
    },
    /// One who belongs to no group and wants to know who is here.
    Observer { nonce: Nonce },
    /// One who wants to know whether a life is still here, before it takes its name.
    Successor { of: NodeId, nonce: Nonce },
}

/// What the acceptor answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    Refused(Refusal),
    Challenge(Nonce),
}

/// Who the dialer is and what the stream is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) card: Card,
    /// How many calls of one peer the dialer is willing to have in flight.
    pub(crate) max_calls: u32,
    pub(crate) purpose: Purpose,
}

/// What an observer or a successor claims: nothing but that it knows the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Observation;

/// What a stream is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Purpose {
    /// A new connection: control messages, calls, answers, heartbeats.
    Main(SessionHello),
    /// Bulk data of the connection with this [`connection_id`].
    Bulk(u64),
}

/// The session's hello, and which connection it was made for: `epoch` counts all that this end of the link
/// has begun or given up.
///
/// A hello may arrive when its connection has long been given up for another one, and then says
/// what is no longer true. The number shows that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SessionHello {
    pub(crate) epoch: u64,
    pub(crate) session: Hello,
}

/// Whether the acceptor takes the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Verdict {
    Refused(Refusal),
    Main {
        card: Box<Card>,
        max_calls: u32,
        hello: SessionHello,
    },
    Bulk,
    Observed,
    /// The life that a successor asked for is here.
    Present,
}

/// Why an acceptor does not take a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum Refusal {
    #[error("it speaks version {ours} of the wire")]
    Version { ours: u16 },
    #[error("it belongs to another group")]
    Group,
    #[error("it has another token")]
    Token,
    #[error("it is {here}")]
    WrongLife { here: NodeId },
    #[error("it counts this worker as gone")]
    Gone,
    #[error("it is making a connection itself")]
    Busy,
    #[error("it is shutting down")]
    Closing,
    #[error("the connection has been given up for another")]
    Stale,
    #[error("the session cannot go on")]
    Session,
    #[error("enough others are connected already")]
    Crowded,
    #[error("it takes connections over Unix sockets from its own user only")]
    User,
    #[error(
        "it has a certificate, and takes only those who have one, and TCP connections with TLS only"
    )]
    NeedsTls,
    #[error("it has no certificate, and speaks without TLS")]
    NoTls,
    #[error("the certificate is not that of the worker whose name or number is claimed")]
    Name,
}

impl Refusal {
    /// A word for counters.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Version { .. } => "version",
            Self::Group => "group",
            Self::Token => "token",
            Self::WrongLife { .. } => "wrong_life",
            Self::Gone => "gone",
            Self::Busy => "busy",
            Self::Closing => "closing",
            Self::Stale => "stale",
            Self::Session => "session",
            Self::Crowded => "crowded",
            Self::User => "user",
            Self::NeedsTls => "needs_tls",
            Self::NoTls => "no_tls",
            Self::Name => "name",
        }
    }
}
