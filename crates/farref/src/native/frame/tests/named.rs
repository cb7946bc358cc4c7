//! FR-5 and BA-3: parts that are read out of the sender's memory.

use super::super::batch::NAME_FROM;
use super::*;
use crate::codec::Width;

/// The bytes of some frames for a peer that reads large parts out of this process' memory, and how many it reads.
fn encode_named(frames: Vec<Frame<Packet>>) -> (Vec<u8>, u64) {
    let mut batch = Batch::default();
    for frame in frames {
        batch.push(frame);
    }
    batch.encode(Time(5), true);
    let bytes = batch.written();
    (bytes, batch.take_named())
}

#[test]
fn large_parts_are_named_and_small_ones_sent() {
    let small = Bytes::from(vec![1; NAME_FROM - 1]);
    let large = Bytes::from(vec![2; NAME_FROM]);
    let wide: Vec<u64> = (0..NAME_FROM as u64).collect();
    let parts = vec![
        small.clone().into(),
        large.clone().into(),
        part(wide.clone()),
    ];
    let (at_large, at_wide) = (parts[1].address(), parts[2].address());
    let message = || call(Bytes::from_static(b"body"), parts.clone(), None);
    let (bytes, named) = encode_named(vec![data(0, message()), data(1, message())]);
    assert_eq!(named, 2 * (large.len() + 8 * wide.len()) as u64);
    assert!(bytes.len() < 3 * NAME_FROM);
    for piece in [1000, 7001, usize::MAX] {
        let received = decode_split(&bytes, piece, |address| {
            if Some(address) == at_large {
                large.to_vec()
            } else {
                assert_eq!(Some(address), at_wide);
                bytemuck::cast_slice(&wide).to_vec()
            }
        });
        assert_eq!(received.len(), 2);
        for parts in received {
            assert_eq!(parts[2].width(), Width::Eight);
            let [first, second, third] = parts.try_into().expect("three");
            assert_eq!(first.into_bytes(), Ok(small.clone()));
            assert_eq!(second.into_bytes(), Ok(large.clone()));
            assert_eq!(third.into_vec::<u64>().as_ref(), Ok(&wide));
        }
    }
}

/// The parts of the calls that are in these bytes.
fn decode_split(bytes: &[u8], piece: usize, memory: impl Fn(u64) -> Vec<u8>) -> Vec<Vec<Part>> {
    let parts = |frame| match frame {
        DecodedFrame::Session(Frame::Data { payload, .. }) => match *payload.0 {
            Message::Call(call) => call.arguments.parts,
            other => panic!("not a call: {other:?}"),
        },
        other => panic!("not data: {other:?}"),
    };
    // Small parts have buffers of their own, so only what comes before is split.
    let mut decoder = Decoder::new(LIMITS, Recycler::new(0, None));
    decoder.permit_names();
    let mut received = Vec::new();
    let mut rest = bytes;
    loop {
        while let Some(frame) = decoder.next().expect("nothing is wrong") {
            received.push(parts(frame));
        }
        if let Some(pieces) = decoder.take_named() {
            assert!(decoder.take_named().is_none(), "once only");
            assert!(matches!(decoder.next(), Ok(None)), "it is not there yet");
            let read = |NamedPiece {
                            source,
                            mut filling,
                        }: NamedPiece| {
                let PieceSource::Memory(address) = source else {
                    panic!("there are no regions");
                };
                let there = memory(address);
                let read = |from: usize, count: usize, into: &mut dyn BufMut| {
                    into.put_slice(&there[from..from + count]);
                    Ok::<_, FrameError>(())
                };
                while filling.read_with(piece, read).expect("there is memory") > 0 {}
                filling
            };
            decoder.put_named(pieces.into_iter().map(read).collect());
        } else if rest.is_empty() {
            return received;
        } else {
            let take = match decoder.space() {
                Space::Buffer(buffer) => {
                    let take = piece.min(rest.len()).min(buffer.capacity() - buffer.len());
                    buffer.put_slice(&rest[..take]);
                    take
                }
                Space::Piece(mut space) => {
                    let take = piece.min(rest.len()).min(space.remaining_mut());
                    space.put_slice(&rest[..take]);
                    take
                }
            };
            rest = &rest[take..];
        }
    }
}

