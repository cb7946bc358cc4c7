//! A message on its way: encoded once, stored until acknowledged, and put together again on arrival.

use std::cell::RefCell;
use std::fmt;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{AnswerHead, CallHead, Control, MessageId, Time};
use postcard::ser_flavors::Size;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::FrameError;
use super::limits::Limits;
use super::plain::{FEW, FEW_CARRIED, SHORT_FILE};
use crate::agent::{
    AnswerMessage, CallMessage, Caller, Failure, FunctionRef, MAX_CALLERS, Message, Origins,
    SourceLine, TraceContext,
};
use crate::codec::Payload;

/// What a stored message weighs beside its bytes.
const OVERHEAD: usize = size_of::<Stored>() + 32;

/// What a head has at most that is made of a few numbers only: that of a call, say, that carries one reference.
pub(super) const BARE: usize = 256;

/// What a reference takes of a head at most: nine numbers of 64 and 32 bits, of ten and five bytes.
const LONGEST_CARRIED: usize = 3 * 10 + 6 * 5;

/// All of a message but its payload.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum MessageHead {
    Control(Control),
    Call {
        head: CallHead,
        function: Option<FunctionRef>,
        remaining: Option<Duration>,
        trace: TraceContext,
        #[serde(deserialize_with = "few_callers")]
        callers: Vec<Caller>,
        origins: Origins,
    },
    Answer {
        head: AnswerHead,
        origins: Origins,
        failure: Option<Failure>,
    },
    Cancel(MessageId),
    Credit {
        calls: u32,
        bytes: u64,
    },
}

impl MessageHead {
    /// Whether it has hardly anything of any length.
    pub(super) fn is_bare(&self) -> bool {
        match self {
            Self::Control(Control::Confirm(shares))
            | Self::Control(Control::Release(shares))
            | Self::Control(Control::Accept(shares)) => shares.len() <= FEW,
            Self::Control(Control::Register(registrations)) => registrations.len() <= FEW,
            Self::Control(_) => false,
            Self::Call {
                head,
                callers,
                origins,
                ..
            } => head.carried.len() <= FEW_CARRIED && callers.is_empty() && is_short(origins),
            Self::Answer {
                head,
                origins,
                failure,
            } => head.carried.len() <= FEW_CARRIED && is_short(origins) && failure.is_none(),
            Self::Cancel(_) | Self::Credit { .. } => true,
        }
    }

    /// Leaves out what only helps people, if there is any: no message fails for want of room for that.
    fn drop_diagnostics(&mut self) -> bool {
        match self {
            Self::Call {
                callers, origins, ..
            } => !take(callers).is_empty() | !take(origins).is_empty(),
            Self::Answer { origins, .. } => !take(origins).is_empty(),
            Self::Control(_) | Self::Cancel(_) | Self::Credit { .. } => false,
        }
    }
}

/// Whether it names one line at most, of a file with a short name.
fn is_short(origins: &Origins) -> bool {
    let is_short = |line: &SourceLine| line.parts().0.len() <= SHORT_FILE;
    origins.is_empty() || origins.of_one().is_some_and(is_short)
}

/// FR-2: reads no more callers than any correct peer sends.
fn few_callers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Caller>, D::Error> {
    struct Few;

    impl<'de> Visitor<'de> for Few {
        type Value = Vec<Caller>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_CALLERS} callers")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut callers: A) -> Result<Vec<Caller>, A::Error> {
            let mut few = Vec::new();
            while let Some(caller) = callers.next_element()? {
                if few.len() == MAX_CALLERS {
                    return Err(A::Error::invalid_length(MAX_CALLERS + 1, &self));
                }
                few.push(caller);
            }
            Ok(few)
        }
    }

    deserializer.deserialize_seq(Few)
}

/// So many messages that were acknowledged leave their places to others of the thread that learnt it.
const SPARE_PACKETS: usize = 256;

thread_local! {
    static SPARE: RefCell<Vec<Packet>> = const { RefCell::new(Vec::new()) };
}

/// An encoded message. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Packet(Arc<Stored>);

struct Stored {
    head: StoredHead,
    payload: Payload,
    /// At most so many bytes.
    size: usize,
    /// When it was queued, if the time it waits counts against a deadline.
    queued: Option<Time>,
}

