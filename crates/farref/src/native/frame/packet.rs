//! A message on its way: encoded once, and stored until it is acknowledged.

use std::cell::RefCell;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use farref_proto::{CallHead, Time};
use postcard::ser_flavors::Size;

use super::limits::Limits;
use super::message_head::{HeadOf, SHORT};
use super::plain::{self, FEW_CARRIED};
use crate::agent::{AnswerMessage, Message};
use crate::codec::{Part, Payload};

/// What a stored message weighs beside its bytes.
const OVERHEAD: usize = size_of::<Stored>() + 32;

/// What a head has at most that carries no references and says nothing that only helps people.
const BARE: usize = 256;

/// What a reference takes of a head at most: nine numbers of 64 and 32 bits, of ten and five bytes.
const LONGEST_CARRIED: usize = 3 * 10 + 6 * 5;

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

    /// The buffers beside its value.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.0.payload.parts
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
