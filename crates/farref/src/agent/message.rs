//! What the runtimes of two workers say to each other, whatever the wire.

use std::time::Duration;

use farref_proto::{
    AnswerHead, CallError, CallHead, Control, Fingerprint, MessageId, RRefId, Target,
};
use serde::{Deserialize, Serialize};

use super::origins::Origins;
use crate::codec::Payload;
use crate::error::ErrorValue;
use crate::fingerprint::signature::Signature;

/// One message.
///
/// ```
/// use farref::agent::{Message, MessageId};
///
/// /// How urgent a message is: what the protocol says goes before what users say (AG-4).
/// fn is_urgent(message: &Message) -> bool {
///     !matches!(message, Message::Call(_) | Message::Answer(_))
/// }
///
/// assert!(is_urgent(&Message::Cancel(MessageId(7))));
/// assert!(is_urgent(&Message::Credit { calls: 1, bytes: 100 }));
/// ```
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

impl Message {
    /// The message, of which nothing is left here.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Cancel(MessageId(0)))
    }
}

/// A call as it travels.
///
/// ```
/// use std::time::Duration;
///
/// use farref::agent::{CallMessage, Message};
///
/// /// What an agent does to a call that waited in its queue: that time is gone.
/// fn grow_old(message: &mut Message, waited: Duration) {
///     if let Message::Call(CallMessage { remaining: Some(remaining), .. }) = message {
///         *remaining = remaining.saturating_sub(waited);
///     }
/// }
/// # use farref::agent::{CallHead, TraceContext};
/// # let wire = r#"{"target":{"Answer":7},"context":null,"carried":[]}"#;
/// # let head: CallHead = serde_json::from_str(wire).unwrap();
///
/// let mut message = Message::Call(CallMessage {
///     head, // as it was read from a wire
///     function: None,
///     remaining: Some(Duration::from_secs(5)),
///     trace: TraceContext::default(),
///     callers: vec![],
///     origins: Default::default(),
///     arguments: Default::default(),
/// });
/// grow_old(&mut message, Duration::from_secs(2));
/// let left = Some(Duration::from_secs(3));
/// assert!(matches!(message, Message::Call(call) if call.remaining == left));
/// ```
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
    /// The calls that wait for this one, the outermost first, from the first one on that uses a value; at
    /// most [`MAX_CALLERS`]. With it a worker recognises calls that would wait for themselves. A wire may
    /// leave it out.
    pub callers: Vec<Caller>,
    /// Where the references that it carries were made. A wire may leave it out.
    pub origins: Origins,
    /// The arguments.
    pub arguments: Payload,
}

impl CallMessage {
    /// What it counts for in [`Message::Credit`], if its result stays: small arguments count for nothing.
    ///
    /// ```
    /// use farref::agent::{CallMessage, TraceContext};
    /// use farref::Payload;
    /// # use farref::agent::CallHead;
    /// # let wire = r#"{"target":{"Answer":7},"context":null,"carried":[]}"#;
    /// # let head: CallHead = serde_json::from_str(wire).unwrap();
    ///
    /// let mut call = CallMessage {
    ///     head, // as it was read from a wire
    ///     function: None,
    ///     remaining: None,
    ///     trace: TraceContext::default(),
    ///     callers: vec![],
    ///     origins: Default::default(),
    ///     arguments: Payload::default(),
    /// };
    /// assert_eq!(call.weight(), 0);
    /// call.arguments.parts.push(vec![0; 1 << 20].into());
    /// assert_eq!(call.weight(), 1 << 20);
    /// ```
    pub fn weight(&self) -> u64 {
        weigh(self.arguments.len() as u64)
    }

    /// The request that an answer will name; none if the result stays.
    pub(crate) fn request(&self) -> Option<MessageId> {
        request_of(&self.head)
    }
}

/// The request that an answer will name; none if the result stays.
pub(crate) fn request_of(head: &CallHead) -> Option<MessageId> {
    match head.target {
        Target::Answer(request) | Target::Fetch(request, ..) => Some(request),
        Target::Stay(_) => None,
    }
}

/// Arguments of up to this size make a small call.
pub(crate) const SMALL: u64 = 64 << 10;

/// What arguments of some size count for (FL-2). Both ends count alike.
pub(crate) fn weigh(bytes: u64) -> u64 {
    if bytes > SMALL { bytes } else { 0 }
}

/// How many [`Caller`]s a call names at most.
pub const MAX_CALLERS: usize = 16;

/// A call that waits for one that it made.
///
/// ```
/// use farref::agent::{Caller, MAX_CALLERS};
///
/// let wire = r#"{"function":7,"value":null,"exclusive":false}"#;
/// let caller: Caller = serde_json::from_str(wire)?;
/// assert_eq!(caller.value, None); // a function that is no method
/// assert_eq!(serde_json::to_string(&caller)?, wire);
/// assert!(MAX_CALLERS > 1);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Caller {
    /// A hash of its function's name.
    pub function: u64,
    /// The value that it uses until it ends.
    pub value: Option<RRefId>,
    /// Whether nobody else can use that value meanwhile.
    pub exclusive: bool,
}

