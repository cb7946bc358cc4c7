//! The captured bytes are read as what they mean, and come out again as they were (RM-1).

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Captured, handshakes, json, messages};
use crate::pickle::{Pickle, Shape, View};
use crate::pipe::{Answer, Brochure, Descriptor, Greeting};
use crate::rpc::tensors::{ListedTensor, TensorView, gather, read_list, write_list};
use crate::rpc::{
    JitValue, Kind, Message, RemoteException, Udf, WorkerInfo, read_rref, read_tensor,
    write_script_call,
};

#[test]
fn descriptors_come_out_as_tensorpipe_wrote_them() {
    let mut compared = 0;
    for message in messages() {
        let Some(bytes) = &message.descriptor else {
            continue;
        };
        let read = Descriptor::decode(bytes).expect(&message.name);
        assert_eq!(&read.encode(), bytes, "{}", message.name);
        let mut lengths = message
            .payloads
            .each_ref()
            .map(|payload| payload.len() as u64);
        lengths[2] = message.cut.unwrap_or(lengths[2]);
        assert_eq!(read.payloads, lengths, "{}", message.name);
        let tensors = read.tensors.iter().map(|tensor| tensor.bytes);
        let bytes = message.tensor_bytes.iter().map(|bytes| bytes.len() as u64);
        assert!(tensors.eq(bytes), "{}", message.name);
        assert!(read.tensors.iter().all(|tensor| tensor.on_cpu));
        compared += 1;
    }
    assert!(compared > 10, "only {compared} descriptors");
}

#[test]
fn handshakes_come_out_as_tensorpipe_wrote_them() {
    let mut compared = BTreeMap::new();
    for (name, what, bytes) in handshakes() {
        let is_default = name.ends_with("defaults");
        match what.as_str() {
            "hello" | "registration" => {
                let read = Greeting::decode(&bytes).expect(&name);
                assert_eq!(read.encode(), bytes, "{name}");
            }
            "brochure" => {
                let read = Brochure::decode(&bytes).expect(&name);
                assert!(read.has_ours(), "{name}");
                // The order of a map is the sender's.
                assert_eq!(Brochure::decode(&read.encode()), Ok(read.clone()), "{name}");
                assert_eq!(read.encode().len(), bytes.len(), "{name}");
                if !is_default {
                    assert_eq!(read, Brochure::ours(None), "{name}");
                    assert_eq!(read.encode(), bytes, "{name}");
                }
            }
            // An answer to an offer of shared memory.
            "answer" if is_default => assert!(Answer::decode(&bytes).is_err(), "{name}"),
            "answer" => {
                let read = Answer::decode(&bytes).expect(&name);
                assert_eq!(read.encode(), bytes, "{name}");
            }
            other => panic!("{other} is not known"),
        }
        *compared.entry(what).or_insert(0) += 1;
    }
    assert_eq!(compared.len(), 4, "{compared:?}");
}

#[test]
fn every_type_of_message_comes_out_as_pytorch_wrote_it() {
    let mut compared: BTreeMap<&str, usize> = BTreeMap::new();
    for message in messages() {
        let [kind, id, body, _] = &message.payloads;
        assert_eq!(
            kind[..],
            message.kind.code().to_le_bytes(),
            "{}",
            message.name
        );
        assert_eq!(id[..], message.id.to_le_bytes(), "{}", message.name);
        compare(&message.name, message.kind, body, &mut compared);
    }
    eprintln!("compared: {compared:#?}");
    let missing: Vec<_> = Kind::ALL
        .iter()
        .filter(|kind| !compared.contains_key(kind.name()))
        .map(|kind| kind.name())
        .collect();
    assert!(missing.is_empty(), "no captured message is a {missing:?}");
}

/// Reads payload 2, writes it again from what was read, and the messages in it likewise.
fn compare(name: &str, kind: Kind, payload: &[u8], compared: &mut BTreeMap<&str, usize>) {
    let read = Message::decode(kind, payload).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(read.encode(), (kind, payload.to_vec()), "{name}");
    *compared.entry(kind.name()).or_default() += 1;
    match read {
        Message::ScriptCall(call) => {
            let arguments = call.read_arguments().expect(name);
            assert_eq!(arguments.len(), call.arguments, "{name}");
            assert_eq!(
                write_script_call(call.target, &arguments, None),
                payload,
                "{name}"
            );
        }
        Message::ScriptRemoteCall { call, rref, fork } => {
            let arguments = call.read_arguments().expect(name);
            let written = write_script_call(call.target, &arguments, Some((rref, fork)));
            assert_eq!(written, payload, "{name}");
        }
        Message::ScriptRet { value } => {
            let value = JitValue::decode(value).expect(name);
            assert_eq!(value.encode(), payload, "{name}");
        }
        Message::ScriptFetchRet { value } => {
            let value = JitValue::decode_fetched(value).expect(name);
            assert_eq!(value.encode_fetched(), payload, "{name}");
        }
        Message::Forward { kind, inner, .. } | Message::Profiled { kind, inner, .. } => {
            compare(name, kind, inner, compared);
        }
        _ => {}
    }
}

