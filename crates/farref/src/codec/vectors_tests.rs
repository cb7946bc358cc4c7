//! Vectors of numbers beside their value: VE-1 to VE-3.

use std::fmt::Debug;
use std::sync::Arc;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::blob::OUT_OF_BAND;
use super::vectors::{ArgumentList, Look, Numbers as _, Outgoing, VECTORS, each_in, turn_around};
use super::{Blob, Codec, CodecError, Part, Payload, ValueCodec, items, scope};

fn given<T: Serialize + 'static>(mut value: T) -> Payload {
    let encode = || Codec::Postcard.encode_outgoing(Outgoing::Given(&mut value, each_in));
    scope::write(encode).unwrap().0
}

fn kept<T: Serialize + 'static>(value: &T) -> Payload {
    let encode = || Codec::Postcard.encode_outgoing(Outgoing::Kept(value));
    scope::write(encode).unwrap().0
}

fn read<T: DeserializeOwned + 'static>(payload: Payload) -> Result<T, CodecError> {
    read_with(payload, each_in)
}

fn read_with<T: DeserializeOwned>(
    payload: Payload,
    each: impl FnOnce(&mut T, Look<'_>),
) -> Result<T, CodecError> {
    scope::read(payload, &[], |body| Codec::Postcard.decode_with(body, each))
}

fn sent<A: ArgumentList + Serialize + 'static>(mut arguments: A) -> Payload {
    let encode = || Codec::Postcard.encode_taking(&mut arguments, A::each_vector);
    scope::write(encode).unwrap().0
}

fn arrives<T>(value: T, parts: usize)
where
    T: Clone + PartialEq + Debug + Serialize + DeserializeOwned + 'static,
{
    for payload in [given(value.clone()), kept(&value)] {
        assert_eq!(payload.parts.len(), parts, "{}", std::any::type_name::<T>());
        assert!(read::<T>(payload) == Ok(value.clone()), "as it was sent");
    }
}

#[test]
fn vectors_of_all_numbers_arrive_as_they_were_and_large_ones_beside_the_value() {
    macro_rules! each_number {
        ($($number:ty)*) => {$(
            let count = OUT_OF_BAND / size_of::<$number>();
            let numbers = |count| -> Vec<$number> { (0..count).map(|n| n as $number).collect() };
            for (count, parts) in [(0, 0), (1, 0), (count - 1, 0), (count, 1), (3 * count + 1, 1)] {
                arrives(numbers(count), parts);
                arrives(Some(numbers(count)), parts);
                arrives(vec![numbers(count), numbers(3), numbers(count)], 2 * parts);
            }
            arrives(None::<Vec<$number>>, 0);
            let extremes = [<$number>::MIN, <$number>::MAX].repeat(count);
            arrives(extremes, 1);
        )*};
    }
    each_number!(u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64);
}

#[test]
fn what_is_given_away_is_not_copied_on_either_side() {
    let numbers = vec![0.5_f64; OUT_OF_BAND];
    let at = numbers.as_ptr();
    let read = read::<Vec<f64>>(given(numbers)).unwrap();
    assert_eq!((read.as_ptr(), read.len()), (at, OUT_OF_BAND));
}

#[test]
fn arguments_are_found_among_others() {
    let large = vec![7_u32; OUT_OF_BAND];
    let other = vec![-1_i16; OUT_OF_BAND];
    let blob = Blob::from(vec![3; OUT_OF_BAND]);
    let arguments = (
        5_u8,
        large.clone(),
        "text".to_owned(),
        vec![1_u32],
        blob,
        Some(other),
        vec!["words".to_owned()],
        vec![vec![], large],
    );
    let payload = sent(arguments.clone());
    assert_eq!(payload.parts.len(), 4, "a blob and three vectors");
    assert_eq!(read_with(payload, ArgumentList::each_vector), Ok(arguments));
}

