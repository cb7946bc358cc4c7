//! Whatever serde can write arrives as it was sent, or is an error (RD-3).

use std::any::TypeId;
use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::ser::{SerializeSeq, SerializeStruct};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::json;

use super::depth::MAX_DEPTH;
use super::forms::{DESCRIBED, write_described};
use super::{Codec, CodecError};
use crate::fingerprint;

/// As the arguments of a call: traced when the worker starts.
fn sent<T: Serialize + DeserializeOwned + 'static>(value: &T) -> Result<T, CodecError> {
    fingerprint::trace::<T>();
    let body = Codec::Postcard.encode(value)?;
    Codec::Postcard.decode(&body)
}

#[track_caller]
fn arrives<T>(value: &T)
where
    T: Serialize + DeserializeOwned + PartialEq + fmt::Debug + 'static,
{
    assert_eq!(sent(value).as_ref(), Ok(value));
}

fn is_described<T: Serialize + 'static>(value: &T) -> bool {
    Codec::Postcard
        .encode(value)
        .unwrap()
        .starts_with(&DESCRIBED)
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Batch {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    label: Option<u32>,
    epoch: u32,
    rows: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<Option<String>>,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Step {
    Rest,
    Pair(u8, u8),
    Go {
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        over: Vec<u8>,
        to: u8,
    },
}

#[test]
fn a_field_that_is_left_out_is_left_out_and_not_taken_for_the_next() {
    for label in [None, Some(7)] {
        for note in [None, Some(None), Some(Some("x".to_owned()))] {
            let rows = vec![2, 10, 20];
            arrives(&Batch {
                label,
                epoch: 0,
                rows,
                note,
            });
        }
    }
    for over in [vec![], vec![3]] {
        let go = Step::Go { over, to: 1 };
        arrives(&vec![Step::Rest, go, Step::Pair(1, 2)]);
    }
}

#[test]
fn only_what_needs_it_is_described() {
    let mut batch = Batch {
        label: Some(1),
        epoch: 2,
        rows: vec![],
        note: Some(None),
    };
    assert!(!is_described(&batch));
    batch.label = None;
    assert!(is_described(&batch));
    assert_eq!(Codec::Postcard.encode(&((), [0_u8; 0])), Ok(vec![]));
    assert_eq!(
        Codec::Postcard.encode(&(7_u8,)).map(|body| body.len()),
        Ok(3)
    );
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Number(u32),
    Text(String),
    Maybe { maybe: Option<Option<char>> },
    Steps(Vec<Step>),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Unit,
    Circle { radius: f32 },
    Named(Inner),
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "t", content = "c")]
enum Adjacent {
    Unit,
    One(u64),
    Two { a: i8, b: Option<()> },
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Inner {
    x: u32,
}

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Flat {
    before: u8,
    #[serde(flatten)]
    inner: Inner,
    #[serde(flatten)]
    rest: BTreeMap<String, serde_json::Value>,
}

#[test]
fn types_that_look_at_what_came_arrive() {
    arrives(&Untagged::Number(7));
    arrives(&vec![Untagged::Text("x".to_owned()), Untagged::Number(0)]);
    for maybe in [None, Some(None), Some(Some('ß'))] {
        arrives(&Untagged::Maybe { maybe });
    }
    let go = Step::Go {
        over: vec![],
        to: 1,
    };
    arrives(&Untagged::Steps(vec![Step::Rest, go, Step::Pair(1, 2)]));
    arrives(&(
        1_u8,
        Tagged::Unit,
        Tagged::Circle { radius: 0.1 },
        "x".to_owned(),
    ));
    arrives(&Tagged::Named(Inner { x: 1 }));
    arrives(&vec![Adjacent::Unit, Adjacent::One(u64::MAX)]);
    for b in [None, Some(())] {
        arrives(&Adjacent::Two { a: -1, b });
    }
    let rest = BTreeMap::from([("z".to_owned(), json!([1, -2, 0.5, null, "ü", {"a": true}]))]);
    arrives(&Flat {
        before: 1,
        inner: Inner { x: 2 },
        rest,
    });
    arrives(&json!({"a": [1, null], "b": {"c": u64::MAX, "d": i64::MIN, "e": 1e300}}));
}

/// What the tracer of types has no value for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct PartBytes(String);

impl TryFrom<String> for PartBytes {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.contains("://") {
            true => Ok(Self(text)),
            false => Err("no place"),
        }
    }
}

impl From<PartBytes> for String {
    fn from(place: PartBytes) -> Self {
        place.0
    }
}