#[test]
fn every_message_means_what_the_capturing_scripts_say() {
    let mut compared = 0;
    for message in messages() {
        let body = meaning(message.kind, &message.payloads[2]);
        let body = json::with_short_tensors(body);
        assert_eq!(body, json::expected(&message.body), "{}", message.name);
        compared += 1;
    }
    assert!(compared > 250, "only {compared} messages");
}

/// What payload 2 means, as the scripts have it.
fn meaning(kind: Kind, payload: &[u8]) -> Value {
    match Message::decode(kind, payload).expect("a message") {
        Message::Ack | Message::BackwardDone | Message::CleanupDone | Message::RRefBackwardDone => {
            Value::Null
        }
        Message::Exception { text } => json!(String::from_utf8_lossy(text)),
        Message::PythonCall { is_async, udf } => {
            json!({"is_async": u8::from(is_async), "udf": json::whole(udf)})
        }
        Message::Forward { kind, inner, .. } | Message::Profiled { kind, inner, .. } => {
            let wrapper = &payload[inner.len()..payload.len() - 8];
            json!({
                "inner_type": kind.name(),
                "inner": meaning(kind, inner),
                "wrapper": json::whole(wrapper),
            })
        }
        _ => json::whole(payload),
    }
}

#[test]
fn calls_of_functions_with_names_are_recognised() {
    let (mut named, mut unnamed) = (0, 0);
    for message in messages() {
        let Ok(Message::PythonCall { udf, .. }) =
            Message::decode(message.kind, &message.payloads[2])
        else {
            continue;
        };
        let pickle = Pickle::read(udf).expect(&message.name);
        let budget = pickle.budget();
        let read = Udf::read(pickle.view(&budget));
        match message.body["udf"]["func"].as_str() {
            Some(function) => {
                let read = read.expect(&message.name);
                let name = format!("{} {}", read.function.module, read.function.name);
                assert_eq!(name, function, "{}", message.name);
                let arguments = read.arguments.tuple().expect(&message.name).len();
                let expected = message.body["udf"]["args"].as_array().expect("arguments");
                assert_eq!(arguments, expected.len(), "{}", message.name);
                named += 1;
            }
            None => {
                assert!(read.is_err(), "{}", message.name);
                unnamed += 1;
            }
        }
    }
    assert!(
        named > 50 && unnamed > 0,
        "{named} with, {unnamed} without a name"
    );
}

#[test]
fn objects_of_python_are_recognised_where_the_capturing_scripts_see_them() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for message in messages() {
        let payload = &message.payloads[2];
        let (pickle, body) = match Message::decode(message.kind, payload).expect("a message") {
            Message::PythonCall { udf, .. } => (udf, &message.body["udf"]),
            Message::PythonRet { value } => (value, &message.body),
            Message::PythonRemoteCall { udf, tensors, .. } => {
                (udf, &message.body["tuple"][tensors]["pickle"])
            }
            // Where the pickle happens to be a text, the scripts show a text.
            Message::PythonFetchRet { value, tensors } if std::str::from_utf8(value).is_err() => {
                (value, &message.body["tuple"][tensors]["pickle"])
            }
            _ => continue,
        };
        let pickle = Pickle::read(pickle).expect(&message.name);
        let budget = pickle.budget();
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        find_objects(pickle.view(&budget), &mut found);
        expect_objects(body, &mut expected);
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{}", message.name);
        for object in found {
            let kind = object.split(' ').next().unwrap_or_default();
            *kinds.entry(kind.to_owned()).or_default() += 1;
        }
    }
    let kinds: Vec<_> = kinds.into_keys().collect();
    assert_eq!(kinds, ["exception", "rref", "tensor", "worker"]);
}

/// The objects in a value, each in a line.
fn find_objects(view: View<'_, '_>, found: &mut Vec<String>) {
    if let Ok(Some(tensor)) = read_tensor(view) {
        return found.push(format!("tensor {tensor}"));
    }
    if let Ok(Some(fork)) = read_rref(view) {
        let (rref, fork_id) = (fork.rref, fork.fork);
        let parts = json!([
            fork.owner,
            rref.on,
            rref.number,
            fork_id.on,
            fork_id.number,
            fork.parent,
            fork.type_name
        ]);
        return found.push(format!("rref {parts}"));
    }
    if let Ok(Some(exception)) = RemoteException::read(view) {
        let class = exception.class.expect("a class");
        let text = String::from_utf8_lossy(exception.text);
        return found.push(format!("exception {} {} {text}", class.module, class.name));
    }
    if let Ok(Some(worker)) = WorkerInfo::read(view) {
        return found.push(format!("worker {} {}", worker.name, worker.id));
    }
    match view.shape().expect("within the budget") {
        Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
            items.into_iter().for_each(|item| find_objects(item, found));
        }
        Shape::Dict(items) => {
            for (key, value) in items {
                find_objects(key, found);
                find_objects(value, found);
            }
        }
        Shape::Call {
            arguments,
            state,
            items,
            ..
        } => {
            let more = state.into_iter().chain(items);
            let parts = std::iter::once(arguments).chain(more);
            parts.for_each(|part| find_objects(part, found));
        }
        _ => {}
    }
}