/// VE-1
#[test]
fn numbers_that_are_read_as_something_else_are_an_error() {
    let payload = || given(vec![1.5_f32; OUT_OF_BAND]);
    assert!(read::<Vec<i32>>(payload()).is_err());
    assert!(read::<Vec<u32>>(payload()).is_err());
    assert!(read::<Vec<f64>>(payload()).is_err());
    assert!(read::<Vec<u8>>(payload()).is_err());
    assert!(read::<Vec<Vec<f32>>>(payload()).is_err());
    assert!(read::<Option<Vec<f32>>>(payload()).is_err());
    assert!(read::<String>(payload()).is_err(), "an empty one otherwise");
    assert!(read::<Vec<()>>(payload()).is_err());
    assert!(read::<(Vec<f32>,)>(payload()).is_err());
    assert!(read::<Vec<f32>>(payload()).is_ok());
}

/// A body that speaks of vectors at these places, of this kind, and then has the value.
fn forged<T: Serialize + 'static>(places: &[(u32, u8)], count: usize, value: &T) -> Vec<u8> {
    let mut body = VECTORS.to_vec();
    body.extend_from_slice(&(count as u16).to_le_bytes());
    for (place, kind) in places {
        body.extend_from_slice(&place.to_le_bytes());
        body.push(*kind);
    }
    body.extend(Codec::Postcard.encode(value).unwrap());
    body
}

/// VE-1, VE-2
#[test]
fn what_a_peer_makes_up_is_refused() {
    const F32: u8 = 8;
    let parts = |count: usize| vec![Part::from_vec(vec![1.5_f32; 9]); count];
    let refused = |body: Vec<u8>, parts: Vec<Part>, why: &str| {
        let body = Bytes::from(body);
        let read = read::<Vec<Vec<f32>>>(Payload { body, parts });
        assert!(read.is_err(), "{why}: {read:?}");
    };
    let two = vec![Vec::<f32>::new(); 2];
    let body = |places: &[(u32, u8)]| forged(places, places.len(), &two);
    refused(body(&[(0, F32), (1, F32)]), parts(1), "one did not come");
    refused(body(&[(2, F32)]), parts(1), "no such place");
    refused(body(&[(u32::MAX, F32)]), parts(1), "no such place");
    refused(body(&[(1, F32), (0, F32)]), parts(2), "another order");
    refused(body(&[(1, F32), (1, F32)]), parts(2), "one place twice");
    refused(body(&[(0, 255)]), parts(1), "no such numbers");
    refused(body(&[(0, F32)]), vec![vec![1; 7].into()], "half a number");
    refused(forged(&[(0, F32)], 65535, &two), parts(1), "many announced");
    refused(forged(&[], 65535, &two), parts(1), "many, and none said");
    let filled = vec![vec![2.5_f32]; 2];
    refused(
        forged(&[(0, F32)], 1, &filled),
        parts(1),
        "it has some already",
    );
    // Vectors in vectors.
    let nested = [&VECTORS[..], &[0, 0], &body(&[(0, F32)])].concat();
    refused(nested, parts(1), "twice");

    let good = body(&[(0, F32), (1, F32)]);
    for end in 0..good.len() {
        refused(good[..end].to_vec(), parts(2), "cut off");
    }
    let payload = Payload {
        body: good.into(),
        parts: parts(2),
    };
    assert_eq!(read(payload), Ok(vec![vec![1.5_f32; 9]; 2]));
}

#[test]
fn bytes_at_any_address_become_numbers() {
    let numbers: Vec<f64> = (0..1000).map(f64::from).collect();
    let bytes: &[u8] = bytemuck::cast_slice(&numbers);
    for offset in 0..8 {
        let moved = Bytes::from([&vec![0; offset][..], bytes].concat()).slice(offset..);
        let payload = Payload {
            body: forged(&[(0, 9)], 1, &Vec::<f64>::new()).into(),
            parts: vec![moved.into()],
        };
        assert_eq!(read(payload), Ok(numbers.clone()));
    }
}

