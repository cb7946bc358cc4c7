//! What is written here: what Python gets, and that it is read back here as what it was (VC-2).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use farref::{Blob, Buffer};
use farref_autograd::Tensor;
use proptest::prelude::*;

use super::*;
use crate::rpc::tensors::Dtype;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Metres(f64);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Both(i64, String);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Kind {
    Plain,
    One(i64),
    Several(i64, String),
    Fields {
        x: i64,
        y: Option<f64>,
    },
    Nested(Box<Self>),
    Maybe(Option<i64>),
    /// Called as a variant of Python's data is.
    Name(String),
}

/// Checks both: what Python sees, and that it is the same again here.
fn check<T: Serialize + DeserializeOwned + PartialEq + fmt::Debug>(value: &T, python: &str) {
    let body = write(value);
    assert_eq!(printed(&body.pickle), python);
    assert!(body.placeholders.is_empty());
    assert_eq!(&try_read::<T>(&body).unwrap(), value);
}

#[test]
fn plain_values_are_the_same_in_python() {
    check(&(), "None");
    check(&true, "True");
    check(&-7_i8, "-7");
    check(&i64::MIN, "-9223372036854775808");
    check(&200_u8, "200");
    check(&'é', "\"é\"");
    check(&"text\n\\".to_owned(), "\"text\\n\\\\\"");
    check(&String::new(), "\"\"");
    check(&1.5_f32, "1.5");
    check(&0.1_f64, "0.1");
    check(&Some(5), "5");
    check(&None::<i64>, "None");
    check(&vec![1, 2], "[1, 2]");
    check(&Vec::<i64>::new(), "[]");
    check(&(1, "a".to_owned(), None::<()>), "(1, \"a\", None)");
    check(&[1.0, 2.0], "(1.0, 2.0)");
    check(&BTreeMap::from([("a".to_owned(), 1)]), "{\"a\": 1}");
    check(&BTreeMap::from([((1, true), ())]), "{(1, True): None}");
    check(&BTreeSet::from([3, 1]), "[1, 3]");
}

#[test]
fn structs_are_dicts_and_variants_are_names_or_dicts_of_one() {
    check(&Point { x: 1, y: 2.5 }, "{\"x\": 1, \"y\": 2.5}");
    check(&Unit, "None");
    check(&Metres(1.5), "1.5");
    check(&Both(1, "b".to_owned()), "(1, \"b\")");
    check(&Kind::Plain, "\"Plain\"");
    check(&Kind::One(1), "{\"One\": 1}");
    let several = Kind::Several(1, "b".to_owned());
    check(&several, "{\"Several\": (1, \"b\")}");
    let fields = Kind::Fields { x: 1, y: None };
    check(&fields, "{\"Fields\": {\"x\": 1, \"y\": None}}");
    let nested = Kind::Nested(Box::new(Kind::Nested(Box::new(Kind::Plain))));
    check(&nested, "{\"Nested\": {\"Nested\": \"Plain\"}}");
    check(&Kind::Maybe(None), "{\"Maybe\": None}");
    check(&Kind::Name("n".to_owned()), "{\"Name\": \"n\"}");
    check(
        &vec![Some(fields)],
        "[{\"Fields\": {\"x\": 1, \"y\": None}}]",
    );
}

/// Numbers of any size, at the edges of what is written in another way.
#[test]
fn numbers_keep_their_value_at_every_edge() {
    for shift in 0..128 {
        for number in [(1_u128 << shift) - 1, 1 << shift, (1 << shift) + 1] {
            assert_eq!(back(&number), number);
            if let Ok(number) = i128::try_from(number) {
                assert_eq!(back(&number), number);
                assert_eq!(back(&-number), -number);
            }
            if let Ok(number) = u64::try_from(number) {
                assert_eq!(back(&number), number);
            }
        }
    }
    assert_eq!(back(&u128::MAX), u128::MAX);
    assert_eq!([back(&i128::MIN), back(&i128::MAX)], [i128::MIN, i128::MAX]);
    let above = printed(&write(&(1_u64 << 63)).pickle);
    assert_eq!(above, "long([00, 00, 00, 00, 00, 00, 00, 80, 00])");
    let below = printed(&write(&(i128::from(i64::MIN) - 1)).pickle);
    assert_eq!(below, "long([ff, ff, ff, ff, ff, ff, ff, 7f, ff])");
}

