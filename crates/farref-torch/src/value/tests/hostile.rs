//! What no correct peer sends (VC-1): values without end, without bottom, and with things that did not come.

use farref_testkit::thorough;

use super::*;
use crate::pickle::Writer;
use crate::rpc::tensors::Dtype;
use crate::rpc::write_tensor;

/// A list in a list in a list ..
fn deep(levels: usize) -> Vec<u8> {
    let opcodes = [
        &[b']'; 1].repeat(levels)[..],
        &b"a".repeat(levels - 1),
        b".",
    ]
    .concat();
    [&[0x80, 4], &opcodes[..]].concat()
}

/// A tuple of two of itself of two of itself ..: without end in a few bytes.
fn shared(levels: usize) -> Vec<u8> {
    let mut writer = Writer::new(4);
    writer.int(1);
    for _ in 0..levels {
        let number = writer.memoize();
        writer.recall(number).tuple_of(2);
    }
    writer.finish()
}

/// The same with a type of its own for each way to read.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Anything {
    Many(#[allow(dead_code)] Vec<Self>),
    Number(#[allow(dead_code)] i64),
}

#[derive(Debug, Deserialize)]
struct List(#[allow(dead_code)] Vec<Self>);

#[test]
fn how_deep_values_nest_is_limited() {
    assert!(try_read::<PyValue>(&pickled(&deep(100))).is_ok());
    for levels in [200, 10_000, if thorough() { 1_000_000 } else { 100_000 }] {
        let pickle = deep(levels);
        assert!(error::<PyValue>(&pickle).contains("too deep or too large"));
        assert!(error::<List>(&pickle).contains("too deep or too large"));
        // What is not looked at costs nothing.
        assert!(try_read::<serde::de::IgnoredAny>(&pickled(&pickle)).is_ok());
    }
}

#[test]
fn what_is_shared_is_paid_for_as_often_as_it_is_used() {
    assert!(try_read::<PyValue>(&pickled(&shared(8))).is_ok());
    for levels in [20, 40, 100] {
        let pickle = shared(levels);
        assert!(pickle.len() < 1000);
        assert!(error::<PyValue>(&pickle).contains("too deep or too large"));
        assert!(error::<Anything>(&pickle).contains("too deep or too large"));
    }
}

/// A long text, again and again.
#[test]
fn a_shared_text_is_paid_for_by_its_length() {
    let mut writer = Writer::new(4);
    writer.empty_list().mark().text(&[b'x'; 1 << 20]);
    let number = writer.memoize();
    for _ in 0..10_000 {
        writer.recall(number);
    }
    writer.appends();
    let pickle = writer.finish();
    assert!(error::<Vec<String>>(&pickle).contains("too deep or too large"));
    assert!(error::<PyValue>(&pickle).contains("too deep or too large"));
}

/// The same for a name.
#[test]
fn a_shared_name_is_paid_for_by_its_length() {
    let mut writer = Writer::new(4);
    writer
        .empty_list()
        .mark()
        .global("module", &"x".repeat(1 << 20));
    let number = writer.memoize();
    for _ in 0..10_000 {
        writer.recall(number);
    }
    writer.appends();
    let pickle = writer.finish();
    assert!(error::<PyValue>(&pickle).contains("too deep or too large"));
    assert!(error::<Vec<String>>(&pickle).contains("too deep or too large"));
}

/// The steps that every walk may take, however short the pickle.
const FLOOR: usize = 1 << 18;

/// PK-4: a large value is no mischief, whatever it is read as.
#[test]
fn large_values_that_share_nothing_pass() {
    // So many that a walk takes more than `FLOOR` steps, and the length of the pickle counts, if
    // each takes so many steps at least: one with the list that it is in, the others by itself.
    let many = |steps: usize| match thorough() {
        true => 500_000,
        false => FLOOR / steps + 1,
    };
    let (items, options, lists, pairs) = (many(6), many(2), many(3), many(12));
    let list = |count: usize, opcodes: &[u8]| {
        let items = opcodes.repeat(count);
        [b"\x80\x04](", &items[..], b"e."].concat()
    };
    for item in [
        &b"N"[..],
        b"\x88",
        b"K\x07",
        b")",
        b"]",
        b"}",
        b"C\x00",
        b"\x8c\x00",
    ] {
        let value: PyValue = read(&list(items, item));
        assert!(
            matches!(value, PyValue::List(all) if all.len() == items),
            "{item:?}"
        );
    }
    assert_eq!(read::<Vec<bool>>(&list(items, b"\x88")).len(), items);
    assert_eq!(read::<Vec<u8>>(&list(items, b"K\x07")).len(), items);
    assert_eq!(read::<Vec<String>>(&list(items, b"\x8c\x00")).len(), items);
    let numbers: Vec<Option<i64>> = read(&list(options, b"N"));
    assert_eq!(numbers.len(), options);
    assert_eq!(read::<Vec<Vec<i64>>>(&list(lists, b"]")).len(), lists);
    let dict = [b"\x80\x04}(", &b"K\x07N".repeat(pairs)[..], b"u."].concat();
    assert_eq!(read::<Vec<(i64, ())>>(&dict).len(), pairs);
    assert!(matches!(read::<PyValue>(&dict), PyValue::Dict(all) if all.len() == pairs));
    let points = list(pairs, b"K\x07G\x40\x04\x00\x00\x00\x00\x00\x00\x86");
    assert_eq!(read::<Vec<Point>>(&points).len(), pairs);
}

/// A value with these tensors in it, by their places.
fn tensors(places: &[usize], entries: Vec<TensorEntry>) -> Body {
    let mut writer = Writer::new(4);
    writer.empty_list().mark();
    places
        .iter()
        .for_each(|&place| write_tensor(&mut writer, place));
    writer.appends();
    Body {
        pickle: writer.finish(),
        tensors: entries,
        ..Body::default()
    }
}

fn entry(dtype: Dtype, shape: &[usize], data: TensorData) -> TensorEntry {
    TensorEntry {
        dtype,
        shape: shape.to_vec(),
        requires_grad: false,
        link: None,
        data,
    }
}

fn number() -> TensorEntry {
    entry(Dtype::Byte, &[1], TensorData::Here(1, vec![7]))
}

#[test]
fn a_tensor_that_did_not_come_is_an_error() {
    for places in [&[1][..], &[0, 1], &[usize::MAX]] {
        let body = tensors(places, vec![number()]);
        let missing = try_read::<Vec<RawTensor>>(&body).unwrap_err();
        assert!(missing.contains("did not come with the value"), "{missing}");
        assert!(try_read::<PyValue>(&body).is_err());
    }
    let negative = {
        let mut writer = Writer::new(2);
        writer.global("torch.jit._pickle", "build_tensor_from_id");
        writer.int(-1).tuple_of(1).reduce();
        pickled(&writer.finish())
    };
    assert!(try_read::<RawTensor>(&negative).is_err());
}

#[test]
fn the_same_tensor_may_be_there_twice() {
    let body = tensors(&[0, 0, 0], vec![number()]);
    let all: Vec<RawTensor> = try_read(&body).unwrap();
    for tensor in all {
        assert_eq!(tensor.data.into_vec::<u8>().unwrap(), [7]);
    }
}

/// Parts that are not there: outside of a call there are none at all.
#[test]
fn parts_that_did_not_come_are_an_error() {
    for parts in [vec![], vec![0], vec![u32::MAX]] {
        let body = tensors(
            &[0],
            vec![entry(Dtype::Byte, &[1], TensorData::Parts(parts))],
        );
        assert!(try_read::<Vec<RawTensor>>(&body).is_err());
    }
    for id in [-1, 0, i64::MIN, i64::MAX] {
        let mut writer = Writer::new(4);
        writer.int(id).persistent();
        let body = pickled(&writer.finish());
        assert!(try_read::<farref::Blob>(&body).is_err(), "{id}");
        assert!(try_read::<farref::RRef<i64>>(&body).is_err(), "{id}");
        assert!(try_read::<PyValue>(&body).is_err(), "{id}");
        assert!(try_read::<i64>(&body).is_err(), "{id}");
    }
}

#[test]
fn a_tensor_that_does_not_have_its_bytes_is_an_error() {
    let wrong = entry(Dtype::Float, &[2], TensorData::Here(4, vec![0; 7]));
    let body = tensors(&[0], vec![wrong]);
    assert!(try_read::<Vec<farref_autograd::Tensor>>(&body).is_err());
    let huge = entry(
        Dtype::Float,
        &[usize::MAX, 2],
        TensorData::Here(4, vec![0; 8]),
    );
    let body = tensors(&[0], vec![huge]);
    assert!(try_read::<Vec<farref_autograd::Tensor>>(&body).is_err());
    let complex = entry(Dtype::ComplexFloat, &[1], TensorData::Here(8, vec![0; 8]));
    let body = tensors(&[0], vec![complex]);
    let error = try_read::<Vec<farref_autograd::Tensor>>(&body).unwrap_err();
    assert!(
        error.contains("take a `farref_torch::RawTensor`"),
        "{error}"
    );
}

/// Calls whose parts are not what they should be.
#[test]
fn calls_of_the_wrong_form_are_errors() {
    let made = |module: &str, name: &str, fill: &dyn Fn(&mut Writer)| {
        let mut writer = Writer::new(4);
        writer.global(module, name);
        fill(&mut writer);
        writer.reduce();
        writer.finish()
    };
    for (module, name) in [
        ("builtins", "set"),
        ("builtins", "bytearray"),
        ("builtins", "getattr"),
        ("collections", "deque"),
        ("collections", "OrderedDict"),
        ("collections", "Counter"),
        ("torch", "Size"),
        ("torch._utils", "_rebuild_parameter"),
        ("torch.jit._pickle", "build_tensor_from_id"),
        ("torch.jit._pickle", "restore_type_tag"),
        ("shop", "Point"),
    ] {
        for fill in [
            &(|writer: &mut Writer| {
                writer.int(1);
            }) as &dyn Fn(&mut Writer),
            &|writer| {
                writer.tuple_of(0);
            },
            &|writer| {
                writer.int(1).tuple_of(1);
            },
            &|writer| {
                writer.none().none().none().tuple_of(3);
            },
        ] {
            let body = pickled(&made(module, name, fill));
            // None of them panics; most are errors.
            drop(try_read::<PyValue>(&body));
            drop(try_read::<Point>(&body));
            drop(try_read::<(i64, i64)>(&body));
            drop(try_read::<farref::Blob>(&body));
            drop(try_read::<Vec<i64>>(&body));
            assert!(try_read::<RawTensor>(&body).is_err());
            assert!(try_read::<Point>(&body).is_err(), "{name}");
        }
    }
}

/// A text that is none.
#[test]
fn a_text_that_is_not_utf_8_is_bytes_and_no_text() {
    let pickle = b"\x80\x04\x8c\x02\xff\xfe.";
    assert!(error::<String>(pickle).contains("not UTF-8"));
    assert!(error::<PyValue>(pickle).contains("not UTF-8"));
    assert_eq!(
        read::<farref::Blob>(pickle),
        farref::Blob::from(vec![0xff, 0xfe])
    );
}

#[test]
fn bytes_that_are_no_value_are_an_error() {
    for bytes in [&b"."[..], b"N", b"N..", b"\x80\x09N.", b"\x00"] {
        assert!(try_read::<PyValue>(&pickled(bytes)).is_err(), "{bytes:?}");
    }
    let codec = PickleCodec::default();
    let nothing = &mut |_: &mut dyn erased_serde::Deserializer<'_>| Ok(());
    assert!(codec.decode(&[0xff; 40], nothing).is_err());
}
