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
use super::plain::{self, FEW_CARRIED};
use crate::agent::{
    AnswerMessage, CallMessage, Caller, Failure, FunctionRef, MAX_CALLERS, Message, Origins,
    TraceContext,
};
use crate::codec::Payload;

/// What a stored message weighs beside its bytes.
const OVERHEAD: usize = size_of::<Stored>() + 32;

/// A head of up to this length needs no memory of its own: that of a call, say, that carries one reference.
pub(super) const SHORT: usize = 192;

/// What a head has at most that carries no references and says nothing that only helps people.
const BARE: usize = 256;

/// What a reference takes of a head at most: nine numbers of 64 and 32 bits, of ten and five bytes.
const LONGEST_CARRIED: usize = 3 * 10 + 6 * 5;

/// All of a message but its payload, as it is read.
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

/// The same of a message that is here, as it is written.
#[derive(Serialize)]
pub(super) enum HeadOf<'a> {
    Control(&'a Control),
    Call {
        head: &'a CallHead,
        function: &'a Option<FunctionRef>,
        remaining: &'a Option<Duration>,
        trace: &'a TraceContext,
        callers: &'a [Caller],
        origins: &'a Origins,
    },
    Answer {
        head: &'a AnswerHead,
        origins: &'a Origins,
        failure: Option<&'a Failure>,
    },
    Cancel(MessageId),
    Credit {
        calls: u32,
        bytes: u64,
    },
}

impl<'a> HeadOf<'a> {
    pub(super) fn new(message: &'a Message) -> Self {
        match message {
            Message::Control(control) => Self::Control(control),
            Message::Call(call) => Self::Call {
                head: &call.head,
                function: &call.function,
                remaining: &call.remaining,
                trace: &call.trace,
                callers: &call.callers,
                origins: &call.origins,
            },
            Message::Answer(answer) => Self::Answer {
                head: &answer.head,
                origins: &answer.origins,
                failure: answer.outcome.as_ref().err(),
            },
            Message::Cancel(id) => Self::Cancel(*id),
            Message::Credit { calls, bytes } => Self::Credit {
                calls: *calls,
                bytes: *bytes,
            },
        }
    }
}

/// Leaves out what only helps people, if there is any: no message fails for want of room for that.
fn drop_diagnostics(message: &mut Message) -> bool {
    match message {
        Message::Call(call) => {
            !take(&mut call.callers).is_empty() | !take(&mut call.origins).is_empty()
        }
        Message::Answer(answer) => !take(&mut answer.origins).is_empty(),
        Message::Control(_) | Message::Cancel(_) | Message::Credit { .. } => false,
    }
}

/// Takes what goes beside the head.
fn take_payload(message: &mut Message) -> Payload {
    match message {
        Message::Call(call) => take(&mut call.arguments),
        Message::Answer(AnswerMessage {
            outcome: Ok(value), ..
        }) => take(value),
        _ => Payload::default(),
    }
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
    /// So many bytes, but for the frame's own.
    size: usize,
    /// When it was queued, if the time it waits counts against a deadline.
    queued: Option<Time>,
}

/// The head of a stored message, encoded.
enum StoredHead {
    Short { bytes: [u8; SHORT], length: usize },
    Long(Vec<u8>),
}

impl StoredHead {
    const EMPTY: Self = Self::Short {
        bytes: [0; SHORT],
        length: 0,
    };

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Short { bytes, length } => bytes.get(..*length).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }

    /// Encodes the head of a message. Says whether it could be.
    fn write(&mut self, message: &Message) -> bool {
        if let Self::Long(_) = self {
            *self = Self::EMPTY;
        }
        let Self::Short { bytes, length } = self else {
            return false;
        };
        if let Some(written) = plain::write_message(message, bytes) {
            *length = written;
            return true;
        }
        let head = HeadOf::new(message);
        match postcard::to_slice(&head, bytes) {
            Ok(written) => *length = written.len(),
            // Our own types always encode; an error would be one of ours to find.
            Err(_) => match postcard::to_extend(&head, Vec::with_capacity(2 * SHORT)) {
                Ok(written) => *self = Self::Long(written),
                Err(_) => return false,
            },
        }
        true
    }
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
    /// is given back: its buffers may be the program's. Of the message only the protocol's part is left.
    pub(crate) fn new(
        message: &mut Message,
        now: impl FnOnce() -> Time,
        limits: &Limits,
    ) -> Result<Self, (TooLarge, Payload)> {
        let timed = matches!(message, Message::Call(call) if call.remaining.is_some());
        let payload = take_payload(message);
        let parts = payload.parts.len();
        let beside = payload.len() + size_of::<u64>() * parts;
        let mut packet = Self::place();
        let Some(stored) = Arc::get_mut(&mut packet.0) else {
            // A place is nobody else's.
            return Err((TooLarge { size: 0, parts }, payload));
        };
        let fits = |stored: &Stored| {
            let head = stored.head.bytes().len();
            limits.allow(head, parts, head + beside)
        };
        let mut written = stored.head.write(message);
        if written && !fits(stored) && drop_diagnostics(message) {
            written = stored.head.write(message);
        }
        let size = stored.head.bytes().len() + beside;
        if !written || !fits(stored) {
            let size = size as u64;
            return Err((TooLarge { size, parts }, payload));
        }
        stored.size = size;
        stored.queued = timed.then(now);
        stored.payload = payload;
        Ok(packet)
    }

    /// The place of a message that is not needed any more, if there is one, or a new one.
    fn place() -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        spare.ok().flatten().unwrap_or_else(|| {
            Self(Arc::new(Stored {
                head: StoredHead::EMPTY,
                payload: Payload::default(),
                size: 0,
                queued: None,
            }))
        })
    }

    /// Drops a message, which has nothing of the program's, and may leave its place to another of this thread's.
    pub(crate) fn recycle(mut self) {
        // A head that was encoded may be long.
        if let Some(stored) = Arc::get_mut(&mut self.0)
            && matches!(stored.head, StoredHead::Short { .. })
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

    /// Its head.
    pub(super) fn head(&self) -> &[u8] {
        self.0.head.bytes()
    }

    pub(super) fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// How many bytes it has on the wire, but for the frame's own.
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
    ReceivedMessage::place(message, spare)
}

impl ReceivedMessage {
    /// Puts a message in the place of one that has been delivered, if there is one.
    #[inline(always)]
    pub(super) fn place(message: Message, spare: &mut Vec<Self>) -> Self {
        match spare.pop() {
            Some(mut place) => {
                *place.0 = message;
                place
            }
            None => Self(Box::new(message)),
        }
    }

    /// Lets go of what is left of a message that has been delivered, if that is more than a place.
    pub(super) fn empty(&mut self) {
        let is_empty = match &*self.0 {
            Message::Call(call) => {
                call.head.carried.capacity() == 0
                    && call.callers.capacity() == 0
                    && call.origins.is_empty()
                    && call.arguments.is_empty()
            }
            Message::Answer(AnswerMessage {
                head,
                origins,
                outcome: Ok(value),
            }) => head.carried.capacity() == 0 && origins.is_empty() && value.is_empty(),
            Message::Cancel(_) | Message::Credit { .. } => true,
            Message::Answer(_) | Message::Control(_) => false,
        };
        if !is_empty {
            drop(self.0.take());
        }
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
