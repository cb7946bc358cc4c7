//! What two workers say first on each stream, before either believes the other: who they are, whom
//! they mean, and a proof that they know the group's token.
//!
//! | from | bytes |
//! | --- | --- |
//! | dialer | `farref`, version (2), length (4), [`Greeting`] |
//! | acceptor | `farref`, version (2), length (4), [`Reply`] |
//! | dialer | length (4), [`Claim`], proof (32) |
//! | acceptor | length (4), [`Verdict`], proof (32) |
//!
//! Who only wants to look on greets as an observer, claims an [`Observation`] and is heard in the same
//! way; [`observe`](super::observe) says what follows. Who wants to know whether an earlier life of its
//! own is still there greets as a successor, claims the same, and is told in the verdict
//! ([`presence`](super::presence)).
//!
//! Numbers are little endian, the rest is postcard. A proof is an HMAC-SHA256, under the token, of a
//! word for the speaker's role and of all that was said before it, the speaker's own message
//! included. Both ends contribute a fresh nonce.
//!
//! # Invariants
//!
//! - **HS-1** The token never travels, and no message of one handshake proves anything in another or
//!   in the other direction.
//! - **HS-2** The acceptor proves itself only to a dialer that has, so a stranger cannot collect
//!   material for guessing the token.
//! - **HS-3** Whether this worker counts as gone is believed only from a peer that has proved itself.
//! - **HS-4** What a stranger can make an acceptor store is bounded in size ([`MAX_GREETING`],
//!   [`MAX_CLAIM`]), time and number.

use std::io;

use farref_proto::{GroupId, HandshakeError, Hello, NodeId};
use ring::hmac;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Rejection;
use super::stream::{ReadHalf, Stream, WriteHalf};
use crate::rendezvous::Card;

/// The version of everything that native agents say to each other.
pub(crate) const VERSION: u16 = 4;

const MAGIC: &[u8; 6] = b"farref";
const OPENING: usize = MAGIC.len() + 2 + 4;
const PROOF: usize = 32;
/// The longest first message of either end.
const MAX_GREETING: usize = 512;
/// The longest second message of either end.
const MAX_CLAIM: usize = 16 << 10;

/// A number that is used once.
pub(super) type Nonce = [u8; 16];

/// What the dialer says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Greeting {
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
pub(super) enum Reply {
    Refused(Refusal),
    Challenge(Nonce),
}

/// Who the dialer is and what the stream is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Claim {
    pub(super) card: Card,
    /// How many calls of one peer the dialer is willing to have in flight.
    pub(super) max_calls: u32,
    pub(super) purpose: Purpose,
}

/// What an observer or a successor claims: nothing but that it knows the token.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Observation;

/// What a stream is for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Purpose {
    /// A new connection: control messages, calls, answers, signs of life.
    Main(Salute),
    /// Bulk data of the connection with this [`connection_id`].
    Bulk(u64),
}

/// A greeting of the session, and when it was made: it counts up with all that this end of the link
/// has greeted on or given up.
///
/// A greeting may arrive when its connection has long been given up for another one, and then says
/// what is no longer true. The number shows that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Salute {
    pub(super) epoch: u64,
    pub(super) hello: Hello,
}

/// Whether the acceptor takes the stream.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Verdict {
    Refused(Refusal),
    Main {
        card: Box<Card>,
        max_calls: u32,
        salute: Salute,
    },
    Bulk,
    Observed,
    /// The life that a successor asked for is here.
    Present,
}

/// Why an acceptor does not take a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub(super) enum Refusal {
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
    #[error("enough others look on already")]
    Crowded,
}

