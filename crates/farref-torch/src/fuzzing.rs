//! Entry points for fuzzers. Each takes any bytes at all and must neither panic, nor hang, nor take more than in
//! proportion to the bytes; and what it reads must come out the same when it is written and read again.
//!
//! The targets in `fuzz/` call them, through the feature `fuzzing`; the tests below call each for a moment, with
//! bytes that are more likely than others to mean something. `PROPTEST_CASES` makes the moment longer.

use std::collections::BTreeMap;

use farref::{Blob, Buffer, CodecError, RRef, ValueCodec};
use farref_autograd::Tensor;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::pickle::{Pickle, PickleError, Shape, View};
use crate::pipe::{Answer, Brochure, Descriptor, Greeting};
use crate::rpc::tensors::{Dtype, ListedTensor, TensorView, gather, read_list, write_list};
use crate::rpc::{
    JitValue, Kind, Message, Named, RemoteException, ScriptCall, Udf, WorkerInfo, read_rref,
    read_tensor, write_script_call,
};
use crate::value::{Body, Form, PickleCodec, PyValue, RawTensor, TensorData, TensorEntry};

/// How many bytes a tensor may be spelled out to here.
const LIMIT: usize = 1 << 16;

/// Any pickle, and the objects of Python's in it.
pub fn pickles(data: &[u8]) {
    let Ok((pickle, rest)) = Pickle::read_first(data) else {
        return;
    };
    let bytes = data.len() - rest.len();
    assert!(pickle.size() <= bytes, "PK-2: {} nodes", pickle.size());
    let budget = pickle.budget();
    let most = budget.get();
    let mut steps = 0;
    drop(visit(pickle.view(&budget), &mut steps));
    assert!(steps <= most, "PK-3: {steps} steps");

    let budget = pickle.budget();
    drop(recognise(pickle.view(&budget)));
    if let Ok(value) = JitValue::read(pickle.view(&pickle.budget())) {
        same_value(&value);
    }
}

/// Looks at all of a value, and counts the parts that could be looked at.
fn visit(view: View<'_, '_>, steps: &mut usize) -> Result<(), PickleError> {
    let shape = view.shape()?;
    *steps += 1;
    match shape {
        Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
            items.into_iter().try_for_each(|item| visit(item, steps))
        }
        Shape::Dict(items) => items.into_iter().try_for_each(|(key, value)| {
            visit(key, steps)?;
            visit(value, steps)
        }),
        Shape::Call {
            callee,
            arguments,
            state,
            items,
        } => {
            visit(callee, steps)?;
            visit(arguments, steps)?;
            let more = state.into_iter().chain(items);
            more.into_iter().try_for_each(|part| visit(part, steps))
        }
        Shape::Persistent(id) => visit(id, steps),
        _ => Ok(()),
    }
}

/// Tries everything that a value could be, and goes on with what is in a call.
fn recognise(view: View<'_, '_>) -> Result<(), PickleError> {
    drop(Named::read(view));
    drop(read_tensor(view));
    drop(read_rref(view));
    drop(RemoteException::read(view));
    drop(WorkerInfo::read(view));
    if let Ok(call) = Udf::read(view) {
        for argument in call.arguments.tuple()? {
            recognise(argument)?;
        }
        return recognise(call.keywords);
    }
    match view.shape()? {
        Shape::Tuple(items) | Shape::List(items) => items.into_iter().try_for_each(recognise),
        _ => Ok(()),
    }
}

fn same_value(value: &JitValue) {
    let written = value.encode();
    match JitValue::decode(&written) {
        // Not compared as values: there are floats that are not equal to themselves.
        Ok(again) => assert_eq!(again.encode(), written),
        Err(error) => panic!("{value:?} cannot be read again: {error}"),
    }
}

/// Any message: the first byte says of which type.
pub fn messages(data: &[u8]) {
    let Some((first, payload)) = data.split_first() else {
        return;
    };
    message(Kind::ALL[usize::from(*first) % Kind::ALL.len()], payload, 0);
}

