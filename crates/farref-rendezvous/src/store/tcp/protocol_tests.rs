//! The protocol's laws: the very bytes of PyTorch, and no harm from any others.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::dialect::{MAGIC, StoreDialect};
use super::error::ProtocolError;
use super::protocol::{Request, take_bytes, take_flag, take_i64};

const LIMIT: usize = 64 << 20;

fn encoded(request: &Request) -> BytesMut {
    let mut bytes = BytesMut::new();
    request.encode(StoreDialect::Greeted, &mut bytes).unwrap();
    bytes
}

fn key() -> impl Strategy<Value = Bytes> {
    proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
}

fn request() -> impl Strategy<Value = Request> {
    let keys = || proptest::collection::vec(key(), 0..6);
    let pairs = proptest::collection::vec((key(), key()), 0..6);
    prop_oneof![
        any::<u32>().prop_map(Request::Validate),
        (key(), key()).prop_map(|(key, value)| Request::Set(key, value)),
        (key(), key(), key()).prop_map(|(key, expected, desired)| Request::CompareSet {
            key,
            expected,
            desired
        }),
        key().prop_map(Request::Get),
        (key(), any::<i64>()).prop_map(|(key, delta)| Request::Add(key, delta)),
        keys().prop_map(Request::Check),
        keys().prop_map(Request::Wait),
        Just(Request::KeyCount),
        key().prop_map(Request::Delete),
        (key(), key()).prop_map(|(key, value)| Request::Append(key, value)),
        keys().prop_map(Request::MultiGet),
        pairs.prop_map(Request::MultiSet),
        Just(Request::CancelWait),
        any::<u32>().prop_map(Request::Ping),
        (key(), key()).prop_map(|(key, value)| Request::QueuePush(key, value)),
        key().prop_map(Request::QueuePop),
        key().prop_map(Request::QueueLen),
        Just(Request::ListKeys),
        (key(), any::<i64>()).prop_map(|(key, world)| Request::Barrier(key, world)),
    ]
}

proptest! {
    #[test]
    fn a_request_survives_the_wire_in_any_pieces(
        requests in proptest::collection::vec(request(), 1..5),
        piece in 1usize..50,
    ) {
        let mut wire = BytesMut::new();
        requests.iter().for_each(|request| request.encode(StoreDialect::Greeted, &mut wire).unwrap());
        let mut buffer = BytesMut::new();
        let mut parsed = Vec::new();
        for bytes in wire.chunks(piece) {
            buffer.extend_from_slice(bytes);
            while let Some(request) = Request::parse(StoreDialect::Greeted, &mut buffer, LIMIT).unwrap() {
                parsed.push(request);
            }
        }
        prop_assert_eq!(parsed, requests);
        prop_assert!(buffer.is_empty());
    }

    #[test]
    fn a_truncated_request_is_left_alone(request in request()) {
        let whole = encoded(&request);
        for size in 0..whole.len() {
            let mut part = BytesMut::from(&whole[..size]);
            prop_assert_eq!(Request::parse(StoreDialect::Greeted, &mut part, LIMIT), Ok(None));
            prop_assert_eq!(&part[..], &whole[..size]);
        }
    }

    #[test]
    fn garbage_is_consumed_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut buffer = BytesMut::from(&bytes[..]);
        let mut before = buffer.len();
        while let Ok(Some(request)) = Request::parse(StoreDialect::Greeted, &mut buffer, LIMIT) {
            // What was taken for a request is exactly the bytes of that request.
            prop_assert_eq!(before - buffer.len(), encoded(&request).len());
            before = buffer.len();
        }
        let mut answer = BytesMut::from(&bytes[..]);
        while let Ok(Some(_)) = take_bytes(&mut answer) {}
        while let Ok(Some(_)) = take_flag(&mut answer) {}
        while let Ok(Some(_)) = take_i64(&mut answer) {}
    }

    #[test]
    fn a_flipped_byte_never_grows_a_request(request in request(), at in any::<prop::sample::Index>(), with in 1u8..) {
        let mut bytes = encoded(&request);
        let at = at.index(bytes.len());
        bytes[at] ^= with;
        let size = bytes.len();
        if let Ok(Some(other)) = Request::parse(StoreDialect::Greeted, &mut bytes, LIMIT) {
            prop_assert_eq!(encoded(&other).len(), size - bytes.len());
        }
    }
}

#[test]
fn the_bytes_are_those_of_pytorch() {
    let greeting = encoded(&Request::Validate(MAGIC));
    assert_eq!(greeting[..], [0x00, 0xce, 0xf7, 0x85, 0x3c]);
    let set = encoded(&Request::Set("/k".into(), "v".into()));
    let expected = b"\x01\x02\0\0\0\0\0\0\0/k\x01\0\0\0\0\0\0\0v";
    assert_eq!(set[..], expected[..]);
    let add = encoded(&Request::Add("init/".into(), 1));
    let expected = b"\x04\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0";
    assert_eq!(add[..], expected[..]);
}

#[test]
fn old_clients_are_told_from_others_by_their_first_bytes() {
    let greeting = encoded(&Request::Validate(MAGIC));
    for size in 0..5 {
        assert_eq!(StoreDialect::of(&greeting[..size]), Ok(None));
    }
    assert_eq!(StoreDialect::of(&greeting), Ok(Some(StoreDialect::Greeted)));
    assert_eq!(
        StoreDialect::of(b"\0\x02\0\0\0"),
        Ok(Some(StoreDialect::Old))
    );
    assert_eq!(StoreDialect::of(b"\0GET "), Err(ProtocolError::NoGreeting));
    for code in 1..=255 {
        assert_eq!(StoreDialect::of(&[code]), Ok(Some(StoreDialect::Old)));
        let parsed = Request::parse(StoreDialect::Old, &mut BytesMut::from(&[code][..]), LIMIT);
        match code {
            1..=5 | 8 => assert_eq!(parsed, Ok(None)),
            6 => assert_eq!(parsed, Ok(Some(Request::KeyCount))),
            _ => assert_eq!(parsed, Err(ProtocolError::UnknownRequest(code))),
        }
    }
}

#[test]
fn a_length_over_the_limit_is_refused_before_its_bytes_come() {
    let long = |size: u64| size.to_le_bytes();
    let cases: [(Vec<u8>, &str); 5] = [
        ([&[3][..], &long(8193)].concat(), "key"),
        ([&[1][..], &long(0), &long((8 << 20) + 1)].concat(), "value"),
        ([&[6][..], &long((128 << 10) + 1)].concat(), "list of keys"),
        ([&[11][..], &long(u64::MAX)].concat(), "list of keys"),
        ([&[10][..], &long(1), &long(u64::MAX)].concat(), "key"),
    ];
    for (bytes, expected) in cases {
        match Request::parse(
            StoreDialect::Greeted,
            &mut BytesMut::from(&bytes[..]),
            LIMIT,
        ) {
            Err(ProtocolError::TooLong { what, .. }) => assert_eq!(what, expected),
            other => panic!("{other:?}"),
        }
    }
    let mut large = encoded(&Request::Set("k".into(), vec![0; 1000].into()));
    let refused = Request::parse(StoreDialect::Greeted, &mut large, 500);
    assert!(matches!(
        refused,
        Err(ProtocolError::TooLong {
            what: "request",
            ..
        })
    ));
    for code in 19..=255 {
        let refused = Request::parse(
            StoreDialect::Greeted,
            &mut BytesMut::from(&[code][..]),
            LIMIT,
        );
        assert_eq!(refused, Err(ProtocolError::UnknownRequest(code)));
    }
}