/// The head of a stored message.
enum StoredHead {
    /// Of a few numbers, so that it is at most [`BARE`] long: encoded when it leaves, into what leaves.
    Bare(MessageHead),
    Encoded(Vec<u8>),
}

/// A message that no peer would take in.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a message of {size} bytes in {parts} parts is beyond the limits of this wire")]
pub(crate) struct TooLarge {
    size: u64,
    parts: usize,
}

impl Packet {
    /// Encodes a message that is queued now. The clock is asked only if that matters. What cannot be sent
    /// is given back: its buffers may be the program's.
    #[inline]
    pub(crate) fn new(
        message: Message,
        now: impl FnOnce() -> Time,
        limits: &Limits,
    ) -> Result<Self, (TooLarge, Payload)> {
        let (mut head, payload) = disassemble(message);
        let timed = matches!(&head, MessageHead::Call { remaining, .. } if remaining.is_some());
        let parts = payload.parts.len();
        let beside = payload.len() + size_of::<u64>() * parts;
        if head.is_bare() && limits.allow(BARE, parts, BARE + beside) {
            return Ok(Self::store(Stored {
                head: StoredHead::Bare(head),
                payload,
                size: BARE + beside,
                queued: timed.then(now),
            }));
        }
        let size_of = |bytes: &Result<Vec<u8>, _>| bytes.as_ref().map_or(0, Vec::len) + beside;
        let mut bytes = postcard::to_extend(&head, Vec::with_capacity(96));
        if let Ok(encoded) = &bytes
            && !limits.allow(encoded.len(), parts, size_of(&bytes))
            && head.drop_diagnostics()
        {
            bytes = postcard::to_extend(&head, Vec::with_capacity(96));
        }
        let size = size_of(&bytes);
        match bytes {
            Ok(head) if limits.allow(head.len(), parts, size) => Ok(Self(Arc::new(Stored {
                head: StoredHead::Encoded(head),
                payload,
                size,
                queued: timed.then(now),
            }))),
            // Our own types always encode; an error would be one of ours to find.
            _ => {
                let size = size as u64;
                Err((TooLarge { size, parts }, payload))
            }
        }
    }

    /// Puts a message in the place of one that is not needed any more, if there is one.
    #[inline(always)]
    fn store(stored: Stored) -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        if let Ok(Some(mut packet)) = spare
            && let Some(place) = Arc::get_mut(&mut packet.0)
        {
            *place = stored;
            return packet;
        }
        Self(Arc::new(stored))
    }

    /// Drops a message, which has nothing of the program's, and may leave its place to another of this thread's.
    pub(crate) fn recycle(mut self) {
        // A head that was encoded may be long.
        if let Some(stored) = Arc::get_mut(&mut self.0)
            && matches!(stored.head, StoredHead::Bare(_))
        {
            stored.payload = Payload::default();
            // An error: this thread is about to end.
            let _ = SPARE.try_with(|spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARE_PACKETS {
                    spare.push(self);
                }
            });
        }
    }

    /// Whether a call with this head and these arguments can be encoded, whatever else it says.
    pub(crate) fn check_call(
        head: &CallHead,
        arguments: &Payload,
        limits: &Limits,
    ) -> Result<(), TooLarge> {
        // Only references make a head long, so only calls that carry some have to be measured.
        let carried = match head.carried.len() {
            0 => 0,
            few if few <= FEW_CARRIED => LONGEST_CARRIED * few,
            _ => postcard::serialize_with_flavor(head, Size::default()).unwrap_or(usize::MAX / 2),
        };
        let parts = arguments.parts.len();
        let length = BARE + carried;
        let size = length + arguments.len() + size_of::<u64>() * parts;
        if limits.allow(length, parts, size) {
            Ok(())
        } else {
            Err(TooLarge {
                size: size as u64,
                parts,
            })
        }
    }

    /// Its head, unless it is encoded already.
    pub(super) fn bare_head(&self) -> Option<&MessageHead> {
        match &self.0.head {
            StoredHead::Bare(head) => Some(head),
            StoredHead::Encoded(_) => None,
        }
    }

    /// Its head, which may have to be written into this buffer.
    pub(super) fn head<'a>(&'a self, buffer: &'a mut [u8; BARE]) -> &'a [u8] {
        match &self.0.head {
            StoredHead::Encoded(head) => head,
            StoredHead::Bare(head) => match postcard::to_slice(head, buffer) {
                Ok(head) => head,
                Err(error) => {
                    debug_assert!(false, "BARE is too small: {error}");
                    &[]
                }
            },
        }
    }

    pub(super) fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// How many bytes it has on the wire at most, but for the frame's own.
    pub(crate) fn size(&self) -> usize {
        self.0.size
    }

    /// What it costs to store.
    pub(crate) fn weight(&self) -> usize {
        self.0.size + OVERHEAD
    }

    /// Whether it has buffers whose destructors may be the program's.
    pub(crate) fn has_programs_buffers(&self) -> bool {
        self.0.payload.has_programs_buffers()
    }

    /// How long it has waited, in nanoseconds, if that matters to the receiver.
    pub(super) fn age(&self, now: Time) -> Option<u64> {
        self.0.queued.map(|queued| now.0.saturating_sub(queued.0))
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet({} bytes)", self.0.size)
    }
}