impl Refusal {
    /// A word for counters.
    pub(super) fn reason(self) -> &'static str {
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
        }
    }
}

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeFailure {
    #[error("the stream failed: {0}")]
    Io(#[from] io::Error),
    #[error("the handshake took too long")]
    Timeout,
    #[error("the other end does not speak farref")]
    Garbage,
    #[error("the other end speaks version {theirs} of the wire, this worker speaks {VERSION}")]
    Version { theirs: u16 },
    #[error("the other end announced a message of {0} bytes")]
    TooLarge(usize),
    #[error("the other end sent what cannot be read: {0}")]
    Malformed(postcard::Error),
    #[error("the other end does not know the group's token")]
    BadProof,
    #[error("the other end refuses: {0}")]
    Refused(Refusal),
    #[error("this worker refuses: {0}")]
    Refusing(Refusal),
    #[error("the other end claims what cannot be")]
    Contradiction,
    #[error("the session cannot go on: {0}")]
    Session(HandshakeError),
    #[error("the system has no random numbers to give")]
    NoRandomness,
    #[error("another connection came first")]
    Superseded,
    #[error("the other end has left the group")]
    HasLeft,
}

impl HandshakeFailure {
    /// Whether the acceptor will not take this worker, whatever it tries.
    pub(super) fn rejection(&self) -> Option<Rejection> {
        match self {
            Self::Refused(Refusal::Token) => Some(Rejection::Token),
            Self::Version { theirs } | Self::Refused(Refusal::Version { ours: theirs }) => {
                Some(Rejection::Version(*theirs))
            }
            _ => None,
        }
    }

    /// Whether only a change of configuration can help.
    pub(super) fn needs_operator(&self) -> bool {
        match self {
            Self::Version { .. } | Self::BadProof => true,
            Self::Refused(refusal) | Self::Refusing(refusal) => matches!(
                refusal,
                Refusal::Version { .. } | Refusal::Group | Refusal::Token
            ),
            _ => false,
        }
    }

    /// A word for counters.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Io(_) => "io",
            Self::Timeout => "timeout",
            Self::Garbage => "garbage",
            Self::Version { .. } => "version",
            Self::TooLarge(_) => "too_large",
            Self::Malformed(_) => "malformed",
            Self::BadProof => "token",
            Self::Refused(refusal) | Self::Refusing(refusal) => refusal.reason(),
            Self::Contradiction => "contradiction",
            Self::Session(_) => "session",
            Self::NoRandomness => "no_randomness",
            Self::Superseded => "superseded",
            Self::HasLeft => "has_left",
        }
    }

    /// Whether it happens in a group in which all is well: of two connections made at once one goes, who is about
    /// to end takes none, and whoever hangs up has not been refused.
    pub(super) fn is_in_order(&self) -> bool {
        matches!(
            self,
            Self::Superseded
                | Self::HasLeft
                | Self::Io(_)
                | Self::Refusing(Refusal::Busy | Refusal::Stale | Refusal::Closing)
        )
    }
}

/// The number by which both ends know a connection: part of the acceptor's nonce.
pub(super) fn connection_id(nonce: &Nonce) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *nonce;
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// One end of a handshake: the stream, and all that was said on it so far.
#[derive(Debug)]
pub(super) struct Conversation<'a> {
    pub(super) read: &'a mut ReadHalf,
    pub(super) write: &'a WriteHalf,
    key: &'a hmac::Key,
    said: Vec<u8>,
}

/// Who speaks, as it goes into a proof (HS-1).
const DIALER: &[u8] = b"farref dialer";
const ACCEPTOR: &[u8] = b"farref acceptor";

impl<'a> Conversation<'a> {
    pub(super) fn new(stream: &'a mut Stream, key: &'a hmac::Key) -> Self {
        Self {
            read: &mut stream.read,
            write: &stream.write,
            key,
            said: Vec::new(),
        }
    }

