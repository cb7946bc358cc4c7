//! The heads of plain calls and answers, written and read by hand.
//!
//! Nearly all messages of a busy program are calls that carry no references, are in no context and wait for no
//! other, and answers that brought a value. Their heads are a handful of numbers, and going through serde for
//! those costs more than all else that is done to bring such a message to its peer.
//!
//! # Invariants
//!
//! - **PL-1** What is written here is what postcard writes for the same [`FrameHead`](super::head::FrameHead) and
//!   [`MessageHead`], byte for byte.
//! - **PL-2** What is read here is what postcard reads, and whatever is not understood here is left to it: also
//!   what is wrong with a head is for postcard to say.

use std::time::Duration;

use farref_proto::{Acks, AnswerHead, CallHead, Fingerprint, Frame, Lane, MessageId, Target};

use super::packet::{MessageHead, ReceivedMessage, assemble};
use crate::agent::{FunctionRef, Origins, TraceContext};

/// No head that is written here is longer.
pub(super) const MAX_PLAIN: usize = 160;

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

/// Writes the head of a frame and of its message, if that is a plain one. Says how long it is.
pub(super) fn write(
    (lane, seq, acks, age): DataHead,
    message: &MessageHead,
    buffer: &mut [u8; MAX_PLAIN],
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
    match message {
        MessageHead::Call {
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
        } if carried.is_empty() && callers.is_empty() && origins.is_empty() => {
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
        MessageHead::Answer {
            head: AnswerHead { id, carried },
            origins,
            failure: None,
        } if carried.is_empty() && origins.is_empty() => {
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
    let age = match from.byte()? {
        NONE => 0,
        SOME => from.number()?,
        _ => return None,
    };
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
            MessageHead::Call {
                head: CallHead {
                    target: Target::Answer(request),
                    context: None,
                    carried: Vec::new(),
                },
                function: Some(function),
                remaining,
                trace,
                callers: Vec::new(),
                origins: Origins::default(),
            }
        }
        ANSWER => {
            let id = MessageId(from.number()?);
            from.expect(&[0, 0, 0, NONE])?;
            MessageHead::Answer {
                head: AnswerHead {
                    id,
                    carried: Vec::new(),
                },
                origins: Origins::default(),
                failure: None,
            }
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
        payload: assemble(message, Duration::from_nanos(age), spare),
    })
}

struct Writer<'a> {
    buffer: &'a mut [u8; MAX_PLAIN],
    at: usize,
}

impl Writer<'_> {
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
    fn number(&mut self, mut number: u64) -> Option<()> {
        // As much as the longest may take, so that it is looked for once: MAX_PLAIN has it to spare.
        let room = self
            .buffer
            .get_mut(self.at..)?
            .first_chunk_mut::<LONGEST>()?;
        for (length, byte) in (1..).zip(room) {
            if number < 0x80 {
                *byte = number as u8;
                self.at += length;
                return Some(());
            }
            *byte = number as u8 | 0x80;
            number >>= 7;
        }
        None
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
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

    fn number(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first()?;
        if *first < 0x80 {
            self.0 = rest;
            return Some(u64::from(*first));
        }
        let mut number = u64::from(*first & 0x7f);
        let mut shift = 7;
        for (at, byte) in (1..).zip(rest.iter().take(LONGEST - 1)) {
            number |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                // The last of the longest has one bit left.
                let is_fine = shift < 63 || *byte <= 1;
                self.0 = rest.get(at..)?;
                return is_fine.then_some(number);
            }
            shift += 7;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::super::head::{FrameHead, map_payload};
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

    fn encoded((lane, seq, acks, payload): DataHead, message: &MessageHead) -> Vec<u8> {
        let head = FrameHead::Session(Frame::Data {
            lane,
            seq,
            acks,
            payload,
        });
        let bytes = postcard::to_extend(&head, Vec::new()).unwrap();
        postcard::to_extend(message, bytes).unwrap()
    }

    fn call(next: &mut impl FnMut() -> u64) -> MessageHead {
        MessageHead::Call {
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
        }
    }

    fn answer(next: &mut impl FnMut() -> u64) -> MessageHead {
        MessageHead::Answer {
            head: AnswerHead {
                id: MessageId(next()),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            failure: None,
        }
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
            let mut buffer = [0; MAX_PLAIN];
            let length = write(data, &message, &mut buffer).unwrap();
            assert_eq!(buffer[..length], expected);

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
            let assembled = assemble(
                message,
                Duration::from_nanos(age.unwrap_or(0)),
                &mut Vec::new(),
            );
            assert_eq!(format!("{payload:?}"), format!("{assembled:?}"));
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
        if let MessageHead::Call { callers, .. } = &mut waited_for {
            callers.push(Caller {
                function: 1,
                value: None,
                exclusive: false,
            });
        }
        let failed = MessageHead::Answer {
            head: AnswerHead {
                id: MessageId(1),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            failure: Some(Failure::Cancelled),
        };
        for message in [waited_for, failed, MessageHead::Cancel(MessageId(1))] {
            assert!(write(data, &message, &mut [0; MAX_PLAIN]).is_none());
            assert!(read(&encoded(data, &message), &mut Vec::new()).is_none());
        }
    }
}