/// A message that has arrived. On the heap, because it is large and passed on a lot.
#[derive(Debug)]
pub(crate) struct ReceivedMessage(pub(crate) Box<Message>);

#[inline(always)]
fn disassemble(message: Message) -> (MessageHead, Payload) {
    match message {
        Message::Control(control) => (MessageHead::Control(control), Payload::default()),
        Message::Cancel(id) => (MessageHead::Cancel(id), Payload::default()),
        Message::Credit { calls, bytes } => {
            (MessageHead::Credit { calls, bytes }, Payload::default())
        }
        Message::Call(CallMessage {
            head,
            function,
            remaining,
            trace,
            callers,
            origins,
            arguments,
        }) => (
            MessageHead::Call {
                head,
                function,
                remaining,
                trace,
                callers,
                origins,
            },
            arguments,
        ),
        Message::Answer(AnswerMessage {
            head,
            origins,
            outcome,
        }) => {
            let (failure, payload) = match outcome {
                Ok(payload) => (None, payload),
                Err(failure) => (Some(failure), Payload::default()),
            };
            let head = MessageHead::Answer {
                head,
                origins,
                failure,
            };
            (head, payload)
        }
    }
}

/// The message that a peer sent `age` after it had been queued, without its payload, in the place of one that has
/// been delivered if there is one.
#[inline(always)]
pub(super) fn assemble(
    head: MessageHead,
    age: Duration,
    spare: &mut Vec<ReceivedMessage>,
) -> ReceivedMessage {
    let message = match head {
        MessageHead::Call {
            head,
            function,
            remaining,
            trace,
            callers,
            origins,
        } => Message::Call(CallMessage {
            head,
            function,
            remaining: remaining.map(|remaining| remaining.saturating_sub(age)),
            trace,
            callers,
            origins,
            arguments: Payload::default(),
        }),
        MessageHead::Answer {
            head,
            origins,
            failure,
        } => Message::Answer(AnswerMessage {
            head,
            origins,
            outcome: failure.map_or_else(|| Ok(Payload::default()), Err),
        }),
        MessageHead::Control(control) => Message::Control(control),
        MessageHead::Cancel(id) => Message::Cancel(id),
        MessageHead::Credit { calls, bytes } => Message::Credit { calls, bytes },
    };
    match spare.pop() {
        Some(mut place) => {
            *place.0 = message;
            place
        }
        None => ReceivedMessage(Box::new(message)),
    }
}

impl ReceivedMessage {
    /// The message, which is delivered. What is left is a place for another.
    pub(crate) fn take(&mut self) -> Message {
        std::mem::replace(&mut self.0, Message::Cancel(MessageId(0)))
    }

    /// Adds the payload, which has come after the head.
    pub(super) fn add_payload(&mut self, payload: Payload) -> Result<(), FrameError> {
        match &mut *self.0 {
            Message::Call(call) => call.arguments = payload,
            Message::Answer(AnswerMessage {
                outcome: Ok(value), ..
            }) => *value = payload,
            _ if payload.body.is_empty() && payload.parts.is_empty() => {}
            _ => return Err(FrameError::UnexpectedPayload),
        }
        Ok(())
    }
}
