//! Looking into a worker from outside of its group: both ends of the conversation that follows an
//! observer's handshake.
//!
//! | from | bytes |
//! | --- | --- |
//! | observer | length (4), [`Question`] |
//! | worker | length (4), [`Snapshot`] |
//!
//! and so on, until either closes the stream. Numbers are little endian, the rest is postcard.
//!
//! # Invariants
//!
//! - **OB-1** An observer is no member. Nothing in the group changes because somebody looks.
//! - **OB-2** What observers can make a worker do is bounded: so many of them ([`MAX_OBSERVERS`]), one
//!   question at a time each, answers with so many references and calls ([`MAX_REFERENCES`], [`MAX_CALLS`]), and whoever asks
//!   nothing or does not read is sent away ([`IDLE`]).
//! - **OB-3** Only who knows the group's token is shown anything.
//! - **OB-4** With certificates, what an observer is shown is said by the worker that it names, and by the one that the observer
//!   means, where it means one.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ring::hmac;
use serde::{Deserialize, Serialize};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::native::endpoint::WireCallbacks;
use crate::native::handshake::{
    Conversation, Greeting, HandshakeFailure, Refusal, Rejection, VERSION, Verdict, fresh_nonce,
};
use crate::native::transport::{Stream, Tls};
use crate::rendezvous::Address;
use crate::report::snapshot::{Snapshot, Wanted};

/// How many may look into one worker at once.
pub(crate) const MAX_OBSERVERS: usize = 16;
/// How many references one answer describes.
const MAX_REFERENCES: usize = 100_000;
/// How many calls that are over one answer describes.
const MAX_CALLS: usize = 4096;
/// The longest question.
const MAX_QUESTION: usize = 64;
/// The longest answer that an observer takes.
const MAX_ANSWER: usize = 256 << 20;
/// How long an observer may be silent, or leave an answer unread.
const IDLE: Duration = Duration::from_secs(60);

/// What an observer wants to know.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Question {
    /// About how many references.
    references: u32,
    /// About how many calls that are over: those that it has not been told of on this stream.
    calls: u32,
}

/// Answers an observer's questions until it goes.
pub(crate) async fn show(
    _permit: OwnedSemaphorePermit,
    callbacks: Arc<dyn WireCallbacks>,
    mut stream: Stream,
) {
    let mut known_calls = 0;
    loop {
        let question = hear::<Question>(&mut stream, MAX_QUESTION);
        let Ok(Ok(Question { references, calls })) = timeout(IDLE, question).await else {
            return;
        };
        let callbacks = Arc::clone(&callbacks);
        let wanted = Wanted {
            references: MAX_REFERENCES.min(references as usize),
            calls: MAX_CALLS.min(calls as usize),
            known_calls,
        };
        // A worker may have millions of references to look through; its own work goes on meanwhile.
        let looking = tokio::task::spawn_blocking(move || callbacks.snapshot(wanted));
        let Ok(Some(snapshot)) = looking.await else {
            return;
        };
        known_calls = snapshot.recorded;
        if !matches!(timeout(IDLE, say(&stream, &snapshot)).await, Ok(Ok(()))) {
            return;
        }
    }
}

/// A stream on which one worker answers questions.
#[derive(Debug)]
pub(crate) struct ObserverConnection {
    stream: Stream,
}

/// Why a worker cannot be looked into.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObserverConnectionError {
    #[error("{0}")]
    Unreachable(io::Error),
    #[error("what listens there is no farref worker")]
    Stranger,
    #[error("it speaks version {theirs} of the wire, this program speaks {VERSION}")]
    Version { theirs: u16 },
    #[error("it does not know this token")]
    Token,
    #[error("it is another user's process")]
    User,
    #[error("{0}")]
    Certificate(String),
    #[error("enough others look on already")]
    Crowded,
    #[error("it refuses: {0}")]
    Refused(String),
    #[error("it has closed the connection")]
    Closed,
    #[error("it sent what cannot be read")]
    Malformed,
}

