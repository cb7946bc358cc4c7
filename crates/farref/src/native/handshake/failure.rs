//! Why a handshake came to nothing, and what follows from that.

use std::io;

use farref_proto::HandshakeError;

use super::messages::{Refusal, VERSION};
use crate::native::transport::{Bearer, TlsFailure};

/// Why a handshake came to nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeFailure {
    #[error("the stream failed: {0}")]
    Io(io::Error),
    #[error(transparent)]
    Tls(TlsFailure),
    #[error("the other end speaks TLS, and this worker has no certificate")]
    SpeaksTls,
    #[error("the certificate of the other end is that of {bearer}, not of worker {expected:?}")]
    OtherName { bearer: Bearer, expected: String },
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
    #[error("the other end is a process of user {uid}")]
    OtherUser { uid: u32 },
    #[error("the other end refuses: {0}")]
    Refused(Refusal),
    #[error("this worker refuses: {0}")]
    Refusing(Refusal),
    #[error("the other end claims what cannot be")]
    Contradiction,
    #[error(
        "the other end is not to be reached there, by its own word: somebody may be in between"
    )]
    OtherAddress,
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
    pub(crate) fn rejection(&self) -> Option<Rejection> {
        match self {
            Self::Tls(TlsFailure::Io(_) | TlsFailure::Protocol(_)) => None,
            Self::OtherName { .. } => Some(Rejection::Elsewhere(self.to_string())),
            Self::Tls(_) | Self::Refused(Refusal::NeedsTls | Refusal::NoTls | Refusal::Name) => {
                Some(Rejection::Certificate(self.to_string()))
            }
            Self::Refused(Refusal::Token) => Some(Rejection::Token),
            Self::Refused(Refusal::User) | Self::OtherUser { .. } => Some(Rejection::User),
            Self::Version { theirs } | Self::Refused(Refusal::Version { ours: theirs }) => {
                Some(Rejection::Version(*theirs))
            }
            _ => None,
        }
    }

    /// Whether only a change of configuration can help.
    pub(crate) fn needs_operator(&self) -> bool {
        match self {
            Self::Version { .. }
            | Self::BadProof
            | Self::OtherUser { .. }
            | Self::OtherAddress
            | Self::SpeaksTls
            | Self::OtherName { .. } => true,
            // What is no TLS at all is somebody who looks for open ports.
            Self::Tls(failure) => !matches!(failure, TlsFailure::Io(_) | TlsFailure::Protocol(_)),
            Self::Refused(refusal) | Self::Refusing(refusal) => matches!(
                refusal,
                Refusal::Version { .. }
                    | Refusal::Group
                    | Refusal::Token
                    | Refusal::User
                    | Refusal::NeedsTls
                    | Refusal::NoTls
                    | Refusal::Name
            ),
            _ => false,
        }
    }

    /// A word for counters.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Io(_) | Self::Tls(TlsFailure::Io(_)) => "io",
            Self::Tls(TlsFailure::Protocol(_)) => "garbage",
            Self::Tls(_) | Self::SpeaksTls => "tls",
            Self::OtherName { .. } => "name",
            Self::Timeout => "timeout",
            Self::Garbage => "garbage",
            Self::Version { .. } => "version",
            Self::TooLarge(_) => "too_large",
            Self::Malformed(_) => "malformed",
            Self::BadProof => "token",
            Self::OtherUser { .. } => "user",
            Self::Refused(refusal) | Self::Refusing(refusal) => refusal.reason(),
            Self::Contradiction => "contradiction",
            Self::OtherAddress => "address",
            Self::Session(_) => "session",
            Self::NoRandomness => "no_randomness",
            Self::Superseded => "superseded",
            Self::HasLeft => "has_left",
        }
    }

    /// Whether it happens in a group in which all is well: of two connections made at once one goes, who is about
    /// to end takes none, and whoever hangs up has not been refused.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(
            self,
            Self::Superseded
                | Self::HasLeft
                | Self::Io(_)
                | Self::Tls(TlsFailure::Io(_))
                | Self::Refusing(Refusal::Busy | Refusal::Stale | Refusal::Closing)
        )
    }
}

impl From<io::Error> for HandshakeFailure {
    fn from(error: io::Error) -> Self {
        // A certificate that is not taken shows in what is read after TLS' own handshake.
        match error.downcast::<TlsFailure>() {
            Ok(failure) => Self::Tls(failure),
            Err(error) => Self::Io(error),
        }
    }
}

impl From<TlsFailure> for HandshakeFailure {
    fn from(failure: TlsFailure) -> Self {
        match failure {
            TlsFailure::Io(error) => error.into(),
            other => Self::Tls(other),
        }
    }
}

/// Why a peer does not take this worker's connections.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    /// It has another token.
    Token,
    /// It is another user's process.
    User,
    /// It speaks that version of the wire.
    Version(u16),
    /// One of the two has a certificate that the other does not take, or none.
    Certificate(String),
    /// Where it should be there is another, by its certificate.
    Elsewhere(String),
}