#[test]
fn a_name_where_none_may_be_is_refused() {
    // FR-5
    let parts = vec![Part::from(vec![1; NAME_FROM])];
    let (bytes, _) = encode_named(vec![data(0, call(Bytes::new(), parts, None))]);
    let (received, error) = decode(&bytes, &[usize::MAX]);
    assert!(received.is_empty());
    assert_eq!(error, Some(FrameError::Unpermitted));
}

#[test]
fn a_place_that_nobody_knows_is_refused() {
    // FR-3
    let parts = vec![Part::from(vec![1; 0x1234])];
    let bytes = encode([data(0, call(Bytes::new(), parts, None))], Time(5));
    let bytes = announce(bytes, 0x1234, 0x1234 | 3 << 60);
    let (received, error) = decode(&bytes, &[usize::MAX]);
    assert!(received.is_empty());
    assert_eq!(error, Some(FrameError::UnknownPlace));
}

#[test]
fn a_part_of_nothing_may_be_named_too() {
    let length = NAME_FROM + 0x0123;
    let parts = vec![Part::from(vec![1; length]), Part::from(vec![7])];
    let (bytes, _) = encode_named(vec![data(0, call(Bytes::new(), parts, None))]);
    let entry = part_entry(length, Width::One, Place::Named);
    let bytes = announce(bytes, entry, part_entry(0, Width::One, Place::Named));
    let mut received = decode_split(&bytes, usize::MAX, |_| panic!("there is nothing to read"));
    let parts = received.pop().expect("a call");
    assert_eq!((parts[0].len(), parts[1].len()), (0, 1));
}

#[test]
fn naming_a_large_part_costs_no_more_than_a_constant() {
    // FR-2: until it is read.
    let limits = Limits {
        message_bytes: 4 << 30,
        ..LIMITS
    };
    let parts = vec![part(vec![7_u32; 3 << 18])];
    let (bytes, _) = encode_named(vec![data(0, call(Bytes::new(), parts, None))]);
    let entry = part_entry(3 << 20, Width::Four, Place::Named);
    let bytes = announce(bytes, entry, part_entry(1 << 30, Width::Four, Place::Named));
    let mut decoder = brought(&bytes, limits);
    assert!(matches!(decoder.next(), Ok(None)));
    let mut pieces = decoder.take_named().expect("it is to be read");
    let failed = pieces[0].filling.read_with(usize::MAX, |_, count, _| {
        assert!(count <= 1 << 20, "{count} bytes of room");
        Err(FrameError::Unpermitted)
    });
    assert_eq!(failed, Err(FrameError::Unpermitted));
}

/// A decoder that all of this has come to at once.
fn brought(bytes: &[u8], limits: Limits) -> Decoder {
    let mut decoder = Decoder::new(limits, Recycler::new(0, None));
    decoder.permit_names();
    let Space::Buffer(buffer) = decoder.space() else {
        panic!("nothing has come");
    };
    buffer.put_slice(bytes);
    decoder
}

/// Reads a piece, all of which is there.
fn filled(mut piece: NamedPiece) -> Filling {
    let missing = piece.filling.read_with(usize::MAX, |_, count, into| {
        into.put_bytes(5, count);
        Ok::<_, FrameError>(())
    });
    assert_eq!(missing, Ok(0));
    piece.filling
}

#[test]
fn parts_that_are_named_one_after_the_other_are_read_at_once() {
    let large = |seed: u8| Part::from(vec![seed; NAME_FROM]);
    let parts: Vec<_> = (0..50).map(large).chain([Part::from(vec![1])]).collect();
    let (bytes, _) = encode_named(vec![data(0, call(Bytes::new(), parts, None))]);
    let mut decoder = brought(&bytes, LIMITS);
    let mut taken = Vec::new();
    let frame = loop {
        if let Some(frame) = decoder.next().expect("nothing is wrong") {
            break frame;
        }
        let pieces = decoder.take_named().expect("all is there");
        taken.push(pieces.len());
        decoder.put_named(pieces.into_iter().map(filled).collect());
    };
    assert_eq!(taken, [32, 18]);
    let DecodedFrame::Session(Frame::Data { payload, .. }) = frame else {
        panic!("not data: {frame:?}");
    };
    let Message::Call(call) = *payload.0 else {
        panic!("not a call");
    };
    assert_eq!(call.arguments.parts.len(), 51);
}

