//! The heads of plain calls and answers, written and read by hand.
//!
//! Nearly all messages of a busy program are calls that carry no references, are in no context and wait for no
//! other, and answers that brought a value. Their heads are a handful of numbers, and going through serde for
//! those costs more than all else that is done to bring such a message to its peer.
//!
//! # Invariants
//!
//! - **PL-1** What is written here is what postcard writes for the same [`FrameHead`](super::head::FrameHead) and
//!   [`MessageHead`](super::packet::MessageHead), byte for byte.
//! - **PL-2** What is read here is what postcard reads, and whatever is not understood here is left to it: also
//!   what is wrong with a head is for postcard to say.

use std::time::Duration;

use farref_proto::{Acks, AnswerHead, CallHead, Fingerprint, Frame, Lane, MessageId, Target};

use super::packet::{ReceivedMessage, SHORT};
use crate::agent::{AnswerMessage, CallMessage, FunctionRef, Message, Origins, TraceContext};
use crate::codec::Payload;

/// No [`DataHead`] takes more: two tags, a lane, an option and five numbers.
pub(super) const MAX_DATA: usize = 4 + 5 * LONGEST;

/// No number takes more bytes.
const LONGEST: usize = 10;

/// `FrameHead::Session(Frame::Data { .. })`.
const DATA: [u8; 2] = [0, 0];
const CALL: u8 = 1;
const ANSWER: u8 = 2;
/// A variant, an option or a length.
const NONE: u8 = 0;
const SOME: u8 = 1;

/// What a frame of data says besides its message: its lane, its number, what is acknowledged, and how long the
/// message has waited, if that matters.
pub(super) type DataHead = (Lane, u64, Acks, Option<u64>);

/// Writes the head of a frame of data, which that of its message follows. Says how long it is.
pub(super) fn write_data(
    (lane, seq, acks, age): DataHead,
    buffer: &mut [u8; MAX_DATA],
) -> Option<usize> {
    let mut to = Writer { buffer, at: 0 };
    to.bytes(&DATA)?;
    to.byte(lane.index() as u8)?;
    to.number(seq)?;
    for acked in acks.0 {
        to.number(acked)?;
    }
    match age {
        None => to.byte(NONE)?,
        Some(age) => {
            to.byte(SOME)?;
            to.number(age)?;
        }
    }
    Some(to.at)
}

/// Writes the head of a message, if that is a plain one. Says how long it is.
pub(super) fn write_message(message: &Message, buffer: &mut [u8; SHORT]) -> Option<usize> {
    let mut to = Writer { buffer, at: 0 };
    match message {
        Message::Call(CallMessage {
            head:
                CallHead {
                    target: Target::Answer(request),
                    context: None,
                    carried,
                },
            function: Some(function),
            remaining,
            trace,
            callers,
            origins,
            ..
        }) if carried.is_empty() && callers.is_empty() && origins.is_empty() => {
            to.bytes(&[CALL, 0])?;
            to.number(request.0)?;
            // No context, nothing carried.
            to.bytes(&[NONE, 0, SOME])?;
            to.number(function.id)?;
            to.number(function.signature.0)?;
            to.byte(function.on_first_reference.into())?;
            match remaining {
                None => to.byte(NONE)?,
                Some(remaining) => {
                    to.byte(SOME)?;
                    to.number(remaining.as_secs())?;
                    to.number(remaining.subsec_nanos().into())?;
                }
            }
            to.number(trace.trace)?;
            to.number(trace.span)?;
            // No callers, no origins.
            to.bytes(&[0, 0, 0])?;
        }
        Message::Answer(AnswerMessage {
            head: AnswerHead { id, carried },
            origins,
            outcome: Ok(_),
        }) if carried.is_empty() && origins.is_empty() => {
            to.byte(ANSWER)?;
            to.number(id.0)?;
            // Nothing carried, no origins, no failure.
            to.bytes(&[0, 0, 0, NONE])?;
        }
        _ => return None,
    }
    Some(to.at)
}