impl ObserverConnection {
    /// Connects to a worker, of that name if one is meant, and proves to know the token.
    pub(crate) async fn open(
        address: &Address,
        token: &[u8],
        tls: Option<&Tls>,
        name: Option<&str>,
    ) -> Result<Self, ObserverConnectionError> {
        let mut stream = Stream::connect(address, None)
            .await
            .map_err(ObserverConnectionError::Unreachable)?;
        if let Some(tls) = tls {
            stream = stream
                .begin_tls(tls)
                .await
                .map_err(HandshakeFailure::from)?;
        }
        // OB-4
        if let Some(bearer) = &stream.bearer
            && !bearer.is_worker()
        {
            return Err(ObserverConnectionError::Certificate(format!(
                "its certificate is that of {bearer}, not of a worker"
            )));
        }
        if let Some(name) = name {
            check_name(&stream, name)?;
        }
        if token.is_empty() && is_superuser() {
            // It may look into everybody's processes, and has nothing to give away.
            stream.stranger = None;
        }
        let key = hmac::Key::new(hmac::HMAC_SHA256, token);
        let mut conversation = Conversation::new(&mut stream, &key);
        let nonce = fresh_nonce()?;
        match conversation.ask(&Greeting::Observer { nonce }).await? {
            Verdict::Observed => Ok(Self { stream }),
            _ => Err(ObserverConnectionError::Malformed),
        }
    }

    /// Asks for a snapshot with at most so many references, and so many calls.
    pub(crate) async fn ask(
        &mut self,
        references: usize,
        calls: usize,
    ) -> Result<Snapshot, ObserverConnectionError> {
        let [references, calls] =
            [references, calls].map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        say(&self.stream, &Question { references, calls })
            .await
            .map_err(|_| ObserverConnectionError::Closed)?;
        let snapshot: Snapshot = hear(&mut self.stream, MAX_ANSWER).await?;
        check_name(&self.stream, &snapshot.worker)?;
        Ok(snapshot)
    }
}

/// An error if the other end has shown the certificate of somebody else (OB-4).
fn check_name(stream: &Stream, name: &str) -> Result<(), ObserverConnectionError> {
    match &stream.bearer {
        Some(bearer) if !bearer.may_be(name) => Err(ObserverConnectionError::Certificate(format!(
            "its certificate is that of {bearer}, not of worker {name:?}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn is_superuser() -> bool {
    rustix::process::geteuid().is_root()
}

#[cfg(not(unix))]
fn is_superuser() -> bool {
    false
}

impl From<HandshakeFailure> for ObserverConnectionError {
    fn from(failure: HandshakeFailure) -> Self {
        if let Some(Rejection::Certificate(why)) = failure.rejection() {
            return Self::Certificate(why);
        }
        match failure {
            // Whoever hangs up at a greeting of ours does not know what it means.
            HandshakeFailure::Io(_) | HandshakeFailure::Garbage => Self::Stranger,
            HandshakeFailure::Version { theirs }
            | HandshakeFailure::Refused(Refusal::Version { ours: theirs }) => {
                Self::Version { theirs }
            }
            HandshakeFailure::BadProof | HandshakeFailure::Refused(Refusal::Token) => Self::Token,
            HandshakeFailure::OtherUser { .. } | HandshakeFailure::Refused(Refusal::User) => {
                Self::User
            }
            HandshakeFailure::Refused(Refusal::Crowded) => Self::Crowded,
            HandshakeFailure::NoRandomness => Self::Unreachable(io::Error::other(failure)),
            other => Self::Refused(other.to_string()),
        }
    }
}

async fn say(stream: &Stream, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_extend(message, vec![0; 4]);
    let mut bytes = bytes.map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    stream.write.write_all(&bytes).await
}

/// For fuzzers: what an observer says, one question after the other, or what is said to it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) async fn hear_anything(stream: &mut Stream, observed: bool) {
    if observed {
        while hear::<Question>(stream, MAX_QUESTION).await.is_ok() {}
    } else {
        while hear::<Snapshot>(stream, MAX_ANSWER).await.is_ok() {}
    }
}

async fn hear<T: for<'de> Deserialize<'de>>(
    stream: &mut Stream,
    most: usize,
) -> Result<T, ObserverConnectionError> {
    let closed = |_| ObserverConnectionError::Closed;
    let mut length = Vec::new();
    stream
        .read
        .read_until(&mut length, 4)
        .await
        .map_err(closed)?;
    let length = length.try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
    if length > most {
        return Err(ObserverConnectionError::Malformed);
    }
    let mut bytes = Vec::new();
    stream
        .read
        .read_until(&mut bytes, length)
        .await
        .map_err(closed)?;
    postcard::from_bytes(&bytes).map_err(|_| ObserverConnectionError::Malformed)
}