#[test]
fn a_number_that_does_not_fit_is_an_error_and_never_another_number() {
    let refused = |body: &Body| {
        let too_large = try_read::<i64>(body).unwrap_err();
        assert!(too_large.contains("more than 64 bits"), "{too_large}");
    };
    refused(&write(&(1_u64 << 63)));
    refused(&write(&u128::MAX));
    refused(&write(&i128::MIN));
    assert!(try_read::<u64>(&write(&u128::MAX)).is_err());
    assert!(try_read::<u64>(&write(&(1_u128 << 64))).is_err());
    assert!(try_read::<i128>(&write(&u128::MAX)).is_err());
    assert!(try_read::<u128>(&write(&-1)).is_err());
    assert!(try_read::<u128>(&write(&i128::MIN)).is_err());
    assert!(try_read::<u8>(&write(&256)).is_err());
    assert!(try_read::<u64>(&write(&-1)).is_err());
    assert!(try_read::<i64>(&write(&1.0)).is_err());
    assert!(try_read::<i64>(&write(&true)).is_err());
    assert!(try_read::<bool>(&write(&1)).is_err());
}

#[test]
fn floats_keep_every_bit_that_python_has() {
    for number in [
        0.0,
        -0.0,
        f64::MIN_POSITIVE,
        f64::MAX,
        f64::INFINITY,
        -1e-300,
    ] {
        assert_eq!(back(&number).to_bits(), number.to_bits());
    }
    assert!(back(&f64::NAN).is_nan());
    for number in [f32::MIN_POSITIVE, f32::MAX, f32::NEG_INFINITY, 0.1] {
        assert_eq!(back(&number).to_bits(), number.to_bits());
    }
    assert!(back(&f32::NAN).is_nan());
    assert_eq!(
        try_read::<f64>(&write(&2)).unwrap(),
        2.0,
        "Python writes 2 for 2.0"
    );
}

/// Bytes as bytes. Outside of a call they stay in the value, however many there are.
#[test]
fn bytes_are_bytes() {
    for length in [0, 1, 255, 256, 5000, 70_000] {
        let bytes: Vec<u8> = (0..length).map(|place: usize| place as u8).collect();
        let blob = Blob::from(bytes.clone());
        let body = write(&blob);
        let found = Pickle::read(&body.pickle).unwrap();
        let budget = found.budget();
        assert!(matches!(found.view(&budget).shape(), Ok(Shape::Bytes(found)) if found == bytes));
        assert_eq!(try_read::<Blob>(&body).unwrap(), blob);
        assert_eq!(try_read::<Vec<u8>>(&body).unwrap(), bytes);
        let buffer: Buffer = bytes.clone().into();
        assert_eq!(back(&buffer).into_vec::<u8>().unwrap(), bytes);
    }
    // A vector is a list, of numbers.
    check(&vec![1_u8, 2], "[1, 2]");
}

/// What stands for something beside the value: a reference, or a part of many bytes.
struct Beside(&'static str, u32);

impl Serialize for Beside {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        enum Inside {
            Part(u32),
        }

        match self.0 {
            "farref::RRef" => serializer.serialize_newtype_struct(self.0, &self.1),
            name => serializer.serialize_newtype_struct(name, &Inside::Part(self.1)),
        }
    }
}

#[test]
fn what_travels_beside_a_value_leaves_a_hole() {
    let body = write(&(
        1,
        Beside("farref::Blob", 0),
        vec![Beside("farref::RRef", 3), Beside("farref::Buffer", 1)],
    ));
    let replacements: Vec<_> = body
        .placeholders
        .iter()
        .map(|placeholder| placeholder.replacement)
        .collect();
    let expected = [
        Replacement::Part(0),
        Replacement::Reference(3),
        Replacement::Part(1),
    ];
    assert_eq!(replacements, expected);
    // Inside of this process the placeholders themselves say what belongs there.
    assert_eq!(printed(&body.pickle), "(1, <-1>, [<3>, <-2>])");
    for placeholder in &body.placeholders {
        let place = placeholder.at as usize..(placeholder.at + placeholder.len) as usize;
        let inside = &body.pickle[place];
        assert_eq!(inside.last(), Some(&b'Q'), "a persistent id ends it");
    }
}

