//! Values as PyTorch's C++ writes them. The bytes are from `torch._C._pickle_save` of torch 2.15, which writes
//! values that are used nowhere else.

use crate::pickle::PickleError;
use crate::rpc::{Fork, GlobalId, JitValue, JitWriter, RpcError};

fn text(text: &str) -> JitValue {
    JitValue::Text(text.to_owned())
}

fn list(items: Vec<JitValue>, type_name: &str) -> JitValue {
    let type_name = type_name.to_owned();
    JitValue::List { items, type_name }
}

fn dict(key: &str, value: JitValue, type_name: &str) -> JitValue {
    JitValue::Dict {
        items: vec![(text(key), value)],
        type_name: type_name.to_owned(),
    }
}

fn cpu() -> JitValue {
    JitValue::Device("cpu".to_owned())
}

#[test]
fn values_are_written_as_pytorch_writes_them_and_read_again() {
    let values: Vec<(JitValue, &[u8])> = vec![
        (JitValue::None, b"\x80\x02N."),
        (JitValue::Bool(true), b"\x80\x02\x88."),
        (JitValue::Int(1 << 40), b"\x80\x02\x8a\x08\0\0\0\0\0\x01\0\0."),
        (text("x"), b"\x80\x02X\x01\0\0\0xq\0."),
        (JitValue::Bytes(vec![0xff]), b"\x80\x02X\x01\0\0\0\xffq\0."),
        (JitValue::Tuple(vec![]), b"\x80\x02)."),
        (JitValue::Tuple(vec![JitValue::Int(1)]), b"\x80\x02K\x01\x85."),
        (
            JitValue::BoolList(vec![true, false]),
            b"\x80\x02ctorch.jit._pickle\nbuild_boollist\nq\0(](\x88\x89etR.",
        ),
        (
            JitValue::IntList(vec![1, 2]),
            b"\x80\x02ctorch.jit._pickle\nbuild_intlist\nq\0(](K\x01K\x02etR.",
        ),
        (
            JitValue::FloatList(vec![1.5]),
            b"\x80\x02ctorch.jit._pickle\nbuild_doublelist\nq\0(](G\x3f\xf8\0\0\0\0\0\0etR.",
        ),
        (
            JitValue::Complex {
                real: 1.0,
                imaginary: 2.0,
            },
            b"\x80\x02cbuiltins\ncomplex\nq\0G\x3f\xf0\0\0\0\0\0\0G\x40\0\0\0\0\0\0\0\x86R.",
        ),
        (
            JitValue::Tuple(vec![cpu(), cpu()]),
            b"\x80\x02ctorch\ndevice\nq\0X\x03\0\0\0cpuq\x01\x85Rq\x02h\x02\x86.",
        ),
        (
            list(vec![text("a")], "List[str]"),
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\0](X\x01\0\0\0aq\x01eX\x09\0\0\0List[str]q\x02\x86R.",
        ),
        (
            dict("a", JitValue::IntList(vec![1]), "Dict[str, List[int]]"),
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\0}(X\x01\0\0\0aq\x01\
              ctorch.jit._pickle\nbuild_intlist\nq\x02(](K\x01etRuX\x14\0\0\0Dict[str, List[int]]q\x03\x86R.",
        ),
        (
            list(
                vec![JitValue::IntList(vec![1, 2]), JitValue::IntList(vec![3])],
                "List[List[int]]",
            ),
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\0](ctorch.jit._pickle\nbuild_intlist\nq\x01\
              (](K\x01K\x02etRh\x01(](K\x03etReX\x0f\0\0\0List[List[int]]q\x02\x86R.",
        ),
        (
            dict(
                "k",
                JitValue::Tuple(vec![JitValue::Int(1), JitValue::Float(2.0)]),
                "Dict[str, Tuple[int, float]]",
            ),
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\0}(X\x01\0\0\0kq\x01K\x01G\x40\0\0\0\0\0\0\0\x86u\
              X\x1c\0\0\0Dict[str, Tuple[int, float]]q\x02\x86R.",
        ),
        (
            list(vec![cpu()], "List[Device]"),
            b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nq\0](ctorch\ndevice\nq\x01X\x03\0\0\0cpuq\x02\x85Rq\x03e\
              X\x0c\0\0\0List[Device]q\x04\x86R.",
        ),
    ];
    for (value, expected) in values {
        let mut writer = JitWriter::new();
        writer.value(&value);
        let written = writer.finish();
        assert_eq!(written, expected, "{value:?}: {}", written.escape_ascii());
        assert_eq!(JitValue::decode(expected), Ok(value));
    }
}

#[test]
fn a_tensor_that_is_used_twice_is_written_once() {
    let value = JitValue::TensorList(vec![0, 1, 0]);
    let expected = b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\nq\0(](\
        ctorch.jit._pickle\nbuild_tensor_from_id\nq\x01(K\0tRq\x02h\x01(K\x01tRq\x03h\x02etRq\x04.";
    assert_eq!(
        value.encode(),
        expected,
        "{}",
        value.encode().escape_ascii()
    );
    assert_eq!(JitValue::decode(expected), Ok(value));
}

#[test]
fn a_reference_is_written_as_its_seven_parts() {
    let value = JitValue::RRef(Fork {
        owner: 1,
        rref: GlobalId::new(0, 27),
        fork: GlobalId::new(0, 1 << 40),
        parent: 0,
        type_name: "Tensor".to_owned(),
    });
    let expected = b"\x80\x02ctorch.distributed.rpc\nrref\nq\0(\
        K\x01K\0K\x1bK\0\x8a\x08\0\0\0\0\0\x01\0\0K\0X\x06\0\0\0Tensorq\x01tRq\x02.";
    assert_eq!(
        value.encode(),
        expected,
        "{}",
        value.encode().escape_ascii()
    );
    assert_eq!(JitValue::decode(expected), Ok(value));
}

#[test]
fn an_object_of_a_class_is_refused_by_its_name() {
    for pickle in [
        &b"\x80\x02c__torch__\nCounter\n)\x81}b."[..],
        b"\x80\x02c__torch__\nCounter\n)R.",
        b"\x80\x02K\0Q.",
        b"\x80\x02\x8f.",
    ] {
        let found = JitValue::decode(pickle);
        assert!(matches!(found, Err(RpcError::Unsupported(_))), "{found:?}");
    }
    let error = JitValue::decode(b"\x80\x02c__torch__\nCounter\n)R.").err();
    let text = error.map(|error| error.to_string()).unwrap_or_default();
    assert!(text.contains("__torch__.Counter"), "{text}");
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    for pickle in [
        &b"\x80\x02ctorch.jit._pickle\nbuild_tensor_from_id\n(J\xff\xff\xff\xfftR."[..],
        b"\x80\x02ctorch.jit._pickle\nbuild_tensor_from_id\n(K\0K\0tR.",
        b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n(](NetR.",
        b"\x80\x02ctorch.jit._pickle\nbuild_doublelist\n(](K\x01etR.",
        b"\x80\x02ctorch.jit._pickle\nbuild_boollist\n(](K\x01etR.",
        b"\x80\x02ctorch.jit._pickle\nbuild_tensorlist\n(](K\x01etR.",
        b"\x80\x02ctorch.jit._pickle\nrestore_type_tag\nK\x01X\0\0\0\0\x86R.",
        b"\x80\x02ctorch.distributed.rpc\nrref\n(K\x01tR.",
        b"\x80\x02ctorch\ndevice\n(K\x01tR.",
        b"\x80\x02N",
    ] {
        assert!(
            JitValue::decode(pickle).is_err(),
            "{}",
            pickle.escape_ascii()
        );
    }
}

#[test]
fn a_value_that_is_too_deep_is_refused() {
    let mut value = JitValue::None;
    for _ in 0..200 {
        value = JitValue::Tuple(vec![value]);
    }
    let error = RpcError::Pickle(PickleError::TooLarge);
    assert_eq!(JitValue::decode(&value.encode()), Err(error));
}
