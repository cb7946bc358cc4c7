//! Values that real Python pickled, in every protocol that it might use (`vectors/values.py` made them).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use farref::{Blob, Buffer};

use super::*;
use crate::vectors;

const MADE: &str = include_str!("../../../vectors/values.txt");

/// The pickles of a value, with their protocols.
fn made(wanted: &str) -> Vec<(u8, Vec<u8>)> {
    let lines = MADE.lines().filter_map(|line| {
        let (protocol, rest) = line.split_once(' ')?;
        let (pickle, name) = rest.split_once(' ')?;
        (name == wanted).then(|| (protocol.parse().unwrap(), vectors::bytes(pickle)))
    });
    let all: Vec<_> = lines.collect();
    assert_eq!(all.len(), 4, "{wanted}");
    all
}

/// Reads a value from each of its pickles.
fn reads<T: DeserializeOwned + PartialEq + fmt::Debug>(name: &str, expected: T) {
    for (protocol, pickle) in made(name) {
        let found = try_read::<T>(&pickled(&pickle));
        assert_eq!(found.as_ref(), Ok(&expected), "{name}, protocol {protocol}");
    }
}

/// What it is as Python's data.
fn data(name: &str) -> String {
    let mut all: Vec<String> = made(name)
        .iter()
        .map(|(_, pickle)| format!("{:?}", try_read::<PyValue>(&pickled(pickle))))
        .collect();
    all.dedup();
    assert_eq!(all.len(), 1, "{name}: {all:?}");
    all.remove(0)
}

#[derive(PartialEq, Debug, Deserialize)]
struct Plain {
    a: i64,
    b: (u8, f32, Option<String>, bool),
    c: String,
    d: Vec<u64>,
    /// Not in the dict.
    e: Option<i64>,
}

#[test]
fn plain_data_is_read_as_a_struct() {
    let expected = Plain {
        a: 1,
        b: (1, 2.5, None, true),
        c: "é".to_owned(),
        d: vec![1, 2, 3],
        e: None,
    };
    reads("plain", expected);
    assert_eq!(
        data("plain"),
        "Ok(Dict([(Text(\"a\"), Int(1)), \
         (Text(\"b\"), List([Int(1), Float(2.5), None, Bool(true)])), \
         (Text(\"c\"), Text(\"é\")), (Text(\"d\"), Tuple([Int(1), Int(2), Int(3)]))]))"
    );
}

/// However its class keeps its attributes.
#[test]
fn objects_are_read_as_structs() {
    let point = || Point { x: 1, y: 2.5 };
    for name in [
        "point",
        "slot point",
        "frozen point",
        "slots",
        "slots and more",
        "named point",
        "ordered",
    ] {
        reads(name, point());
    }
    reads(
        "nested",
        vec![vec![vec![BTreeMap::from([(
            "x".to_owned(),
            (1, vec![point()]),
        )])]]],
    );
}

#[test]
fn a_tuple_with_names_is_a_tuple() {
    reads("named point", (1, 2.5));
}

/// What has attributes is no plain data, unless somebody says which.
#[test]
fn objects_are_no_plain_data() {
    for name in ["point", "slots", "frozen point", "named point"] {
        let found = data(name);
        assert!(found.starts_with("Err(\"an object of `"), "{found}");
        assert!(found.ends_with("` is no plain data\")"), "{found}");
    }
    assert!(data("point").contains("`values.Point`"));
}

#[test]
fn every_kind_of_dict_is_a_map() {
    reads(
        "ordered",
        BTreeMap::from([("x".to_owned(), 1.0), ("y".to_owned(), 2.5)]),
    );
    reads("empty ordered", BTreeMap::<String, i64>::new());
    reads(
        "default",
        BTreeMap::from([("x".to_owned(), 1), ("y".to_owned(), 2)]),
    );
    reads(
        "counter",
        BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]),
    );
    reads("counter", vec![("a".to_owned(), 2), ("b".to_owned(), 1)]);
    assert_eq!(data("empty ordered"), "Ok(Dict([]))");
    assert_eq!(
        data("counter"),
        "Ok(Dict([(Text(\"a\"), Int(2)), (Text(\"b\"), Int(1))]))"
    );
}