/// The same, from what the scripts say.
fn expect_objects(body: &Value, expected: &mut Vec<String>) {
    const INTERNAL: &str = "torch.distributed.rpc.internal";
    match body {
        Value::Array(items) => items.iter().for_each(|item| expect_objects(item, expected)),
        Value::Object(fields) => {
            if let Some(tensor) = fields.get("tensor") {
                return expected.push(format!("tensor {tensor}"));
            }
            if let Some(parts) = fields.get("rref") {
                return expected.push(format!("rref {parts}"));
            }
            let class = body["new"]["global"].as_str().unwrap_or_default();
            if class == format!("{INTERNAL} RemoteException") {
                let text = body["args"][0].as_str().expect("a text");
                let class = body["args"][1]["global"].as_str().expect("a class");
                return expected.push(format!("exception {class} {text}"));
            }
            if class == "torch._C._distributed_rpc WorkerInfo" {
                let [name, id] = [0, 1].map(|place| &body["state"]["tuple"][place]);
                let name = name.as_str().expect("a name");
                return expected.push(format!("worker {name} {id}"));
            }
            fields
                .values()
                .for_each(|field| expect_objects(field, expected));
        }
        _ => {}
    }
}

#[test]
fn tensor_lists_come_out_as_pytorch_wrote_them() {
    let mut compared = 0;
    for message in messages() {
        let list = read_list(&message.payloads[3]).expect(&message.name);
        assert_eq!(
            write_list(&list).as_ref(),
            Ok(&message.payloads[3]),
            "{}",
            message.name
        );
        let expected = message.tensors.as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(list.len(), expected.len(), "{}", message.name);
        for (tensor, expected) in list.iter().zip(expected) {
            check_tensor(&message, tensor, expected);
            compared += 1;
        }
    }
    assert!(compared > 80, "only {compared} tensors");
}

fn check_tensor(message: &Captured, tensor: &ListedTensor, expected: &Value) {
    let name = &message.name;
    match tensor {
        ListedTensor::Dense(view) => {
            check_view(message, view, expected);
            let conjugate = expected["more"][0]["args"][0]["dict"][0] == json!(["conj", true]);
            assert_eq!(view.conjugate, conjugate, "{name}");
        }
        ListedTensor::SparseCoo {
            sizes,
            requires_grad,
            indices,
            values,
        } => {
            assert_eq!(expected["sparse"], 1, "{name}");
            assert_eq!(expected["shape"], json!(sizes), "{name}");
            assert_eq!(expected["grad"], json!(requires_grad), "{name}");
            check_view(message, indices, &expected["parts"][0]);
            check_view(message, values, &expected["parts"][1]);
        }
        ListedTensor::SparseCsr {
            sizes,
            requires_grad,
            rows,
            columns,
            values,
        } => {
            assert_eq!(expected["sparse"], 2, "{name}");
            assert_eq!(expected["shape"], json!(sizes), "{name}");
            assert_eq!(expected["grad"], json!(requires_grad), "{name}");
            check_view(message, rows, &expected["parts"][0]);
            check_view(message, columns, &expected["parts"][1]);
            check_view(message, values, &expected["parts"][2]);
        }
        ListedTensor::Quantized {
            view,
            scale,
            zero_point,
        } => {
            assert_eq!(
                expected["call"]["global"], "torch._utils _rebuild_qtensor",
                "{name}"
            );
            assert_eq!(
                message.tensor_bytes[view.storage].len(),
                view.elements,
                "{name}"
            );
            assert_eq!((*scale, *zero_point), (0.1, 10), "{name}");
        }
        ListedTensor::Unsupported(what) => panic!("{name}: {what}"),
    }
}

fn check_view(message: &Captured, view: &TensorView, expected: &Value) {
    let name = &message.name;
    let class = format!("torch {}", view.dtype.storage_class());
    assert_eq!(expected["class"], json!(class), "{name}");
    assert_eq!(expected["storage"], json!(view.storage), "{name}");
    assert_eq!(expected["elements"], json!(view.elements), "{name}");
    assert_eq!(expected["offset"], json!(view.offset), "{name}");
    assert_eq!(expected["shape"], json!(view.sizes), "{name}");
    assert_eq!(expected["stride"], json!(view.strides), "{name}");
    assert_eq!(expected["grad"], json!(view.requires_grad), "{name}");
    let storage = &message.tensor_bytes[view.storage];
    assert_eq!(view.elements * view.dtype.size(), storage.len(), "{name}");
    let gathered = gather(view, storage, 1 << 20).expect(name);
    assert_eq!(
        Some(gathered.len()),
        view.count().map(|count| count * view.dtype.size())
    );
    if view.is_whole(storage.len()) {
        assert_eq!(&gathered, storage, "{name}");
    }
}