#[test]
fn tensors_go_into_the_list_of_the_message() {
    let tensor = Tensor::from_vec(vec![1.0_f32, 2.0], 2).unwrap();
    let mask = RawTensor::new(Dtype::Bool, vec![1, 2], vec![1_u8, 0]);
    let body = write(&(tensor, mask));
    let [tensor, mask] = &body.tensors[..] else {
        panic!("{body:?}")
    };
    assert_eq!((tensor.dtype, &tensor.shape[..]), (Dtype::Float, &[2][..]));
    assert_eq!((mask.dtype, &mask.shape[..]), (Dtype::Bool, &[1, 2][..]));
    let python = printed(&body.pickle);
    let receiver = "builtins.getattr(torch.distributed.rpc.internal._InternalRPCPickler, \"_tensor_receiver\")";
    assert_eq!(python, format!("({receiver}(0), {receiver}(1))"));
    let (tensor, mask): (Tensor, RawTensor) = try_read(&body).unwrap();
    assert_eq!(tensor.to_vec1::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!((mask.dtype, mask.shape), (Dtype::Bool, vec![1, 2]));
    assert_eq!(mask.data.into_vec::<u8>().unwrap(), [1, 0]);
    // One may be read as the other, where candle has such a type.
    let (raw, byte): (RawTensor, Tensor) = try_read(&body).unwrap();
    assert_eq!(raw.data.into_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(byte.to_vec2::<u8>().unwrap(), [[1, 0]]);
}

#[test]
fn a_tensor_of_another_size_than_its_bytes_is_not_written() {
    let wrong = RawTensor::new(Dtype::Float, vec![3], vec![0_u8; 8]);
    let error = PickleCodec::default().encode(&wrong).unwrap_err();
    assert!(
        error.to_string().contains("another number of bytes"),
        "{error}"
    );
}

/// What Python has and Rust's usual types have not.
#[test]
fn python_data_is_the_same_again() {
    let all = PyValue::List(vec![
        PyValue::None,
        PyValue::Bool(true),
        PyValue::Int(i64::MIN),
        PyValue::Float(2.5),
        PyValue::Text("é".to_owned()),
        PyValue::Bytes(Blob::from(vec![0, 255])),
        PyValue::Tuple(vec![]),
        PyValue::Tuple(vec![PyValue::Int(1)]),
        PyValue::Set(vec![PyValue::Int(1), PyValue::Int(2)]),
        PyValue::Dict(vec![(PyValue::Int(1), PyValue::List(vec![]))]),
        PyValue::Name("shop.Point".to_owned()),
        PyValue::Tensor(RawTensor::new(Dtype::Char, vec![2], vec![1_u8, 2])),
    ]);
    let body = write(&all);
    let again: PyValue = try_read(&body).unwrap();
    assert_eq!(format!("{again:?}"), format!("{all:?}"));
    assert!(printed(&body.pickle).contains("{1, 2}, {1: []}, shop.Point, "));
    let error = PickleCodec::default().encode(&PyValue::Name("nowhere".to_owned()));
    assert!(error.unwrap_err().to_string().contains("which module"));
}

/// Typed values are Python data to whoever does not look into them, and the other way round.
#[test]
fn what_is_typed_here_is_data_there() {
    let value: PyValue = try_read(&write(&Kind::Fields { x: 1, y: Some(2.0) })).unwrap();
    let PyValue::Dict(pairs) = &value else {
        panic!("{value:?}")
    };
    assert_eq!(pairs.len(), 1);
    assert_eq!(
        try_read::<Kind>(&write(&value)).unwrap(),
        Kind::Fields { x: 1, y: Some(2.0) }
    );
}

/// Any value.
fn kinds() -> impl Strategy<Value = Kind> {
    let leaf = prop_oneof![
        Just(Kind::Plain),
        any::<i64>().prop_map(Kind::One),
        (any::<i64>(), ".*").prop_map(|(number, text)| Kind::Several(number, text)),
        (any::<i64>(), proptest::option::of(-1e9..1e9)).prop_map(|(x, y)| Kind::Fields { x, y }),
        any::<Option<i64>>().prop_map(Kind::Maybe),
        ".*".prop_map(Kind::Name),
    ];
    leaf.prop_recursive(8, 64, 1, |inner| {
        inner.prop_map(|kind| Kind::Nested(Box::new(kind)))
    })
}

proptest! {
    #[test]
    fn any_value_is_read_back_as_what_it_was(
        kinds in proptest::collection::vec(kinds(), 0..5),
        map in proptest::collection::hash_map(".*", any::<(i128, u64, bool, char)>(), 0..5),
        bytes in any::<Vec<u8>>(),
        numbers in any::<(u8, i16, u32, u128, Option<f32>)>(),
    ) {
        type All = (Vec<Kind>, HashMap<String, (i128, u64, bool, char)>, Blob, (u8, i16, u32, u128, Option<f32>));
        let value: All = (kinds, map, Blob::from(bytes), numbers);
        let again: All = back(&value);
        prop_assert_eq!((again.0, again.1, again.2), (value.0, value.1, value.2));
        prop_assert_eq!(format!("{:?}", again.3), format!("{:?}", value.3));
    }
}