/// Reads a whole head, if it is one of a plain message. Its payload is still to come.
pub(super) fn read(
    bytes: &[u8],
    spare: &mut Vec<ReceivedMessage>,
) -> Option<Frame<ReceivedMessage>> {
    let mut from = Reader(bytes);
    from.expect(&DATA)?;
    let lane = *Lane::ALL.get(usize::from(from.byte()?))?;
    let seq = from.number()?;
    let acks = Acks([from.number()?, from.number()?, from.number()?]);
    let age = Duration::from_nanos(match from.byte()? {
        NONE => 0,
        SOME => from.number()?,
        _ => return None,
    });
    let message = match from.byte()? {
        CALL => {
            from.expect(&[0])?;
            let request = MessageId(from.number()?);
            from.expect(&[NONE, 0, SOME])?;
            let function = FunctionRef {
                id: from.number()?,
                signature: Fingerprint(from.number()?),
                on_first_reference: from.boolean()?,
            };
            let remaining = match from.byte()? {
                NONE => None,
                SOME => {
                    let seconds = from.number()?;
                    let length = from.0.len();
                    let nanos = u32::try_from(from.number()?).ok()?;
                    // Written with more bytes than such a number has, or more than a second of them: postcard knows
                    // how to refuse these.
                    let is_fine = length - from.0.len() <= 5 && nanos < 1_000_000_000;
                    let nanos = is_fine.then_some(nanos)?;
                    Some(Duration::new(seconds, nanos))
                }
                _ => return None,
            };
            let trace = TraceContext {
                trace: from.number()?,
                span: from.number()?,
            };
            from.expect(&[0, 0, 0])?;
            Message::Call(CallMessage {
                head: CallHead {
                    target: Target::Answer(request),
                    context: None,
                    carried: Vec::new(),
                },
                function: Some(function),
                remaining: remaining.map(|remaining| remaining.saturating_sub(age)),
                trace,
                callers: Vec::new(),
                origins: Origins::default(),
                arguments: Payload::default(),
            })
        }
        ANSWER => {
            let id = MessageId(from.number()?);
            from.expect(&[0, 0, 0, NONE])?;
            Message::Answer(AnswerMessage {
                head: AnswerHead {
                    id,
                    carried: Vec::new(),
                },
                origins: Origins::default(),
                outcome: Ok(Payload::default()),
            })
        }
        _ => return None,
    };
    if !from.0.is_empty() {
        return None;
    }
    Some(Frame::Data {
        lane,
        seq,
        acks,
        payload: ReceivedMessage::place(message, spare),
    })
}

struct Writer<'a> {
    buffer: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    #[inline(always)]
    fn byte(&mut self, byte: u8) -> Option<()> {
        *self.buffer.get_mut(self.at)? = byte;
        self.at += 1;
        Some(())
    }

    fn bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.at + bytes.len();
        self.buffer.get_mut(self.at..end)?.copy_from_slice(bytes);
        self.at = end;
        Some(())
    }

    /// Seven bits a byte, the lowest first.
    #[inline(always)]
    fn number(&mut self, number: u64) -> Option<()> {
        match u8::try_from(number) {
            Ok(small @ 0..0x80) => self.byte(small),
            _ => self.long_number(number),
        }
    }

    #[inline(never)]
    fn long_number(&mut self, number: u64) -> Option<()> {
        // As much as the longest may take, so that it is looked for once: there is that much to spare.
        let room = self.buffer.get_mut(self.at..)?;
        let room = room.first_chunk_mut::<LONGEST>()?;
        let mut rest = number;
        for (length, byte) in (1..).zip(room) {
            if rest < 0x80 {
                *byte = rest as u8;
                self.at += length;
                return Some(());
            }
            *byte = rest as u8 | 0x80;
            rest >>= 7;
        }
        None
    }
}