#[test]
fn every_kind_of_sequence_is_one() {
    for name in ["set", "frozenset"] {
        reads(name, BTreeSet::from([1]));
        assert_eq!(data(name), "Ok(Set([Int(1)]))");
    }
    reads("empty set", Vec::<i64>::new());
    for name in ["deque", "bounded deque"] {
        reads(name, VecDeque::from([1, 2]));
        reads(name, (1, 2));
        assert_eq!(data(name), "Ok(List([Int(1), Int(2)]))");
    }
    reads("empty deque", Vec::<i64>::new());
    assert_eq!(data("empty deque"), "Ok(List([]))");
    reads("many", (0..1100).collect::<Vec<u16>>());
    reads("shared", vec![vec![1, 2]; 2]);
}

#[test]
fn numbers_of_any_size_are_read_as_what_they_are() {
    reads("big", [1_u128 << 63, (1 << 64) - 1, (1 << 127) - 1]);
    reads("big", [1_i128 << 63, (1 << 64) - 1, i128::MAX]);
    let below = i128::from(i64::MIN);
    reads("negative", [below, below - 1, i128::MIN]);
    reads("largest", u128::MAX);
    reads("floats", [f64::INFINITY, 0.0, 1e-300]);
    for (_, pickle) in made("too large") {
        assert!(error::<u128>(&pickle).contains("a number of more than"));
        assert!(error::<i128>(&pickle).contains("a number of more than"));
        assert!(error::<PyValue>(&pickle).contains("a number of more than"));
    }
}

#[test]
fn bytes_are_read_wherever_python_keeps_them() {
    for name in ["bytes", "bytearray"] {
        for (protocol, pickle) in made(name) {
            if protocol == 2 {
                // In which Python has no bytes and writes a call that would make some.
                assert!(error::<Blob>(&pickle).contains("expected bytes"));
                continue;
            }
            assert_eq!(read::<Blob>(&pickle), Blob::from(vec![0, 255]), "{name}");
            assert_eq!(read::<Vec<u8>>(&pickle), [0, 255], "{name}");
            assert_eq!(read::<Buffer>(&pickle).into_vec::<u8>().unwrap(), [0, 255]);
            let value = format!("{:?}", read::<PyValue>(&pickle));
            assert!(value.starts_with("Bytes("), "{value}");
        }
    }
}

#[test]
fn names_are_names() {
    assert_eq!(data("class"), "Ok(Name(\"values.Point\"))");
    assert_eq!(data("colour"), "Ok(Name(\"values.Colour.RED\"))");
}

#[derive(Debug, Deserialize)]
enum Either {
    One,
    #[allow(dead_code)]
    Other(i64),
}

/// The words of an error say what was there.
#[test]
fn errors_say_what_is_there_and_what_was_expected() {
    let (_, plain) = made("plain").remove(2);
    assert_eq!(
        error::<Vec<i64>>(&made("big").remove(2).1),
        "a number of more than 64 bits"
    );
    assert!(error::<i64>(&plain).contains("invalid type: map, expected i64"));
    assert!(
        error::<Point>(&plain).contains("missing field `x`"),
        "{}",
        error::<Point>(&plain)
    );
    assert!(error::<RawTensor>(&plain).contains("expected a tensor, found a dict of 4"));
    assert!(error::<Blob>(&plain).contains("expected bytes, found a dict of 4"));
    assert!(error::<farref::RRef<i64>>(&plain).contains("expected a reference, found a dict of 4"));
    let variant = error::<Either>(&plain);
    assert!(variant.contains("not a dict of 4"), "{variant}");
}

/// Enums that are told by what is in them, as serde reads them: by way of a value of any type.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Any {
    Tensor(farref_autograd::Tensor),
    Number(f64),
    Many(Vec<Self>),
}

#[test]
fn enums_without_tags_may_have_tensors() {
    let tensor = farref_autograd::Tensor::from_vec(vec![1.0_f32, 2.0], 2).unwrap();
    let all = Any::Many(vec![Any::Number(1.5), Any::Tensor(tensor)]);
    let Any::Many(all) = back(&all) else {
        panic!("it is a list");
    };
    let [Any::Number(number), Any::Tensor(tensor)] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(*number, 1.5);
    assert_eq!(tensor.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
}