/// An answer as it travels.
///
/// ```
/// use farref::Payload;
/// use farref::agent::{AnswerHead, AnswerMessage, Failure, MessageId};
///
/// let head = AnswerHead { id: MessageId(7), carried: vec![] };
/// let origins = Default::default();
/// let value = AnswerMessage { head, origins, outcome: Ok(Payload::default()) };
/// let failure = AnswerMessage { outcome: Err(Failure::Cancelled), ..value.clone() };
/// assert_eq!(value.head.id, failure.head.id);
/// assert!(value.outcome.is_ok() && failure.outcome.is_err());
/// ```
#[derive(Clone, Debug)]
pub struct AnswerMessage {
    /// The protocol's part.
    pub head: AnswerHead,
    /// Where the references that it carries were made. A wire may leave it out.
    pub origins: Origins,
    /// The result.
    pub outcome: Result<Payload, Failure>,
}

/// Names a function and says what the caller believes about its signature.
///
/// An agent writes it as any other value, in the encoding of its wire.
///
/// ```
/// use farref::agent::FunctionRef;
///
/// let wire = r#"{"id":7,"signature":9,"on_first_reference":false}"#;
/// let function: FunctionRef = serde_json::from_str(wire)?;
/// assert_eq!(function.id, 7);
/// assert_eq!(serde_json::to_string(&function)?, wire);
/// # Ok::<(), serde_json::Error>(())
/// ```
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
///
/// ```
/// use farref::agent::TraceContext;
///
/// let nobody = TraceContext::default();
/// assert_eq!((nobody.trace, nobody.span), (0, 0));
///
/// // The same trace, seen from inside of another span.
/// let outer = TraceContext { trace: 7, span: 1 };
/// let inner = TraceContext { span: 2, ..outer };
/// assert_eq!(inner.trace, outer.trace);
/// ```
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
///
/// ```
/// use farref::agent::Failure;
///
/// /// Whether another attempt might do better.
/// fn is_passing(failure: &Failure) -> bool {
///     matches!(failure, Failure::DeadlineExceeded | Failure::ShuttingDown)
/// }
///
/// assert!(is_passing(&Failure::ShuttingDown));
/// assert!(!is_passing(&Failure::Returned(vec!["division by zero".to_owned()], None)));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Failure<U = Unmade> {
    /// The function returned an error: its message and those of its sources, and the error itself, if it can be
    /// sent as what it is. A wire may leave that out.
    Returned(Vec<String>, Option<Box<ErrorValue>>),
    /// The function panicked.
    Panicked(String),
    /// The callee has no such function. Its best guess at what was meant.
    NoSuchFunction(Option<String>),
    /// The callee's function has another signature, this one.
    SignatureMismatch(Box<Signature>),
    /// The arguments could not be decoded.
    BadArguments(String),
    /// A reference in the arguments leads to a value of another type than the function takes.
    TypeMismatch(String),
    /// The value is of another type than the caller believes.
    ValueMismatch {
        /// Which reference led to it.
        rref: RRefId,
        /// What the caller believes.
        expected: Fingerprint,
        /// What it is called on its owner.
        found: String,
    },
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
    /// The call would have waited for a call that waits for it: the functions from the one that uses the
    /// value to the one that was called.
    Deadlock(Vec<String>),
    /// The callee does not let the caller call that function
    /// ([`authorize`](crate::WorkerBuilder::authorize)).
    NotAuthorized,
}

/// A value that was never made, because its constructor failed.
///
/// ```
/// use farref::agent::{Failure, Unmade};
///
/// // Why a call on a value brought nothing: there is no value.
/// let failure: Failure = Failure::Unmade(Unmade {
///     function: 7,
///     name: Some("Table::new".to_owned()),
///     limit: None,
///     failure: Box::new(Failure::Panicked("out of memory".to_owned())),
/// });
/// let Failure::Unmade(unmade) = failure else {
///     unreachable!()
/// };
/// assert_eq!(unmade.name.as_deref(), Some("Table::new"));
/// ```
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
///
/// ```
/// use farref::agent::{Failure, Never};
///
/// // A failure inside of an `Unmade` needs no case for another one: there is none.
/// fn text(failure: Failure<Never>) -> String {
///     match failure {
///         Failure::Unmade(never) => match never {},
///         other => format!("{other:?}"),
///     }
/// }
///
/// assert_eq!(text(Failure::DeadlineExceeded), "DeadlineExceeded");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Never {}

impl Failure {
    /// The same failure, for use in an [`Unmade`]. A value that could not be made for want of
    /// another one fails as that one did.
    pub(crate) fn plain(self) -> Result<Failure<Never>, Unmade> {
        Ok(match self {
            Self::Returned(messages, value) => Failure::Returned(messages, value),
            Self::Panicked(message) => Failure::Panicked(message),
            Self::NoSuchFunction(similar) => Failure::NoSuchFunction(similar),
            Self::SignatureMismatch(theirs) => Failure::SignatureMismatch(theirs),
            Self::BadArguments(reason) => Failure::BadArguments(reason),
            Self::TypeMismatch(reason) => Failure::TypeMismatch(reason),
            Self::ValueMismatch {
                rref,
                expected,
                found,
            } => Failure::ValueMismatch {
                rref,
                expected,
                found,
            },
            Self::BadResult(reason) => Failure::BadResult(reason),
            Self::NotSerializable(type_name) => Failure::NotSerializable(type_name),
            Self::DeadlineExceeded => Failure::DeadlineExceeded,
            Self::Cancelled => Failure::Cancelled,
            Self::ShuttingDown => Failure::ShuttingDown,
            Self::Protocol(error) => Failure::Protocol(error),
            Self::Deadlock(cycle) => Failure::Deadlock(cycle),
            Self::NotAuthorized => Failure::NotAuthorized,
            Self::Unmade(unmade) => return Err(unmade),
        })
    }
}
