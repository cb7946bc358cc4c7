//! What whoever writes the bytes of a value cannot do to its reader (RD-1, RD-2).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::depth::MAX_DEPTH;
use super::reader::FREE_ELEMENTS;
use super::{Codec, CodecError, ValueCodec};

/// Postcard as if it were somebody else's.
struct Foreign;

impl ValueCodec for Foreign {
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
        postcard::to_allocvec(value).map_err(CodecError::new)
    }

    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError> {
        let mut postcard = postcard::Deserializer::from_bytes(body);
        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(
            &mut postcard,
        ))
        .map_err(CodecError::new)
    }
}

fn codecs() -> [Codec; 2] {
    [Codec::Postcard, Codec::Custom(Arc::new(Foreign))]
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    super::compact::read_compact(None, bytes)
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Nested {
    Leaf,
    Newtype(Box<Self>),
    Tuple(u8, Box<Self>),
    Struct { inner: Box<Self> },
}

fn nest(depth: u32, wrap: impl Fn(Box<Nested>) -> Nested) -> Nested {
    (1..depth).fold(Nested::Leaf, |inner, _| wrap(Box::new(inner)))
}

#[test]
fn a_value_as_deep_as_allowed_is_read_and_a_deeper_one_is_not() {
    let kinds: [fn(Box<Nested>) -> Nested; 3] = [
        Nested::Newtype,
        |inner| Nested::Tuple(7, inner),
        |inner| Nested::Struct { inner },
    ];
    for codec in codecs() {
        for wrap in kinds {
            let deep = nest(MAX_DEPTH, wrap);
            let bytes = codec.encode(&deep).unwrap();
            assert_eq!(codec.decode::<Nested>(&bytes).unwrap(), deep);
            let bytes = codec.encode(&nest(MAX_DEPTH + 1, wrap)).unwrap();
            assert!(codec.decode::<Nested>(&bytes).is_err());
        }
    }
}

#[test]
fn every_way_to_recur_is_limited() {
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Linked(Option<Box<Self>>);
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Tree(Vec<Self>);
    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Directory(BTreeMap<u8, Self>);

    let million = vec![1; 1_000_000];
    for codec in codecs() {
        assert!(codec.decode::<Nested>(&million).is_err());
        assert!(codec.decode::<Linked>(&million).is_err());
        assert!(codec.decode::<Tree>(&million).is_err());
        assert!(codec.decode::<Directory>(&million).is_err());
    }
}

#[test]
fn breadth_is_not_depth() {
    type Wide = Vec<Option<Vec<(u8, Option<String>)>>>;
    let wide: Wide = vec![Some(vec![(1, Some("x".to_owned())), (2, None)]); 10_000];
    for codec in codecs() {
        let bytes = codec.encode(&wide).unwrap();
        assert_eq!(codec.decode::<Wide>(&bytes).unwrap(), wide);
    }
}

/// Read without limits, each of these takes minutes, or all memory.
#[test]
fn elements_that_take_no_bytes_are_limited() {
    #[derive(Default, Debug, Deserialize)]
    #[expect(dead_code, reason = "only read")]
    struct Skipped {
        #[serde(skip)]
        filled_in: u64,
    }

    let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    assert!(read::<Vec<()>>(&endless).is_err());
    assert!(read::<Vec<Skipped>>(&endless).is_err());
    assert!(read::<BTreeMap<(), ()>>(&endless).is_err());
    // Many that are short enough each.
    let list = postcard::to_allocvec(&vec![(); FREE_ELEMENTS as usize]).unwrap();
    let mut lists = postcard::to_allocvec(&100_000_u32).unwrap();
    (0..100_000).for_each(|_| lists.extend(&list));
    assert!(read::<Vec<Vec<()>>>(&lists).is_err());
}

#[test]
fn some_elements_may_take_no_bytes_and_any_number_may_take_some() {
    let free = vec![(); FREE_ELEMENTS as usize];
    let bytes = postcard::to_allocvec(&free).unwrap();
    assert_eq!(read::<Vec<()>>(&bytes).unwrap().len(), free.len());
    let many = vec![(1_u8, ()); 1 << 20];
    let bytes = postcard::to_allocvec(&many).unwrap();
    assert_eq!(read::<Vec<(u8, ())>>(&bytes).unwrap().len(), many.len());
}

/// The reader does by itself what decides about structure, and that as postcard does it.
#[test]
fn what_postcard_writes_is_read_as_postcard_reads_it() {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Unit;
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Newtype(i64);
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct All {
        scalars: (bool, i8, u16, i32, u64, i128, f32, f64, char),
        text: String,
        bytes: Vec<u8>,
        maybe: [Option<Newtype>; 2],
        unit: (Unit, ()),
        map: BTreeMap<String, Vec<(u8, Nested)>>,
        kinds: Vec<Nested>,
        nothing: Vec<u8>,
    }

    let leaf = || Box::new(Nested::Leaf);
    let kinds = vec![
        Nested::Leaf,
        Nested::Newtype(leaf()),
        Nested::Tuple(9, leaf()),
        Nested::Struct { inner: leaf() },
    ];
    let all = All {
        scalars: (true, -3, 500, -70_000, u64::MAX, i128::MIN, 1.5, -2.5, 'ß'),
        text: "text".to_owned(),
        bytes: vec![0, 255],
        maybe: [None, Some(Newtype(i64::MIN))],
        unit: (Unit, ()),
        map: BTreeMap::from([("k".to_owned(), vec![(1, Nested::Leaf)])]),
        kinds,
        nothing: Vec::new(),
    };
    let bytes = postcard::to_allocvec(&all).unwrap();
    assert_eq!(read::<All>(&bytes).unwrap(), all);
    for end in 0..bytes.len() {
        assert!(read::<All>(&bytes[..end]).is_err(), "cut off at {end}");
        assert!(postcard::from_bytes::<All>(&bytes[..end]).is_err());
    }
    assert!(
        read::<Option<u8>>(&[2, 0]).is_err(),
        "neither none nor some"
    );
    assert!(read::<Nested>(&[4]).is_err(), "no such variant");
}
