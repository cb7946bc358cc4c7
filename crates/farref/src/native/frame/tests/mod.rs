//! FR-1 to FR-4: the decoder against anything, in any pieces.

mod named;
#[cfg(target_os = "linux")]
mod passed;
mod widths;

use std::time::Duration;

use bytes::{BufMut, Bytes};
use farref_proto::{
    AnswerHead, CallHead, Carried, ContextId, Control, Creation, Fingerprint, ForkId, Frame, Lane,
    MessageId, NodeId, RRefId, Share, Target, Time,
};
use farref_testkit::thorough;
use proptest::prelude::*;

use super::head::{FrameHead, Place, part_entry};
use super::*;
use crate::agent::{
    AnswerMessage, CallMessage, Caller, Failure, FunctionRef, MAX_CALLERS, Message, Origins,
    TraceContext,
};
use crate::codec::{Elements, Owned, Part, Payload};

const LIMITS: Limits = Limits {
    message_bytes: 8 << 20,
    head_bytes: 1 << 20,
    parts: 100,
};

fn acks() -> farref_proto::Acks {
    farref_proto::Acks([3, 1 << 40, 5])
}

fn data(seq: u64, mut message: Message) -> Frame<Packet> {
    Frame::Data {
        lane: Lane::Call,
        seq,
        acks: acks(),
        payload: Packet::new(&mut message, || Time(5), &LIMITS).expect("within the limits"),
    }
}

fn call(body: Bytes, parts: Vec<Part>, remaining: Option<Duration>) -> Message {
    Message::Call(CallMessage {
        head: CallHead {
            target: Target::Answer(MessageId(9)),
            context: None,
            carried: Vec::new(),
        },
        function: Some(FunctionRef {
            id: 1,
            signature: Fingerprint(2),
            on_first_reference: true,
        }),
        remaining,
        trace: TraceContext { trace: 1, span: 2 },
        callers: Vec::new(),
        origins: Origins::default(),
        arguments: Payload { body, parts },
    })
}

/// R5: what was asked for before a call was queued holds when it is encoded, however long its numbers
/// are.
#[test]
fn a_call_that_passed_the_check_can_be_encoded() {
    let node = NodeId::new(u32::MAX, u32::MAX);
    let rref = RRefId {
        origin: node,
        counter: u64::MAX,
    };
    let share = Share {
        rref,
        fork: ForkId {
            origin: node,
            counter: u64::MAX,
        },
    };
    let fingerprint = Fingerprint(u64::MAX);
    let targets = [
        Target::Answer(MessageId(u64::MAX)),
        Target::Fetch(MessageId(u64::MAX), rref, fingerprint),
        Target::Stay(Creation { share, fingerprint }),
    ];
    let context = ContextId {
        origin: node,
        counter: u64::MAX,
    };
    let carried = Carried {
        share,
        owner: node,
        fingerprint,
    };
    let mut refused = 0;
    for (target, references) in targets
        .into_iter()
        .flat_map(|target| [0, 1, 20].map(|n| (target, n)))
    {
        let head = CallHead {
            target,
            context: Some(context),
            carried: vec![carried; references],
        };
        let arguments = Payload {
            body: vec![1; 1000].into(),
            parts: vec![vec![2; 10].into(); 3],
        };
        for limit in (100..6_000).step_by(if thorough() { 1 } else { 7 }) {
            let limits = Limits {
                message_bytes: 1_000 + u64::from(limit),
                head_bytes: limit,
                parts: 3,
            };
            if Packet::check_call(&head, &arguments, &limits).is_err() {
                refused += 1;
                continue;
            }
            let mut message = Message::Call(CallMessage {
                head: head.clone(),
                function: Some(FunctionRef {
                    id: u64::MAX,
                    signature: fingerprint,
                    on_first_reference: true,
                }),
                remaining: Some(Duration::MAX),
                trace: TraceContext {
                    trace: u64::MAX,
                    span: u64::MAX,
                },
                callers: Vec::new(),
                origins: Origins::default(),
                arguments: arguments.clone(),
            });
            let packet = Packet::new(&mut message, || Time(5), &limits);
            assert!(packet.is_ok(), "{target:?} with {references}: {packet:?}");
        }
    }
    assert!(refused > 0);
}