/// FP-4: the tracer does not see it.
#[test]
fn what_stands_behind_something_that_the_tracer_cannot_make_arrives() {
    let place = PartBytes("far://ref".to_owned());
    arrives(&(place.clone(), json!({"a": [1, null]})));
    arrives(&(place.clone(), Untagged::Number(7), 1_u8));
    arrives(&BTreeMap::from([(place.clone(), Tagged::Unit)]));
    arrives(&(1_u8, (place, "x".to_owned()), Adjacent::One(1)));
}

/// Announces what it is told to.
struct Announces(Option<usize>, Vec<u8>);

impl Serialize for Announces {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(self.0)?;
        for element in &self.1 {
            list.serialize_element(element)?;
        }
        list.end()
    }
}

#[test]
fn a_list_has_the_elements_that_were_written_whatever_it_announced() {
    for announced in [None, Some(0), Some(2), Some(3), Some(1 << 40)] {
        let body = Codec::Postcard.encode(&Announces(announced, vec![1, 2]));
        let read: Result<Vec<u8>, _> = Codec::Postcard.decode(&body.unwrap());
        assert_eq!(read, Ok(vec![1, 2]), "{announced:?}");
    }
}

/// RD-3
#[test]
fn a_type_that_does_not_write_all_it_reads_is_an_error() {
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Secret {
        #[serde(skip_serializing, default)]
        secret: Option<u32>,
        epoch: u32,
        rows: Vec<u32>,
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Tuple(
        #[serde(skip_serializing_if = "Option::is_none", default)] Option<u32>,
        #[serde(default)] u32,
        #[serde(default)] Vec<u32>,
    );
    let rows = vec![2, 10, 20];
    let secret = Secret {
        secret: None,
        epoch: 0,
        rows: rows.clone(),
    };
    let error = sent(&secret).unwrap_err().to_string();
    assert!(error.contains("skip_deserializing"), "{error}");
    let error = sent(&vec![Tuple(None, 0, rows)]).unwrap_err().to_string();
    assert!(error.contains("a tuple cannot leave out"), "{error}");
}

/// RD-3: also where something else in the value has it described.
#[test]
fn nothing_arrives_as_something_else_beside_a_field_that_is_left_out() {
    #[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
    struct Tuple(
        #[serde(skip_serializing_if = "Option::is_none", default)] Option<u32>,
        #[serde(default)] Option<u32>,
        #[serde(skip)] Option<u32>,
    );
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    enum Either {
        Tuple(
            #[serde(skip_serializing_if = "Option::is_none", default)] Option<u32>,
            #[serde(default)] Option<u32>,
        ),
        Renamed {
            #[serde(rename(serialize = "a", deserialize = "b"), default)]
            a: u8,
        },
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Renamed {
        #[serde(rename(serialize = "a", deserialize = "b"), default)]
        a: u8,
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct WriteOnly {
        #[serde(skip_deserializing)]
        a: u8,
    }
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Aliased {
        #[serde(alias = "b", alias = "c")]
        a: u8,
        #[serde(skip)]
        skipped: u8,
    }
    let left_out = || Batch {
        label: None,
        epoch: 0,
        rows: vec![],
        note: None,
    };
    assert!(is_described(&left_out()));
    assert!(sent(&(left_out(), Tuple(None, Some(5), None))).is_err());
    assert!(sent(&(left_out(), Either::Tuple(None, Some(5)))).is_err());
    assert!(sent(&(left_out(), Either::Renamed { a: 1 })).is_err());
    assert!(sent(&(left_out(), Renamed { a: 1 })).is_err());
    assert!(sent(&(left_out(), WriteOnly { a: 1 })).is_err());
    arrives(&(left_out(), Tuple(Some(1), Some(5), None)));
    arrives(&(left_out(), Either::Tuple(Some(1), Some(5))));
    arrives(&(left_out(), Aliased { a: 1, skipped: 0 }));
}

/// Writes what nobody needs to look at, and reads nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Marker;

impl Serialize for Marker {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_unit()
    }
}

impl<'de> Deserialize<'de> for Marker {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Ok(Self)
    }
}

/// RD-2
#[test]
fn a_type_that_reads_nothing_takes_one_element_each() {
    #[derive(PartialEq, Debug, Serialize, Deserialize)]
    struct Marked {
        first: Marker,
        list: Vec<Marker>,
        map: BTreeMap<u8, Marker>,
        some: Option<Marker>,
        variant: Result<Marker, u8>,
        #[serde(skip_serializing_if = "Option::is_none")]
        left_out: Option<u8>,
        last: Marker,
    }
    for left_out in [Some(1), None] {
        arrives(&Marked {
            first: Marker,
            list: vec![Marker; 3],
            map: BTreeMap::from([(1, Marker), (2, Marker)]),
            some: Some(Marker),
            variant: Ok(Marker),
            left_out,
            last: Marker,
        });
    }
}

/// They may be a peer's, and end up in a log or on a terminal.
#[test]
fn the_words_of_an_error_are_cut_and_cannot_move_a_cursor() {
    let words = format!("\u{1b}[2J{}", "x".repeat(1 << 20));
    let body = write_described(&words, &[]).unwrap();
    let error = Codec::Postcard
        .decode::<Step>(&body)
        .unwrap_err()
        .to_string();
    assert!(error.contains("[2Jxxx"), "it quotes them");
    assert!(!error.contains(char::is_control));
    assert!(error.len() <= 64 << 10, "{}", error.len());
    assert!(
        !CodecError::new(words)
            .to_string()
            .contains(char::is_control)
    );
}

#[test]
fn a_struct_that_writes_fewer_fields_than_it_announces_is_read_by_their_names() {
    #[derive(PartialEq, Debug, Deserialize)]
    struct Pair {
        #[serde(default)]
        a: u8,
        b: u8,
    }

    impl Serialize for Pair {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut pair = serializer.serialize_struct("Pair", 2)?;
            pair.serialize_field("b", &self.b)?;
            pair.end()
        }
    }
    arrives(&vec![Pair { a: 0, b: 1 }, Pair { a: 0, b: 0 }]);
}