fn message(kind: Kind, payload: &[u8], depth: u32) {
    assert!(depth < 3, "RM-3");
    let Ok(read) = Message::decode(kind, payload) else {
        return;
    };
    let (written_kind, written) = read.encode();
    assert_eq!(written_kind, kind);
    match Message::decode(kind, &written) {
        Ok(again) => assert_eq!(again.encode(), (kind, written)),
        Err(error) => panic!("{read:?} cannot be read again: {error}"),
    }
    match read {
        Message::ScriptCall(call) | Message::ScriptRemoteCall { call, .. } => same_call(&call),
        Message::ScriptRet { value } => {
            if let Ok(value) = JitValue::decode(value) {
                same_value(&value);
            }
        }
        Message::ScriptFetchRet { value } => {
            if let Ok(value) = JitValue::decode_fetched(value) {
                let written = value.encode_fetched();
                let again = JitValue::decode_fetched(&written);
                let again = again.map(|value| value.encode_fetched());
                assert_eq!(again, Ok(written));
            }
        }
        Message::PythonCall { udf: pickle, .. }
        | Message::PythonRemoteCall { udf: pickle, .. }
        | Message::PythonRet { value: pickle }
        | Message::PythonFetchRet { value: pickle, .. } => pickles(pickle),
        Message::Forward { kind, inner, .. } | Message::Profiled { kind, inner, .. } => {
            message(kind, inner, depth + 1);
        }
        _ => {}
    }
}

fn same_call(call: &ScriptCall<'_>) {
    let Ok(arguments) = call.read_arguments() else {
        return;
    };
    let written = write_script_call(call.target, &arguments, None);
    match Message::decode(Kind::ScriptCall, &written) {
        Ok(Message::ScriptCall(again)) => {
            assert_eq!(again.target, call.target);
            let arguments = again.read_arguments().unwrap_or_default();
            assert_eq!(write_script_call(again.target, &arguments, None), written);
        }
        other => panic!("{call:?} cannot be read again: {other:?}"),
    }
}

/// Any value, read as Python's data and as some types: the first byte says where in the pickle it is.
pub fn values(data: &[u8]) {
    let Some((first, pickle)) = data.split_first() else {
        return;
    };
    let forms = [
        Form::Whole,
        Form::Udf,
        Form::Method,
        Form::RustMethod,
        Form::Head(2),
        Form::Only,
        Form::Nothing,
        Form::Proxied,
    ];
    let number = |dtype, size: usize| TensorEntry {
        dtype,
        shape: vec![2],
        requires_grad: false,
        link: None,
        data: TensorData::Here(size as u8, vec![1; 2 * size]),
    };
    let body = Body {
        form: forms[usize::from(*first) % forms.len()],
        pickle: pickle.to_vec(),
        tensors: vec![number(Dtype::Float, 4), number(Dtype::Bool, 1)],
        ..Body::default()
    };
    let Ok(bytes) = body.encode() else {
        return;
    };
    drop(read_value::<(PyValue, Option<PyValue>)>(&bytes));
    drop(read_value::<Vec<PyValue>>(&bytes));
    drop(read_value::<Typed>(&bytes));
    drop(read_value::<Vec<Typed>>(&bytes));
    drop(read_value::<BTreeMap<String, (Blob, Either)>>(&bytes));
    drop(read_value::<(Tensor, RawTensor, RRef<i64>)>(&bytes));
    drop(read_value::<(i128, u128, f32, char)>(&bytes));
    drop(read_value::<()>(&bytes));
    drop(read_value::<IgnoredAny>(&bytes));
    let Ok(value) = read_value::<PyValue>(&bytes) else {
        return;
    };
    if has_odd_name(&value) {
        return; // a colon or a line break in a name has another meaning when that is written
    }
    let codec = PickleCodec::default();
    let Ok(written) = codec.encode(&value) else {
        return;
    };
    match read_value::<PyValue>(&written) {
        Ok(again) => assert_eq!(format!("{again:?}"), format!("{value:?}"), "VC-2"),
        // What nests almost too deep may do so altogether when it is written in another way.
        Err(error) => assert!(error.to_string().contains("too deep"), "{value:?}: {error}"),
    }
}