/// The bytes of some frames that leave at the same time.
fn encode(frames: impl IntoIterator<Item = Frame<Packet>>, now: Time) -> Vec<u8> {
    let mut batch = Batch::default();
    for frame in frames {
        batch.push(frame);
    }
    batch.encode(now, false);
    let mut bytes = Vec::new();
    while !batch.is_empty() {
        // Odd writes, to exercise the cursor.
        let most = 1 + bytes.len() % 7001;
        let written = batch.write(|slices| {
            let mut written = 0;
            for slice in slices {
                let take = slice.len().min(most - written);
                bytes.extend_from_slice(&slice[..take]);
                written += take;
            }
            Ok(written)
        });
        assert!(written.is_ok());
    }
    bytes
}

/// Feeds bytes as a reader would, in pieces of these sizes, the last repeated.
fn decode(bytes: &[u8], pieces: &[usize]) -> (Vec<DecodedFrame>, Option<FrameError>) {
    decode_within(LIMITS, bytes, pieces)
}

/// The same to one who takes less, or more.
fn decode_within(
    limits: Limits,
    mut bytes: &[u8],
    pieces: &[usize],
) -> (Vec<DecodedFrame>, Option<FrameError>) {
    let mut decoder = Decoder::new(limits, Recycler::new(0, None));
    let mut received = Vec::new();
    let mut pieces = pieces.iter().copied().chain(std::iter::repeat(
        pieces.last().copied().unwrap_or(usize::MAX),
    ));
    while !bytes.is_empty() {
        let want = pieces.next().unwrap_or(1).clamp(1, bytes.len());
        let taken = match decoder.space() {
            Space::Buffer(buffer) => {
                let take = want.min(buffer.capacity() - buffer.len());
                buffer.put_slice(&bytes[..take]);
                take
            }
            Space::Piece(mut piece) => {
                let take = want.min(piece.remaining_mut());
                piece.put_slice(&bytes[..take]);
                take
            }
        };
        assert!(taken > 0, "there is always space");
        bytes = &bytes[taken..];
        loop {
            match decoder.next() {
                Ok(Some(frame)) => received.push(frame),
                Ok(None) => break,
                Err(error) => return (received, Some(error)),
            }
        }
    }
    (received, None)
}

fn part<T: bytemuck::Pod>(values: Vec<T>) -> Part {
    Part::from_owned(Owned::new(Elements::from_vec(values), None))
}

fn messages() -> impl Strategy<Value = Message> {
    let bytes =
        |most: usize| (0..most, any::<u8>()).prop_map(|(size, fill)| Bytes::from(vec![fill; size]));
    let part = (0..60_usize << 10, any::<u8>(), 0..4).prop_map(|(size, fill, width)| match width {
        0 => Part::from(vec![fill; size]),
        1 => part(vec![u16::from(fill); size / 2]),
        2 => part(vec![u32::from(fill); size / 4]),
        _ => part(vec![u64::from(fill); size / 8]),
    });
    let payload = (bytes(100 << 10), prop::collection::vec(part, 0..4));
    prop_oneof![
        (payload.clone(), any::<Option<u32>>()).prop_map(|((body, parts), remaining)| {
            let remaining = remaining.map(|nanos| Duration::from_nanos(nanos.into()));
            call(body, parts, remaining)
        }),
        (any::<u64>(), payload).prop_map(|(id, (body, parts))| {
            Message::Answer(AnswerMessage {
                head: AnswerHead {
                    id: MessageId(id),
                    carried: Vec::new(),
                },
                origins: Origins::default(),
                outcome: Ok(Payload { body, parts }),
            })
        }),
        any::<String>().prop_map(|text| Message::Answer(AnswerMessage {
            head: AnswerHead {
                id: MessageId(1),
                carried: Vec::new(),
            },
            origins: Origins::default(),
            outcome: Err(Failure::Panicked(text)),
        })),
        any::<u64>().prop_map(|id| Message::Cancel(MessageId(id))),
        any::<(u32, u64)>().prop_map(|(calls, bytes)| Message::Credit { calls, bytes }),
        any::<u32>().prop_map(|worker| Message::Control(Control::Suspect(NodeId::new(worker, 1)))),
    ]
}

