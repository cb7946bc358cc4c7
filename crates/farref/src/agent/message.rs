//! What the runtimes of two workers say to each other, whatever the wire.

use std::time::Duration;

use farref_proto::{AnswerHead, CallError, CallHead, Control, Fingerprint, MessageId};
use serde::{Deserialize, Serialize};

use crate::codec::Payload;

/// One message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Message {
    /// The protocol's own.
    Control(Control),
    /// A call.
    Call(CallMessage),
    /// An answer.
    Answer(AnswerMessage),
    /// The caller no longer wants the answer.
    Cancel(MessageId),
    /// So many calls whose results stay have been carried out since the last message of this kind, and
    /// so many bytes came with them: the caller may send more. (A call that is answered needs no such
    /// word.)
    Credit {
        /// How many calls.
        calls: u32,
        /// How many bytes.
        bytes: u64,
    },
}

/// A call as it travels.
#[derive(Clone, Debug)]
pub struct CallMessage {
    /// The protocol's part.
    pub head: CallHead,
    /// What to call. None only fetches the value that the head names.
    pub function: Option<FunctionRef>,
    /// How much time is left, counted from when the message was queued.
    pub remaining: Option<Duration>,
    /// Ties the callee's span to the caller's.
    pub trace: TraceContext,
    /// The arguments.
    pub arguments: Payload,
}

/// An answer as it travels.
#[derive(Clone, Debug)]
pub struct AnswerMessage {
    /// The protocol's part.
    pub head: AnswerHead,
    /// The result.
    pub outcome: Result<Payload, Failure>,
}

/// Names a function and says what the caller believes about its signature.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FunctionRef {
    /// A hash of the function's name.
    pub id: u64,
    /// A hash of its arguments and result as the caller knows them.
    pub signature: Fingerprint,
    /// Whether the receiver is the value behind the first carried reference (used by calls on a far
    /// value whose results stay with it).
    pub on_first_reference: bool,
}

/// What connects the spans of one call on two workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TraceContext {
    /// Shared by everything that one call caused; zero if nobody traces.
    pub trace: u64,
    /// The caller's span.
    pub span: u64,
}

/// Why a call brought no value.
///
/// The parameter is for [`Unmade`], whose own failure is never of that kind. That is so by its type,
/// because how deep a message nests must not be up to whoever wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure<U = Unmade> {
    /// The function returned an error: its message and those of its sources.
    Returned(Vec<String>),
    /// The function panicked.
    Panicked(String),
    /// The callee has no such function. Its best guess at what was meant.
    NoSuchFunction(Option<String>),
    /// The callee's function has another signature, this one.
    SignatureMismatch(String),
    /// The arguments could not be decoded.
    BadArguments(String),
    /// A reference in the arguments leads to a value of another type than the function takes.
    TypeMismatch(String),
    /// The result could not be encoded.
    BadResult(String),
    /// The result's type cannot be sent: it is not `Serialize`.
    NotSerializable(String),
    /// Time was up on the callee.
    DeadlineExceeded,
    /// The caller gave up first.
    Cancelled,
    /// The callee is shutting down.
    ShuttingDown,
    /// The protocol could not carry it out.
    Protocol(CallError),
    /// The value that the call was on was never made.
    Unmade(U),
}

/// A value that was never made, because its constructor failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unmade {
    /// A hash of the constructor's name.
    pub function: u64,
    /// The name, if the owner has such a function.
    pub name: Option<String>,
    /// The time that the constructor was given.
    pub limit: Option<Duration>,
    /// How it failed.
    pub failure: Box<Failure<Never>>,
}

/// What cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Never {}

impl Failure {
    /// The same failure, for use in an [`Unmade`]. A value that could not be made for want of
    /// another one fails as that one did.
    pub(crate) fn plain(self) -> Result<Failure<Never>, Unmade> {
        Ok(match self {
            Self::Returned(messages) => Failure::Returned(messages),
            Self::Panicked(message) => Failure::Panicked(message),
            Self::NoSuchFunction(similar) => Failure::NoSuchFunction(similar),
            Self::SignatureMismatch(theirs) => Failure::SignatureMismatch(theirs),
            Self::BadArguments(reason) => Failure::BadArguments(reason),
            Self::TypeMismatch(reason) => Failure::TypeMismatch(reason),
            Self::BadResult(reason) => Failure::BadResult(reason),
            Self::NotSerializable(type_name) => Failure::NotSerializable(type_name),
            Self::DeadlineExceeded => Failure::DeadlineExceeded,
            Self::Cancelled => Failure::Cancelled,
            Self::ShuttingDown => Failure::ShuttingDown,
            Self::Protocol(error) => Failure::Protocol(error),
            Self::Unmade(unmade) => return Err(unmade),
        })
    }
}