/// The mark of each byte of a number that says that there is more.
const MORE: u64 = 0x8080_8080_8080_8080;

/// The lowest seven bits of each byte.
#[inline]
fn gather(bytes: u64) -> u64 {
    let number = bytes & 0x007f_007f_007f_007f | (bytes & 0x7f00_7f00_7f00_7f00) >> 1;
    let number = number & 0x0000_3fff_0000_3fff | (number & 0x3fff_0000_3fff_0000) >> 2;
    number & 0x0fff_ffff | (number & 0x0fff_ffff_0000_0000) >> 4
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    #[inline(always)]
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn expect(&mut self, bytes: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(bytes)?;
        Some(())
    }

    fn boolean(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    #[inline(always)]
    fn number(&mut self) -> Option<u64> {
        match self.0.split_first()? {
            (first @ 0..0x80, rest) => {
                self.0 = rest;
                Some(u64::from(*first))
            }
            _ => self.long_number(),
        }
    }

    #[inline(never)]
    fn long_number(&mut self) -> Option<u64> {
        let Some((low, high)) = self.0.split_first_chunk::<8>() else {
            return self.number_at_the_end();
        };
        let low = u64::from_le_bytes(*low);
        let ends = !low & MORE;
        if ends != 0 {
            let bits = ends.trailing_zeros() + 1;
            self.0 = self.0.get(bits as usize / 8..)?;
            return Some(gather(low & u64::MAX >> (64 - bits)));
        }
        let (ninth, high) = high.split_first()?;
        let number = gather(low) | u64::from(*ninth & 0x7f) << 56;
        if *ninth < 0x80 {
            self.0 = high;
            return Some(number);
        }
        // The last of the longest has one bit left.
        let (tenth, high) = high.split_first()?;
        self.0 = high;
        (*tenth <= 1).then(|| number | u64::from(*tenth) << 63)
    }

    /// One that fewer than eight bytes are left for.
    #[cold]
    fn number_at_the_end(&mut self) -> Option<u64> {
        let mut number = 0;
        for (at, byte) in self.0.iter().enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * at);
            if *byte < 0x80 {
                self.0 = self.0.get(at + 1..)?;
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::head::{FrameHead, map_payload};
    use super::super::packet::{HeadOf, MessageHead, assemble};
    use super::*;
    use crate::agent::{Caller, Failure};

    /// Numbers of all lengths, in an order that looks like none.
    fn numbers() -> impl FnMut() -> u64 {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state >> (state % 64)
        }
    }

    fn encoded((lane, seq, acks, payload): DataHead, message: &Message) -> Vec<u8> {
        let head = FrameHead::Session(Frame::Data {
            lane,
            seq,
            acks,
            payload,
        });
        let bytes = postcard::to_extend(&head, Vec::new()).unwrap();
        postcard::to_extend(&HeadOf::new(message), bytes).unwrap()
    }

    /// What is written here.
    fn written(data: DataHead, message: &Message) -> Option<Vec<u8>> {
        let mut buffer = [0; MAX_DATA];
        let length = write_data(data, &mut buffer).unwrap();
        let mut bytes = buffer[..length].to_vec();
        let mut buffer = [0; SHORT];
        let length = write_message(message, &mut buffer)?;
        bytes.extend(&buffer[..length]);
        Some(bytes)
    }

    fn call(next: &mut impl FnMut() -> u64) -> Message {
        Message::Call(CallMessage {
            head: CallHead {
                target: Target::Answer(MessageId(next())),
                context: None,
                carried: Vec::new(),
            },
            function: Some(FunctionRef {
                id: next(),
                signature: Fingerprint(next()),
                on_first_reference: next() % 2 == 1,
            }),
            remaining: (!next().is_multiple_of(4))
                .then(|| Duration::new(next(), next() as u32 % 1_000_000_000)),
            trace: TraceContext {
                trace: next(),
                span: next(),
            },
            callers: Vec::new(),
            origins: Origins::default(),
            arguments: Payload::default(),
        })
    }

    fn answer(next: &mut impl FnMut() -> u64) -> Message {
        Message::Answer(AnswerMessage {
            head: AnswerHead {
                id: MessageId(next()),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            outcome: Ok(Payload::default()),
        })
    }

    /// PL-1, PL-2
    #[test]
    fn plain_heads_are_written_and_read_as_postcard_does() {
        let mut next = numbers();
        let mut spare = Vec::new();
        for round in 0..20_000 {
            let lane = Lane::ALL[(next() % 3) as usize];
            let age = next().is_multiple_of(2).then(&mut next);
            let data = (lane, next(), Acks([next(), next(), next()]), age);
            let message = match round % 2 {
                0 => call(&mut next),
                _ => answer(&mut next),
            };
            let expected = encoded(data, &message);
            assert_eq!(written(data, &message), Some(expected.clone()));
            let length = expected.len();

            let Some(Frame::Data {
                lane: read_lane,
                seq,
                acks,
                payload,
            }) = read(&expected, &mut spare)
            else {
                panic!("{message:?} is not read");
            };
            assert_eq!((read_lane, seq, acks), (data.0, data.1, data.2));
            let mut message = message;
            if let Message::Call(call) = &mut message
                && let Some(remaining) = &mut call.remaining
            {
                *remaining = remaining.saturating_sub(Duration::from_nanos(age.unwrap_or(0)));
            }
            assert_eq!(
                format!("{payload:?}"),
                format!("ReceivedMessage({message:?})")
            );
            // The next one takes its place.
            spare.push(payload);
            // What is cut off or goes on is nothing that is understood here.
            assert!(read(&expected[..length - 1], &mut spare).is_none());
            assert!(read(&[&expected[..], &[0]].concat(), &mut spare).is_none());
        }
    }

    /// PL-2: any byte changed gives what postcard reads out of it, or is left to postcard.
    #[test]
    fn nothing_is_read_that_postcard_would_not_read() {
        let mut next = numbers();
        let mut read_here = 0;
        for round in 0..20_000 {
            let data = (
                Lane::Call,
                next(),
                Acks([next(), next(), next()]),
                Some(next()),
            );
            let message = match round % 2 {
                0 => call(&mut next),
                _ => answer(&mut next),
            };
            let mut bytes = encoded(data, &message);
            let at = next() as usize % bytes.len();
            bytes[at] = next() as u8;
            let Some(ours) = read(&bytes, &mut Vec::new()) else {
                continue;
            };
            read_here += 1;
            let (head, rest) = postcard::take_from_bytes::<FrameHead>(&bytes).unwrap();
            let FrameHead::Session(frame) = head else {
                panic!("{head:?} is no frame");
            };
            let (theirs, rest) = postcard::take_from_bytes::<MessageHead>(rest).unwrap();
            assert!(rest.is_empty());
            let age = |age: Option<u64>| Duration::from_nanos(age.unwrap_or(0));
            let Ok(theirs) = map_payload(frame, |waited| {
                Ok::<_, Infallible>(assemble(theirs, age(waited), &mut Vec::new()))
            });
            assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        }
        assert!(read_here > 1000, "{read_here}");
    }

    #[test]
    fn other_messages_are_left_to_postcard() {
        let mut next = numbers();
        let data = (Lane::Call, 1, Acks([2, 3, 4]), None);
        let mut waited_for = call(&mut next);
        if let Message::Call(call) = &mut waited_for {
            call.callers.push(Caller {
                function: 1,
                value: None,
                exclusive: false,
            });
        }
        let failed = Message::Answer(AnswerMessage {
            head: AnswerHead {
                id: MessageId(1),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            outcome: Err(Failure::Cancelled),
        });
        for message in [waited_for, failed, Message::Cancel(MessageId(1))] {
            assert!(written(data, &message).is_none());
            assert!(read(&encoded(data, &message), &mut Vec::new()).is_none());
        }
    }
}