    /// Says the first message of either end.
    pub(super) async fn open(&mut self, message: &impl Serialize) -> Result<(), HandshakeFailure> {
        let body = encode(message)?;
        let mut bytes = Vec::with_capacity(OPENING + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        self.said.extend_from_slice(&bytes);
        Ok(self.write.write_all(&bytes).await?)
    }

    /// Hears the first message of the other end.
    pub(super) async fn hear_opening<T: DeserializeOwned>(
        &mut self,
    ) -> Result<T, HandshakeFailure> {
        let mut bytes = Vec::new();
        self.read.read_until(&mut bytes, OPENING).await?;
        let (magic, rest) = bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(HandshakeFailure::Garbage);
        }
        let (version, length) = rest.split_at(2);
        let theirs = version.try_into().map_or(0, u16::from_le_bytes);
        if theirs != VERSION {
            return Err(HandshakeFailure::Version { theirs });
        }
        let length = checked_length(length, MAX_GREETING)?;
        self.read.read_until(&mut bytes, OPENING + length).await?;
        self.said.extend_from_slice(&bytes);
        decode(bytes.get(OPENING..).unwrap_or_default())
    }

    /// Says the dialer's second message, and proves it.
    pub(super) async fn claim(&mut self, claim: &impl Serialize) -> Result<(), HandshakeFailure> {
        self.say_proved(DIALER, claim).await
    }

    /// Says the acceptor's second message, and proves it.
    pub(super) async fn judge(&mut self, verdict: &Verdict) -> Result<(), HandshakeFailure> {
        self.say_proved(ACCEPTOR, verdict).await
    }

    /// Tells a dialer that has not proved itself so. Without a proof of our own (HS-2).
    pub(super) async fn turn_away(&self) -> Result<(), HandshakeFailure> {
        let mut bytes = encode(&Verdict::Refused(Refusal::Token))?;
        bytes.extend_from_slice(&[0; PROOF]);
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.append(&mut bytes);
        Ok(self.write.write_all(&framed).await?)
    }

    async fn say_proved(
        &mut self,
        role: &[u8],
        message: &impl Serialize,
    ) -> Result<(), HandshakeFailure> {
        let mut bytes = encode(message)?;
        self.note(&bytes);
        let proof = hmac::sign(self.key, &self.proved(role));
        bytes.extend_from_slice(proof.as_ref());
        self.said.extend_from_slice(proof.as_ref());
        let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
        framed.append(&mut bytes);
        Ok(self.write.write_all(&framed).await?)
    }

    /// Hears the dialer's second message. The flag says whether it is proved.
    pub(super) async fn hear_claim<T: DeserializeOwned>(
        &mut self,
    ) -> Result<(T, bool), HandshakeFailure> {
        self.hear_proved(DIALER).await
    }

    /// Hears the acceptor's second message. The flag says whether it is proved.
    pub(super) async fn hear_verdict(&mut self) -> Result<(Verdict, bool), HandshakeFailure> {
        self.hear_proved(ACCEPTOR).await
    }

    async fn hear_proved<T: DeserializeOwned>(
        &mut self,
        role: &[u8],
    ) -> Result<(T, bool), HandshakeFailure> {
        let mut length = Vec::new();
        self.read.read_until(&mut length, 4).await?;
        let length = checked_length(&length, MAX_CLAIM)?;
        let mut bytes = Vec::new();
        self.read.read_until(&mut bytes, length).await?;
        let Some((body, proof)) = bytes.split_last_chunk::<PROOF>() else {
            return Err(HandshakeFailure::Garbage);
        };
        self.note(body);
        let proved = hmac::verify(self.key, &self.proved(role), proof).is_ok();
        self.said.extend_from_slice(proof);
        Ok((decode(body)?, proved))
    }

    /// Adds a message that is about to be proved, with its length, so that no other cut of the same
    /// bytes is proved along.
    fn note(&mut self, body: &[u8]) {
        self.said
            .extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.said.extend_from_slice(body);
    }

    /// What a proof by this role covers now.
    fn proved(&self, role: &[u8]) -> Vec<u8> {
        [role, &self.said].concat()
    }
}

fn checked_length(bytes: &[u8], most: usize) -> Result<usize, HandshakeFailure> {
    let length = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
    if length > most {
        return Err(HandshakeFailure::TooLarge(length));
    }
    Ok(length)
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>, HandshakeFailure> {
    postcard::to_allocvec(message).map_err(HandshakeFailure::Malformed)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HandshakeFailure> {
    postcard::from_bytes(bytes).map_err(HandshakeFailure::Malformed)
}