#[test]
fn the_words_of_a_type_s_own_errors_are_kept() {
    #[derive(Debug)]
    struct Even(u8);

    impl Serialize for Even {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            if self.0 == 1 {
                return Err(serde::ser::Error::custom("one is odd"));
            }
            serializer.serialize_u8(self.0)
        }
    }

    impl<'de> Deserialize<'de> for Even {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            match u8::deserialize(deserializer)? {
                3 => Err(serde::de::Error::custom("three is odd")),
                even => Ok(Self(even)),
            }
        }
    }
    assert_eq!(sent(&Even(1)).unwrap_err().to_string(), "one is odd");
    assert_eq!(sent(&Even(3)).unwrap_err().to_string(), "three is odd");
    assert_eq!(sent(&Even(2)).unwrap().0, 2);
}

/// Nobody who writes it knows what it is read with.
#[test]
fn a_value_that_was_not_described_and_had_to_be_is_an_error_in_farref_s_own_words() {
    let body = Codec::Postcard.encode(&1_u8).unwrap();
    let error = Codec::Postcard.decode::<Untagged>(&body).unwrap_err();
    assert!(error.to_string().contains("untagged"), "{error}");
    for end in 0..body.len() {
        let error = Codec::Postcard.decode::<u64>(&body[..end]).unwrap_err();
        assert!(
            !error.to_string().to_lowercase().contains("postcard"),
            "{error}"
        );
    }
}

/// RD-1, RD-2
#[test]
fn hostile_bytes_of_the_described_form_are_an_error() {
    for tag in 0..=255_u8 {
        let mut body = DESCRIBED.to_vec();
        body.extend([tag; 100_000]);
        assert!(Codec::Postcard.decode::<serde_json::Value>(&body).is_err());
        assert!(Codec::Postcard.decode::<Untagged>(&body).is_err());
        assert!(Codec::Postcard.decode::<Vec<Step>>(&body).is_err());
        assert!(Codec::Postcard.decode::<Batch>(&body).is_err());
        // These do not look at what came: it is skipped.
        assert!(Codec::Postcard.decode::<Marker>(&body).is_err());
        assert!(Codec::Postcard.decode::<Vec<Marker>>(&body).is_err());
        assert!(Codec::Postcard.decode::<Option<Marker>>(&body).is_err());
    }
    let value = json!({"a": [1, {"b": "c"}, 0.5, null, true]});
    let body = write_described(&value, &[]).unwrap();
    for end in 2..body.len() {
        let read = Codec::Postcard.decode::<serde_json::Value>(&body[..end]);
        assert!(read.is_err(), "cut off at {end}");
    }
    let deep = |depth| (1..depth).fold(json!([]), |inner, _| json!([inner]));
    fingerprint::trace::<serde_json::Value>();
    assert!(fingerprint::reads_any(TypeId::of::<serde_json::Value>()));
    arrives(&deep(MAX_DEPTH));
    assert!(sent(&deep(MAX_DEPTH + 1)).is_err());
}