#[derive(Deserialize)]
#[allow(dead_code)]
struct Typed {
    x: Option<i64>,
    y: f64,
    more: Option<Box<Self>>,
    either: Vec<Either>,
}

#[derive(Deserialize)]
#[allow(dead_code)]
enum Either {
    Plain,
    One(Buffer),
    Several(u8, String),
    Fields { flag: bool },
}

fn read_value<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, CodecError> {
    let mut value = None;
    PickleCodec::default().decode(bytes, &mut |deserializer| {
        value = Some(erased_serde::deserialize(deserializer)?);
        Ok(())
    })?;
    value.ok_or_else(|| CodecError::new("it was not read"))
}

fn has_odd_name(value: &PyValue) -> bool {
    match value {
        PyValue::Name(name) => name.contains([':', '\n']),
        PyValue::List(items) | PyValue::Tuple(items) | PyValue::Set(items) => {
            items.iter().any(has_odd_name)
        }
        PyValue::Dict(pairs) => pairs
            .iter()
            .any(|(key, value)| has_odd_name(key) || has_odd_name(value)),
        _ => false,
    }
}

/// Any list of tensors: the first byte says how many bytes there are of each storage.
pub fn tensor_lists(data: &[u8]) {
    let Some((first, list)) = data.split_first() else {
        return;
    };
    let Ok(tensors) = read_list(list) else {
        return;
    };
    let storage = vec![1; usize::from(*first)];
    for tensor in &tensors {
        match tensor {
            ListedTensor::Dense(view) | ListedTensor::Quantized { view, .. } => {
                spell_out(view, &storage);
            }
            ListedTensor::SparseCoo {
                indices, values, ..
            } => {
                spell_out(indices, &storage);
                spell_out(values, &storage);
            }
            ListedTensor::SparseCsr { rows, columns, .. } => {
                spell_out(rows, &storage);
                spell_out(columns, &storage);
            }
            ListedTensor::Unsupported(_) => {}
        }
    }
    if let Ok(written) = write_list(&tensors) {
        match read_list(&written) {
            // Storages that differ under one number are one storage afterwards.
            Ok(again) => assert_eq!(again.len(), tensors.len()),
            Err(error) => panic!("{tensors:?} cannot be read again: {error}"),
        }
    }
}

fn spell_out(view: &TensorView, storage: &[u8]) {
    if let Ok(gathered) = gather(view, storage, LIMIT) {
        let bytes = view.count().map(|count| count * view.dtype.size());
        assert!(gathered.len() <= LIMIT);
        assert_eq!(Some(gathered.len()), bytes);
        if view.is_whole(storage.len()) {
            assert_eq!(gathered, storage);
        }
    }
}

