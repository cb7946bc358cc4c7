//! The heads of plain messages, written and read by hand.
//!
//! Nearly all messages of a busy program are calls that are in no context and wait for no other, answers that brought a
//! value, and what is said of a few references. Their heads are a handful of numbers, and going through serde for
//! those costs more than all else that is done to bring such a message to its peer.
//!
//! # Invariants
//!
//! - **PL-1** What is written here is what postcard writes for the same [`FrameHead`](super::head::FrameHead) and
//!   [`MessageHead`](super::message_head::MessageHead), byte for byte.
//! - **PL-2** What is read here is what postcard reads, and whatever is not understood here is left to it: also
//!   what is wrong with a head is for postcard to say.

use std::time::Duration;

use farref_proto::{
    Acks, AnswerHead, CallHead, Carried, Control, Creation, Fingerprint, Frame, Lane, MessageId,
    Registration, Target,
};

use super::message_head::SHORT;
use super::received::ReceivedMessage;
use super::varint::{LONGEST, Reader, Writer};
use crate::agent::{AnswerMessage, CallMessage, FunctionRef, Message, Origins, TraceContext};
use crate::codec::Payload;

/// No [`DataHead`] takes more: two tags, a lane, an option and five numbers.
pub(super) const MAX_DATA: usize = 4 + 5 * LONGEST;

/// So many references at most are in a list that is written or read here.
pub(super) const FEW: usize = 4;
/// So many are in a call or an answer.
pub(super) const FEW_CARRIED: usize = 1;
/// No name of a file that is written or read here is longer.
pub(super) const SHORT_FILE: usize = 48;

/// `FrameHead::Session(Frame::Data { .. })`.
const DATA: [u8; 2] = [0, 0];
/// Variants of `MessageHead`.
const CONTROL: u8 = 0;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
/// Variants of `Control`.
const REGISTER: u8 = 0;
const CONFIRM: u8 = 1;
const RELEASE: u8 = 3;
const ACCEPT: u8 = 4;
/// Variants of `Target`.
const TO_ANSWER: u8 = 0;
const FETCH: u8 = 1;
const STAY: u8 = 2;
/// An option.
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
    let mut to = Writer::new(buffer);
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
    Some(to.len())
}

/// Writes the head of a message, if that is a plain one and has room. Says how long it is.
pub(super) fn write_message(message: &Message, buffer: &mut [u8; SHORT]) -> Option<usize> {
    let mut to = Writer::new(buffer);
    match message {
        Message::Call(CallMessage {
            head:
                CallHead {
                    target,
                    context: None,
                    carried,
                },
            function,
            remaining,
            trace,
            callers,
            origins,
            ..
        }) if callers.is_empty() => {
            to.byte(CALL)?;
            write_target(&mut to, target)?;
            to.byte(NONE)?;
            write_carried(&mut to, carried)?;
            match function {
                None => to.byte(NONE)?,
                Some(function) => {
                    to.byte(SOME)?;
                    to.number(function.id)?;
                    to.number(function.signature.0)?;
                    to.byte(function.on_first_reference.into())?;
                }
            }
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
            // No callers.
            to.byte(0)?;
            write_origins(&mut to, origins)?;
        }
        Message::Answer(AnswerMessage {
            head: AnswerHead { id, carried },
            origins,
            outcome: Ok(_),
        }) => {
            to.byte(ANSWER)?;
            to.number(id.0)?;
            write_carried(&mut to, carried)?;
            write_origins(&mut to, origins)?;
            to.byte(NONE)?;
        }
        Message::Control(control) => write_control(&mut to, control)?,
        _ => return None,
    }
    Some(to.len())
}

#[inline(always)]
fn write_target(to: &mut Writer<'_>, target: &Target) -> Option<()> {
    match target {
        Target::Answer(request) => {
            to.byte(TO_ANSWER)?;
            to.number(request.0)
        }
        Target::Fetch(request, rref, fingerprint) => {
            to.byte(FETCH)?;
            to.number(request.0)?;
            to.rref(*rref)?;
            to.number(fingerprint.0)
        }
        Target::Stay(Creation { share, fingerprint }) => {
            to.byte(STAY)?;
            to.share(share)?;
            to.number(fingerprint.0)
        }
    }
}

#[inline(always)]
fn write_carried(to: &mut Writer<'_>, carried: &[Carried]) -> Option<()> {
    match carried {
        [] => to.byte(0),
        [only] => {
            to.byte(1)?;
            to.carried(only)
        }
        _ => None,
    }
}

#[inline(always)]
fn write_origins(to: &mut Writer<'_>, origins: &Origins) -> Option<()> {
    if origins.is_empty() {
        return to.bytes(&[0, 0]);
    }
    write_line(to, origins)
}