/// VE-3
#[test]
fn vectors_that_are_not_sent_by_our_own_codec_are_what_they_are() {
    let numbers = vec![1.5_f32; OUT_OF_BAND];
    let alone = Codec::Postcard.encode(&numbers).unwrap();
    assert!(alone.len() > size_of_val(&numbers[..]), "not beside it");
    assert_eq!(Codec::Postcard.decode(&alone), Ok(numbers.clone()));

    struct Json;

    impl ValueCodec for Json {
        fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
            serde_json::to_vec(value).map_err(CodecError::new)
        }

        fn decode(
            &self,
            body: &[u8],
            read: &mut dyn FnMut(
                &mut dyn erased_serde::Deserializer<'_>,
            ) -> Result<(), erased_serde::Error>,
        ) -> Result<(), CodecError> {
            let mut json = serde_json::Deserializer::from_slice(body);
            read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json))
                .map_err(CodecError::new)
        }
    }

    let json = Codec::Custom(Arc::new(Json));
    let mut arguments = (numbers,);
    let encode = || json.encode_taking(&mut arguments, ArgumentList::each_vector);
    let (payload, _) = scope::write(encode).unwrap();
    assert!(payload.parts.is_empty());
    let text = serde_json::to_vec(&vec![1.5; OUT_OF_BAND]).unwrap();
    assert_eq!(payload.body, [b"[", &text[..], b"]"].concat());
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Sparse {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    left_out: Option<Blob>,
    blob: Blob,
}

/// The value is written twice, the second time in the other form.
#[test]
fn vectors_go_along_with_what_is_not_compact() {
    let blob = Blob::from(vec![3; OUT_OF_BAND]);
    let sparse = Sparse {
        left_out: None,
        blob,
    };
    let arguments = (vec![7_u16; OUT_OF_BAND], sparse, vec![8_u16; OUT_OF_BAND]);
    let payload = sent(arguments.clone());
    assert_eq!(payload.parts.len(), 3);
    assert_eq!(read_with(payload, ArgumentList::each_vector), Ok(arguments));
}

#[test]
fn of_very_many_vectors_some_stay_in_the_value() {
    let many: Vec<_> = (0..1030).map(|n| vec![n as u8; OUT_OF_BAND]).collect();
    arrives(many, 1024);
}

#[test]
fn items_have_their_vectors_beside_them() {
    let rows = [
        vec![1.5_f32; OUT_OF_BAND],
        vec![2.5],
        vec![3.5; OUT_OF_BAND],
    ];
    let scope = scope::WritingItems::begin();
    let mut buffer = Vec::new();
    let mut written = Vec::new();
    for row in &rows {
        items::write(row, &mut buffer).unwrap();
        written.push((std::mem::take(&mut buffer), scope.take().0));
    }
    drop(scope);
    for (row, (body, parts)) in rows.into_iter().zip(written) {
        assert_eq!(parts.len(), usize::from(row.len() > 1));
        let followed = [&body[..], b"next"].concat();
        let payload = Payload {
            body: followed.into(),
            parts,
        };
        let read = scope::read(payload, &[], |body| {
            let (item, rest) = items::read::<Vec<f32>>(body)?;
            assert_eq!(rest, b"next");
            Ok(item)
        });
        assert_eq!(read, Ok(row));
    }
}

#[test]
fn numbers_of_the_other_byte_order_are_turned_around() {
    let mut numbers = [0x0102_u16, 0xfffe];
    turn_around(&mut numbers);
    assert_eq!(numbers, [0x0201, 0xfeff]);
    let mut floats = [1.5_f64];
    turn_around(&mut floats);
    assert_eq!(floats[0].to_bits(), 1.5_f64.to_bits().swap_bytes());
}

/// What is kept until it has arrived counts as what is in it.
#[test]
fn a_vector_that_is_mostly_empty_takes_no_more_than_it_has() {
    let mut numbers = Vec::with_capacity(1 << 20);
    numbers.resize(5000, 1_u64);
    let (_, part) = numbers.take_out().expect("a large one");
    let kept = part.into_vec::<u64>().expect("the same numbers");
    assert_eq!((kept.len(), kept.capacity() < 10_000), (5000, true));
}