/// Any object of TensorPipe's: descriptors, greetings, brochures, answers.
pub fn objects(data: &[u8]) {
    if let Ok(read) = Descriptor::decode(data) {
        assert!(read.tensors.len() <= data.len(), "NP-1");
        let again = Descriptor::decode(&read.encode());
        assert_eq!(again.map(|again| again.payloads), Ok(read.payloads));
    }
    if let Ok(read) = Greeting::decode(data) {
        assert_eq!(Greeting::decode(&read.encode()), Ok(read));
    }
    if let Ok(read) = Brochure::decode(data) {
        let _ = read.has_ours();
        assert_eq!(Brochure::decode(&read.encode()), Ok(read));
    }
    if let Ok(read) = Answer::decode(data) {
        assert_eq!(Answer::decode(&read.encode()), Ok(read));
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::{seeds, thorough};
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;
    use crate::vectors;

    fn exercise<S: Strategy>(inputs: &S, entry: impl Fn(S::Value)) {
        let mut runner = TestRunner::new(Config {
            cases: if thorough() { 1024 } else { 32 },
            failure_persistence: None,
            ..Config::default()
        });
        let outcome = runner.run(inputs, |input| {
            entry(input);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("{error}");
        }
    }

    /// Also that which fuzzers found.
    #[test]
    fn the_fuzzers_inputs_make_nobody_panic() {
        let all = |target: &str, entry: fn(&[u8])| {
            seeds(target).iter().for_each(|seed| entry(seed.bytes));
        };
        all("torch_pickles", pickles);
        all("torch_messages", messages);
        all("torch_values", values);
        all("torch_tensor_lists", tensor_lists);
        all("torch_objects", objects);
        all("torch_group", crate::__fuzz::group);
        all("torch_gloo", crate::__fuzz::gloo);
    }

    /// PK-3: each is a call of the one before with the one before, so that parts double, and each costs one step: the budget is used up
    /// to the last. A fuzzer found that the step which could not be paid was counted.
    #[test]
    fn a_walk_takes_no_more_steps_than_its_budget_also_if_it_uses_it_up() {
        let mut pickle = b"\x80\x02Nq\0".to_vec();
        for number in 0..20 {
            pickle.extend([b'0', b'h', number, b'h', number, b'R', b'q', number + 1]);
        }
        pickle.push(b'.');
        pickles(&pickle);
        let of_python = Kind::ALL.iter().position(|kind| *kind == Kind::PythonRet);
        let kind = of_python.and_then(|at| u8::try_from(at).ok());
        pickle.insert(0, kind.expect("there is such a kind"));
        messages(&pickle);
    }

    /// Opcodes are worth more than other bytes, and so are small numbers.
    fn likely() -> impl Strategy<Value = u8> {
        let opcodes =
            b"(.012GJKMNQRTUXabcdehjlqrstu}])\x80\x81\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\
            \x8e\x8f\x90\x91\x92\x93\x94\x95\x96BC\n";
        prop_oneof![
            6 => proptest::sample::select(&opcodes[..]),
            3 => 0..4_u8,
            1 => any::<u8>(),
        ]
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        proptest::collection::vec(likely(), 0..200)
    }

    /// What is done to bytes that mean something. Places are taken modulo what there is.
    #[derive(Clone, Debug)]
    enum Change {
        Set(usize, u8),
        Insert(usize, u8),
        Remove(usize, usize),
        Repeat(usize, usize),
        /// Bytes of another one.
        Splice(usize, usize, usize, usize),
        Cut(usize),
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let at = any::<usize>;
        let change = prop_oneof![
            4 => (at(), likely()).prop_map(|(at, byte)| Change::Set(at, byte)),
            3 => (at(), likely()).prop_map(|(at, byte)| Change::Insert(at, byte)),
            2 => (at(), 1..20_usize).prop_map(|(at, length)| Change::Remove(at, length)),
            2 => (at(), 1..80_usize).prop_map(|(at, length)| Change::Repeat(at, length)),
            2 => (at(), at(), at(), 1..200_usize)
                .prop_map(|(at, other, from, length)| Change::Splice(at, other, from, length)),
            1 => at().prop_map(Change::Cut),
        ];
        proptest::collection::vec(change, 0..8)
    }

    fn changed(all: &[Vec<u8>], which: usize, changes: &[Change]) -> Vec<u8> {
        let mut bytes = all[which % all.len()].clone();
        for change in changes {
            let place = |at: usize, length: usize| at % (length + 1);
            let range = |at: usize, length: usize, of: usize| {
                let begin = place(at, of);
                begin..(begin + length).min(of)
            };
            match change {
                Change::Set(at, byte) if !bytes.is_empty() => {
                    let at = at % bytes.len();
                    bytes[at] = *byte;
                }
                Change::Set(..) => {}
                Change::Insert(at, byte) => bytes.insert(place(*at, bytes.len()), *byte),
                Change::Remove(at, length) => {
                    bytes.drain(range(*at, *length, bytes.len()));
                }
                Change::Repeat(at, length) => {
                    let range = range(*at, *length, bytes.len());
                    let part = bytes[range.clone()].to_vec();
                    bytes.splice(range.end..range.end, part);
                }
                Change::Splice(at, other, from, length) => {
                    let other = &all[other % all.len()];
                    let part = other[range(*from, *length, other.len())].to_vec();
                    let at = place(*at, bytes.len());
                    bytes.splice(at..at, part);
                }
                Change::Cut(at) => bytes.truncate(place(*at, bytes.len())),
            }
        }
        bytes
    }

    /// Calls an entry point with captured bytes that were changed a little.
    fn exercise_changed(all: &[Vec<u8>], entry: fn(&[u8])) {
        assert!(!all.is_empty());
        for bytes in all {
            entry(bytes);
        }
        exercise(&(any::<usize>(), changes()), |(which, changes)| {
            entry(&changed(all, which, &changes));
        });
    }

    fn captured(look: impl Fn(&vectors::Captured) -> Option<Vec<u8>>) -> Vec<Vec<u8>> {
        vectors::messages().iter().filter_map(look).collect()
    }

    #[test]
    fn no_bytes_make_the_machine_for_pickles_panic() {
        exercise(&bytes(), |bytes| pickles(&bytes));
    }

    #[test]
    fn no_bytes_make_the_reader_of_messages_panic() {
        exercise(&bytes(), |bytes| messages(&bytes));
    }

    #[test]
    fn no_bytes_make_the_reader_of_values_panic() {
        exercise(&bytes(), |bytes| values(&bytes));
    }

    #[test]
    fn no_changed_value_makes_its_reader_panic() {
        let udf = |udf: &[u8]| [&[1], udf].concat();
        let mut all =
            captured(
                |message| match Message::decode(message.kind, &message.payloads[2]).ok()? {
                    Message::PythonCall { udf: pickle, .. }
                    | Message::PythonRemoteCall { udf: pickle, .. } => Some(udf(pickle)),
                    Message::PythonRet { value } | Message::PythonFetchRet { value, .. } => {
                        Some([&[0], value].concat())
                    }
                    _ => None,
                },
            );
        let made = include_str!("../vectors/values.txt").lines();
        all.extend(made.filter_map(|line| {
            let pickle = line.split(' ').nth(1)?;
            Some([&[0], &vectors::bytes(pickle)[..]].concat())
        }));
        exercise_changed(&all, values);
    }

    #[test]
    fn no_bytes_make_the_reader_of_tensor_lists_panic() {
        exercise(&bytes(), |bytes| tensor_lists(&bytes));
    }

    #[test]
    fn no_bytes_make_the_reader_of_objects_panic() {
        let byte =
            prop_oneof![4 => 0..8_u8, 3 => 0xb8..0xbf_u8, 2 => 0x80..0x88_u8, 1 => any::<u8>()];
        let bytes = proptest::collection::vec(byte, 0..100);
        exercise(&bytes, |bytes| objects(&bytes));
    }

    #[test]
    fn no_changed_pickle_makes_the_machine_panic() {
        let all =
            captured(
                |message| match Message::decode(message.kind, &message.payloads[2]).ok()? {
                    Message::PythonCall { udf: pickle, .. }
                    | Message::PythonRemoteCall { udf: pickle, .. }
                    | Message::PythonFetchRet { value: pickle, .. } => Some(pickle.to_vec()),
                    Message::Exception { .. } => None,
                    _ => Some(message.payloads[2].clone()),
                },
            );
        exercise_changed(&all, pickles);
    }

    #[test]
    fn no_changed_message_makes_its_reader_panic() {
        let all = captured(|message| {
            let place = Kind::ALL.iter().position(|kind| *kind == message.kind)?;
            Some([&[place as u8], &message.payloads[2][..]].concat())
        });
        exercise_changed(&all, messages);
    }

    #[test]
    fn no_changed_tensor_list_makes_its_reader_panic() {
        let all = captured(|message| Some([&[48], &message.payloads[3][..]].concat()));
        exercise_changed(&all, tensor_lists);
    }

    #[test]
    fn no_changed_object_makes_its_reader_panic() {
        let mut all = captured(|message| message.descriptor.clone());
        all.extend(vectors::handshakes().into_iter().map(|(_, _, bytes)| bytes));
        exercise_changed(&all, objects);
    }
}