#[inline(never)]
fn write_line(to: &mut Writer<'_>, origins: &Origins) -> Option<()> {
    let (file, line, column) = origins.of_one()?.parts();
    if file.len() > SHORT_FILE {
        return None;
    }
    to.bytes(&[1, file.len() as u8])?;
    to.bytes(file.as_bytes())?;
    to.number(line.into())?;
    to.number(column.into())?;
    // One reference, of the first line.
    to.bytes(&[1, 1])
}

#[inline(never)]
fn write_control(to: &mut Writer<'_>, control: &Control) -> Option<()> {
    let (kind, shares) = match control {
        Control::Confirm(shares) => (CONFIRM, shares),
        Control::Release(shares) => (RELEASE, shares),
        Control::Accept(shares) => (ACCEPT, shares),
        Control::Register(registrations) if registrations.len() <= FEW => {
            to.bytes(&[CONTROL, REGISTER, registrations.len() as u8])?;
            return registrations.iter().try_for_each(|registration| {
                to.share(&registration.share)?;
                to.number(registration.fingerprint.0)
            });
        }
        _ => return None,
    };
    if shares.len() > FEW {
        return None;
    }
    to.bytes(&[CONTROL, kind, shares.len() as u8])?;
    shares.iter().try_for_each(|share| to.share(share))
}

/// Reads a whole head, if it is one of a plain message. Its payload is still to come.
pub(super) fn read(
    bytes: &[u8],
    spare: &mut Vec<ReceivedMessage>,
) -> Option<Frame<ReceivedMessage>> {
    let mut from = Reader::new(bytes);
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
        CALL => Message::Call(read_call(&mut from, age)?),
        ANSWER => {
            let id = MessageId(from.number()?);
            let carried = read_carried(&mut from)?;
            let origins = read_origins(&mut from)?;
            from.expect(&[NONE])?;
            Message::Answer(AnswerMessage {
                head: AnswerHead { id, carried },
                origins,
                outcome: Ok(Payload::default()),
            })
        }
        CONTROL => Message::Control(read_control(&mut from)?),
        _ => return None,
    };
    if !from.is_at_end() {
        return None;
    }
    Some(Frame::Data {
        lane,
        seq,
        acks,
        payload: ReceivedMessage::place(message, spare),
    })
}

/// A call that was sent `age` after it had been queued.
#[inline(always)]
fn read_call(from: &mut Reader<'_>, age: Duration) -> Option<CallMessage> {
    let target = match from.byte()? {
        TO_ANSWER => Target::Answer(MessageId(from.number()?)),
        FETCH => {
            let request = MessageId(from.number()?);
            Target::Fetch(request, from.rref()?, Fingerprint(from.number()?))
        }
        STAY => Target::Stay(Creation {
            share: from.share()?,
            fingerprint: Fingerprint(from.number()?),
        }),
        _ => return None,
    };
    from.expect(&[NONE])?;
    let carried = read_carried(from)?;
    let function = match from.byte()? {
        NONE => None,
        SOME => Some(FunctionRef {
            id: from.number()?,
            signature: Fingerprint(from.number()?),
            on_first_reference: from.boolean()?,
        }),
        _ => return None,
    };
    let remaining = match from.byte()? {
        NONE => None,
        SOME => {
            let seconds = from.number()?;
            // More than a second of them: postcard knows how to refuse these.
            let nanos = from.short().filter(|nanos| *nanos < 1_000_000_000)?;
            Some(Duration::new(seconds, nanos))
        }
        _ => return None,
    };
    let trace = TraceContext {
        trace: from.number()?,
        span: from.number()?,
    };
    from.expect(&[0])?;
    Some(CallMessage {
        head: CallHead {
            target,
            context: None,
            carried,
        },
        function,
        remaining: remaining.map(|remaining: Duration| remaining.saturating_sub(age)),
        trace,
        callers: Vec::new(),
        origins: read_origins(from)?,
        arguments: Payload::default(),
    })
}

#[inline(always)]
fn read_carried(from: &mut Reader<'_>) -> Option<Vec<Carried>> {
    match from.byte()? {
        0 => Some(Vec::new()),
        1 => Some(vec![from.carried()?]),
        _ => None,
    }
}

#[inline(always)]
fn read_origins(from: &mut Reader<'_>) -> Option<Origins> {
    match from.byte()? {
        0 => {
            from.expect(&[0])?;
            Some(Origins::default())
        }
        1 => read_line(from),
        _ => None,
    }
}

#[inline(never)]
fn read_line(from: &mut Reader<'_>) -> Option<Origins> {
    let length = usize::from(from.byte()?);
    let file = (length <= SHORT_FILE).then(|| from.bytes(length))??;
    let (line, column) = (from.short()?, from.short()?);
    from.expect(&[1, 1])?;
    Origins::of_line(std::str::from_utf8(file).ok()?, line, column)
}