/// What can be compared of a message.
fn shown(message: &Message) -> String {
    format!("{message:?}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn what_is_encoded_is_decoded_however_it_is_split(
        sent in prop::collection::vec(messages(), 1..6),
        pieces in prop::collection::vec(1_usize..70_000, 1..20),
    ) {
        // FR-3
        let frames = sent.iter().cloned().zip(0..).map(|(message, seq)| data(seq, message));
        let bytes = encode(frames, Time(5));
        let (received, error) = decode(&bytes, &pieces);
        prop_assert_eq!(error, None);
        prop_assert_eq!(received.len(), sent.len());
        for (seq, (received, sent)) in received.iter().zip(&sent).enumerate() {
            let DecodedFrame::Session(Frame::Data { seq: at, acks: got, payload, .. }) = received else {
                panic!("not data: {received:?}");
            };
            prop_assert_eq!(*at, seq as u64);
            prop_assert_eq!(*got, acks());
            prop_assert_eq!(shown(&payload.0), shown(sent));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        pieces in prop::collection::vec(1_usize..40, 1..5),
    ) {
        // FR-3
        let (whole, error) = decode(&bytes, &[usize::MAX]);
        let (split, split_error) = decode(&bytes, &pieces);
        prop_assert_eq!(whole.len(), split.len());
        prop_assert_eq!(error, split_error);
    }

    #[test]
    fn small_lengths_and_wrong_bytes_do_not_make_the_decoder_panic(
        head in 0_u32..60, parts in 0_u32..4, body in 0_u64..20,
        rest in prop::collection::vec(prop_oneof![0_u8..8, any::<u8>()], 0..200),
    ) {
        // FR-3: gets past the lengths, unlike bytes at random.
        let mut bytes = prefix(head, parts, body);
        bytes.extend(rest);
        decode(&bytes, &[usize::MAX]);
    }

    #[test]
    fn a_flipped_bit_makes_an_error_or_another_frame_and_no_panic(
        message in messages(), at in any::<prop::sample::Index>(), bit in 0_u32..8,
    ) {
        // FR-3
        let mut bytes = encode([data(0, message)], Time(5));
        let at = at.index(bytes.len().min(200));
        bytes[at] ^= 1 << bit;
        decode(&bytes, &[usize::MAX]);
    }
}

fn prefix(head: u32, parts: u32, body: u64) -> Vec<u8> {
    let mut bytes = head.to_le_bytes().to_vec();
    bytes.extend(parts.to_le_bytes());
    bytes.extend(body.to_le_bytes());
    bytes
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_anything_else_has_come() {
    // FR-1
    let cases = [
        (
            prefix(LIMITS.head_bytes + 1, 0, 0),
            FrameError::HeadTooLarge {
                length: LIMITS.head_bytes + 1,
                limit: LIMITS.head_bytes,
            },
        ),
        (
            prefix(1, LIMITS.parts + 1, 0),
            FrameError::TooManyParts {
                parts: LIMITS.parts + 1,
                limit: LIMITS.parts,
            },
        ),
        (prefix(1, 0, u64::MAX), FrameError::BeyondAll),
    ];
    for (bytes, expected) in cases {
        let (received, error) = decode(&bytes, &[usize::MAX]);
        assert!(received.is_empty());
        assert_eq!(error, Some(expected));
    }
}

/// FR-7, in whatever pieces it comes.
#[test]
fn a_payload_that_is_too_large_is_passed_over_and_what_follows_is_not() {
    let generous = Limits {
        message_bytes: 1 << 30,
        ..LIMITS
    };
    let large = |body: usize, parts: &[usize]| Frame::Data {
        lane: Lane::Bulk,
        seq: 0,
        acks: acks(),
        payload: Packet::new(
            &mut call(
                vec![1; body].into(),
                parts.iter().map(|size| vec![2; *size].into()).collect(),
                None,
            ),
            || Time(5),
            &generous,
        )
        .expect("within the limits of the sender"),
    };
    for (body, parts) in [
        (9 << 20, &[][..]),
        (10, &[5 << 20, 5 << 20]),
        (5 << 20, &[10, 5 << 20, 0]),
    ] {
        let next = call(vec![3; 100].into(), vec![vec![4; 100].into()], None);
        let bytes = encode([large(body, parts), data(1, next)], Time(5));
        for pieces in [&[usize::MAX][..], &[1000, 70_001], &[20; 20]] {
            let (received, error) = decode(&bytes, pieces);
            assert_eq!(error, None);
            let payloads: Vec<_> = received.into_iter().map(arguments).collect();
            let [refused, next] = &payloads[..] else {
                panic!("two messages, not {}", payloads.len());
            };
            assert_eq!(refused.len(), body + parts.iter().sum::<usize>());
            let why = refused.parts[0].why_refused().expect("it was refused");
            assert!(why.contains("max_message_bytes"), "{why}");
            assert_eq!(next.body, [3; 100][..]);
            assert_eq!(next.parts.len(), 1);
        }
    }
}

/// FR-1, FR-3, FR-7: limits hold for what is read by hand, in one piece, as for all else.
#[test]
fn fr_1_small_messages_are_limited_however_they_come() {
    let first = call(vec![1; 2000].into(), Vec::new(), None);
    let next = call(vec![3; 100].into(), Vec::new(), None);
    let bytes = encode([data(0, first), data(1, next)], Time(5));
    for pieces in [usize::MAX, 1] {
        let limits = Limits {
            message_bytes: 1000,
            ..LIMITS
        };
        let (received, error) = decode_within(limits, &bytes, &[pieces]);
        assert_eq!(error, None);
        let payloads: Vec<_> = received.into_iter().map(arguments).collect();
        let [refused, next] = &payloads[..] else {
            panic!("two messages, not {}", payloads.len());
        };
        let why = refused.parts.first().and_then(Part::why_refused);
        assert!(why.is_some(), "{refused:?}");
        assert_eq!(next.body, [3; 100][..]);

        let limits = Limits {
            head_bytes: 10,
            ..LIMITS
        };
        let (received, error) = decode_within(limits, &bytes, &[pieces]);
        assert!(received.is_empty());
        let is_refused = matches!(error, Some(FrameError::HeadTooLarge { limit: 10, .. }));
        assert!(is_refused, "{error:?}");
    }
}

/// FR-2: the place of a message that was delivered is kept, and nothing that was in it.
#[test]
fn fr_2_nothing_of_a_message_that_was_delivered_is_kept() {
    let mut decoder = Decoder::new(LIMITS, Recycler::new(0, None));
    let body = Bytes::from(vec![1; 100]);
    let part = Bytes::from(vec![2; 100]);
    let payload = || Payload {
        body: body.clone(),
        parts: vec![part.clone().into()],
    };
    let answer = AnswerMessage {
        head: AnswerHead {
            id: MessageId(1),
            carried: Vec::new(),
        },
        origins: Origins::default(),
        outcome: Ok(payload()),
    };
    let Payload { body: asked, parts } = payload();
    let delivered = [call(asked, parts, None), Message::Answer(answer)];
    let delivered = delivered.map(|message| ReceivedMessage(Box::new(message)));
    decoder.reclaim(delivered.into_iter());
    assert!(body.is_unique() && part.is_unique());
}

/// What there is to be said of a packet, whose place is left to another one.
fn described(mut message: Message) -> impl PartialEq + std::fmt::Debug + Send {
    let packet = Packet::new(&mut message, || Time(5), &LIMITS).expect("within the limits");
    let payload = packet.payload();
    let described = (
        packet.size(),
        packet.age(Time(9)),
        packet.head().to_vec(),
        payload.body.clone(),
        payload.parts.len(),
    );
    packet.recycle();
    described
}

#[test]
fn a_place_that_is_used_again_has_nothing_of_the_message_before() {
    let body = Bytes::from(vec![1; 3000]);
    let messages = || {
        let large = call(body.clone(), Vec::new(), Some(Duration::from_secs(1)));
        let mut long = call(Bytes::new(), Vec::new(), None);
        if let Message::Call(call) = &mut long {
            call.callers = vec![LONGEST_CALLER; MAX_CALLERS];
        }
        let small = call(Bytes::from_static(b"x"), Vec::new(), None);
        [large, small, long, Message::Cancel(MessageId(1 << 40))]
    };
    for before in messages() {
        for after in messages() {
            let same = after.clone();
            let fresh = std::thread::spawn(|| described(same)).join();
            described(before.clone());
            assert_eq!(described(after), fresh.expect("no panic"));
        }
    }
    assert!(body.is_unique(), "all are gone");
}

const LONGEST_CALLER: Caller = Caller {
    function: u64::MAX,
    value: Some(RRefId {
        origin: NodeId::new(u32::MAX, u32::MAX),
        counter: u64::MAX,
    }),
    exclusive: true,
};

/// No message fails for want of room for what only helps people.
#[test]
fn callers_that_there_is_no_room_for_are_left_out() {
    let limits = Limits {
        head_bytes: 400,
        ..LIMITS
    };
    let mut message = call(Bytes::new(), Vec::new(), None);
    if let Message::Call(call) = &mut message {
        call.callers = vec![LONGEST_CALLER; MAX_CALLERS];
    }
    let packet = Packet::new(&mut message, || Time(5), &limits);
    let packet = packet.expect("there is room for the rest");
    assert!(packet.head().len() < 100, "{packet:?}");
}

fn arguments(frame: DecodedFrame) -> Payload {
    match frame {
        DecodedFrame::Session(Frame::Data { payload, .. }) => match *payload.0 {
            Message::Call(call) => call.arguments,
            other => panic!("no call: {other:?}"),
        },
        other => panic!("no message: {other:?}"),
    }
}

#[test]
fn a_payload_where_none_belongs_is_refused() {
    let head = postcard::to_allocvec(&FrameHead::OpenBulk).expect("encodes");
    let mut bytes = prefix(head.len() as u32, 0, 1);
    bytes.extend(head);
    bytes.push(0);
    let (_, error) = decode(&bytes, &[usize::MAX]);
    assert_eq!(error, Some(FrameError::UnexpectedPayload));
}

/// FR-3: also of a message whose head is read by hand, in one piece or in many.
#[test]
fn a_payload_of_a_message_that_has_none_is_refused() {
    let origin = NodeId::new(1, 1);
    let share = Share {
        rref: RRefId { origin, counter: 2 },
        fork: ForkId { origin, counter: 3 },
    };
    let release = data(1, Message::Control(Control::Release(vec![share])));
    let mut bytes = encode([release], Time(5));
    bytes[8] = 1; // the length of the body
    bytes.push(0);
    for pieces in [usize::MAX, 1] {
        let (frames, error) = decode(&bytes, &[pieces]);
        assert!(frames.is_empty(), "{frames:?}");
        assert_eq!(error, Some(FrameError::UnexpectedPayload));
    }
}

#[test]
fn announcing_a_large_part_costs_no_more_than_a_constant() {
    // FR-2
    let limits = Limits {
        message_bytes: 4 << 30,
        ..LIMITS
    };
    for part in [part(vec![7_u8; 3 << 20]), part(vec![7_u32; 3 << 18])] {
        let width = part.width();
        let bytes = encode([data(0, call(Bytes::new(), vec![part], None))], Time(5));
        // Claims a gigabyte instead.
        let bytes = announce(bytes, 3 << 20, part_entry(1 << 30, width, Place::Inline));
        let mut decoder = Decoder::new(limits, Recycler::new(0, None));
        let mut fed = 0;
        while fed < bytes.len() {
            let (room, taken) = match decoder.space() {
                Space::Buffer(buffer) => {
                    let take = (buffer.capacity() - buffer.len()).min(bytes.len() - fed);
                    buffer.put_slice(&bytes[fed..fed + take]);
                    (buffer.capacity(), take)
                }
                Space::Piece(mut piece) => {
                    let room = fed + piece.get_ref().remaining_mut();
                    let take = piece.remaining_mut().min(bytes.len() - fed);
                    piece.put_slice(&bytes[fed..fed + take]);
                    (room, take)
                }
            };
            let bound = (1 << 20) + filling::RESERVE_AHEAD * fed.max(1);
            assert!(room <= bound, "{room} reserved after {fed} bytes");
            fed += taken;
            assert!(matches!(decoder.next(), Ok(None)));
        }
    }
}

/// Replaces the entry of the part that has so many bytes.
fn announce(mut bytes: Vec<u8>, length: u64, entry: u64) -> Vec<u8> {
    let low = length.to_le_bytes();
    let at = bytes
        .windows(8)
        .position(|window| window[..7] == low[..7])
        .expect("the length of the part");
    bytes[at..at + 8].copy_from_slice(&entry.to_le_bytes());
    bytes
}

#[test]
fn a_large_part_arrives_in_a_buffer_of_its_own_size() {
    // FR-2: nothing beside the part stays alive with it.
    let parts = vec![Part::from(vec![7; 5 << 20])];
    let bytes = encode([data(0, call(Bytes::new(), parts, None))], Time(5));
    let (mut received, _) = decode(&bytes, &[30_000]);
    let Some(DecodedFrame::Session(Frame::Data { payload, .. })) = received.pop() else {
        panic!("not data");
    };
    let Message::Call(call) = *payload.0 else {
        panic!("not a call");
    };
    let part = call.arguments.parts.into_iter().next().expect("a part");
    let part = part.into_vec::<u8>().expect("bytes");
    assert_eq!(part.len(), 5 << 20);
    assert_eq!(part.capacity(), 5 << 20);
}

#[test]
fn large_pieces_leave_from_where_they_are() {
    // FR-4
    let part = Bytes::from(vec![7; 1 << 20]);
    let mut batch = Batch::default();
    let parts = vec![part.clone().into()];
    batch.push(data(0, call(Bytes::new(), parts, None)));
    batch.encode(Time(5), false);
    let written = batch.write(|slices| {
        let found = slices.iter().any(|slice| slice.as_ptr() == part.as_ptr());
        assert!(found, "the part was copied");
        Ok(1)
    });
    assert!(written.is_ok());
}

#[test]
fn time_in_the_queue_is_taken_from_what_remains() {
    // D3
    let frame = data(
        0,
        call(Bytes::new(), Vec::new(), Some(Duration::from_secs(1))),
    );
    let later = Time(5) + Duration::from_millis(400);
    let (received, _) = decode(&encode([frame], later), &[usize::MAX]);
    let Some(DecodedFrame::Session(Frame::Data { payload, .. })) = received.first() else {
        panic!("not data");
    };
    match &*payload.0 {
        Message::Call(call) => assert_eq!(call.remaining, Some(Duration::from_millis(600))),
        other => panic!("not a call: {other:?}"),
    }
}