/// FR-7: of a part that is not taken in nothing is read, and of its place in the stream nothing is left.
#[test]
fn fr_7_named_parts_of_a_payload_that_is_too_large_are_not_read() {
    let strict = Limits {
        message_bytes: 2 * NAME_FROM as u64,
        ..LIMITS
    };
    let large = || Part::from(vec![2; NAME_FROM]);
    for parts in [
        vec![large(), large()],
        vec![
            Part::from(vec![1; 10]),
            large(),
            Part::from(vec![1; 10]),
            large(),
            large(),
        ],
    ] {
        let sizes = parts.iter().map(Part::len).sum::<usize>();
        let refused = call(vec![1; 100].into(), parts, None);
        let next = call(vec![3; 100].into(), vec![vec![4; 100].into()], None);
        let (bytes, _) = encode_named(vec![data(0, refused), data(1, next)]);
        for piece in [1, 1000, usize::MAX] {
            let mut decoder = Decoder::new(strict, Recycler::new(0, None));
            decoder.permit_names();
            let mut received = Vec::new();
            for some in bytes.chunks(piece.min(bytes.len())) {
                let mut rest = some;
                while !rest.is_empty() {
                    let take = match decoder.space() {
                        Space::Buffer(buffer) => {
                            let take = rest.len().min(buffer.capacity() - buffer.len());
                            buffer.put_slice(&rest[..take]);
                            take
                        }
                        Space::Piece(mut space) => {
                            let take = rest.len().min(space.remaining_mut());
                            space.put_slice(&rest[..take]);
                            take
                        }
                    };
                    rest = &rest[take..];
                    while let Some(frame) = decoder.next().expect("nothing is wrong") {
                        received.push(arguments(frame));
                    }
                    assert!(decoder.take_named().is_none(), "it is not read");
                }
            }
            let [refused, next] = &received[..] else {
                panic!("two messages, not {}", received.len());
            };
            assert!(refused.parts[0].why_refused().is_some());
            assert_eq!(refused.len(), 100 + sizes);
            assert_eq!((&next.body[..], next.parts.len()), (&[3; 100][..], 1));
        }
    }
}

/// FR-7: where there is no memory for what is to be read, its message is passed over, and no more than that.
#[test]
fn fr_7_a_named_part_that_there_is_no_memory_for_is_passed_over_with_its_message() {
    let large = |seed: u8| Part::from(vec![seed; NAME_FROM]);
    let parts = vec![large(1), large(2), Part::from(vec![3; 10]), large(4)];
    let refused = call(vec![1; 100].into(), parts, None);
    let next = call(vec![3; 100].into(), vec![vec![4; 100].into()], None);
    let (bytes, _) = encode_named(vec![data(0, refused), data(1, next)]);
    for refused_at in 0..2 {
        let mut decoder = brought(&bytes, LIMITS);
        let mut received = Vec::new();
        let mut reads = 0;
        loop {
            if let Some(frame) = decoder.next().expect("nothing is wrong") {
                received.push(arguments(frame));
            } else if let Some(pieces) = decoder.take_named() {
                match reads == refused_at {
                    true => decoder.refuse_named(NAME_FROM as u64),
                    false => decoder.put_named(pieces.into_iter().map(filled).collect()),
                }
                reads += 1;
            } else {
                break;
            }
        }
        assert_eq!(reads, refused_at + 1);
        let [refused, next] = &received[..] else {
            panic!("two messages, not {}", received.len());
        };
        let why = refused.parts[0].why_refused().expect("it was refused");
        assert!(why.contains("no memory"), "{why}");
        assert_eq!(refused.len(), 110 + 3 * NAME_FROM);
        assert_eq!((&next.body[..], next.parts.len()), (&[3; 100][..], 1));
    }
}