#[inline(never)]
fn read_control(from: &mut Reader<'_>) -> Option<Control> {
    let kind = from.byte()?;
    let count = usize::from(from.byte()?);
    if count > FEW {
        return None;
    }
    if kind == REGISTER {
        let registrations = (0..count).map(|_| {
            Some(Registration {
                share: from.share()?,
                fingerprint: Fingerprint(from.number()?),
            })
        });
        return registrations.collect::<Option<_>>().map(Control::Register);
    }
    let of_kind = match kind {
        CONFIRM => Control::Confirm,
        RELEASE => Control::Release,
        ACCEPT => Control::Accept,
        _ => return None,
    };
    let shares = (0..count).map(|_| from.share());
    shares.collect::<Option<_>>().map(of_kind)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use farref_proto::{ForkId, NodeId, RRefId, Share};

    use super::super::head::{FrameHead, map_payload};
    use super::super::message_head::{HeadOf, MessageHead};
    use super::super::received::assemble;
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

    fn node(next: &mut impl FnMut() -> u64) -> NodeId {
        NodeId::new(next() as u32, next() as u32)
    }

    fn rref(next: &mut impl FnMut() -> u64) -> RRefId {
        RRefId::new(node(next), next())
    }

    fn share(next: &mut impl FnMut() -> u64) -> Share {
        Share {
            rref: rref(next),
            fork: ForkId::new(node(next), next()),
        }
    }

    fn few<T>(
        next: &mut impl FnMut() -> u64,
        mut make: impl FnMut(&mut dyn FnMut() -> u64) -> T,
    ) -> Vec<T> {
        let count = next() as usize % (FEW + 1);
        (0..count).map(|_| make(next)).collect()
    }

    /// One reference, with its line or without, or none.
    fn carried(next: &mut impl FnMut() -> u64) -> (Vec<Carried>, Origins) {
        let carried = Carried {
            share: share(next),
            owner: node(next),
            fingerprint: Fingerprint(next()),
        };
        let file = &"src/of/some/other/program/that/is/not/this/ne.rs"[next() as usize % 48..];
        match next() % 3 {
            0 => (Vec::new(), Origins::default()),
            1 => (vec![carried], Origins::default()),
            _ => {
                let origins = Origins::of_line(file, next() as u32, next() as u32);
                (vec![carried], origins.unwrap())
            }
        }
    }

    fn control(next: &mut impl FnMut() -> u64) -> Message {
        Message::Control(match next() % 4 {
            0 => Control::Confirm(few(next, |mut next| share(&mut next))),
            1 => Control::Release(few(next, |mut next| share(&mut next))),
            2 => Control::Accept(few(next, |mut next| share(&mut next))),
            _ => Control::Register(few(next, |mut next| Registration {
                share: share(&mut next),
                fingerprint: Fingerprint(next()),
            })),
        })
    }

    fn call(next: &mut impl FnMut() -> u64) -> Message {
        let (carried, origins) = carried(next);
        Message::Call(CallMessage {
            head: CallHead {
                target: match next() % 3 {
                    0 => Target::Answer(MessageId(next())),
                    1 => Target::Fetch(MessageId(next()), rref(next), Fingerprint(next())),
                    _ => Target::Stay(Creation {
                        share: share(next),
                        fingerprint: Fingerprint(next()),
                    }),
                },
                context: None,
                carried,
            },
            function: (!next().is_multiple_of(4)).then(|| FunctionRef {
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
            origins,
            arguments: Payload::default(),
        })
    }

    fn answer(next: &mut impl FnMut() -> u64) -> Message {
        let (carried, origins) = carried(next);
        Message::Answer(AnswerMessage {
            head: AnswerHead {
                id: MessageId(next()),
                carried,
            },
            origins,
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
            let message = match round % 3 {
                0 => call(&mut next),
                1 => answer(&mut next),
                _ => control(&mut next),
            };
            let expected = encoded(data, &message);
            let length = expected.len();
            match written(data, &message) {
                Some(written) => assert_eq!(written, expected),
                // The longest are left to postcard, too.
                None => assert!(length > SHORT - LONGEST, "{message:?} is not written"),
            }

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
            let message = match round % 3 {
                0 => call(&mut next),
                1 => answer(&mut next),
                _ => control(&mut next),
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
        let many = vec![share(&mut next); FEW + 1];
        let others = [
            waited_for,
            failed,
            Message::Cancel(MessageId(1)),
            Message::Control(Control::Release(many)),
            Message::Control(Control::Finish),
        ];
        for message in others {
            assert!(written(data, &message).is_none());
            assert!(read(&encoded(data, &message), &mut Vec::new()).is_none());
        }
    }
}
