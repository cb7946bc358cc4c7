//! A pickle as the JSON that the capturing scripts made of it, so that both readings can be compared. They tell
//! calls from new objects and sets from frozen ones; here that is the same.

use serde_json::{Value, json};

use crate::pickle::{Pickle, Shape, View};

/// What a pickle means, as JSON.
pub(super) fn whole(pickle: &[u8]) -> Value {
    let pickle = Pickle::read(pickle).expect("a pickle");
    value(pickle.view(&pickle.budget()))
}

fn value(view: View<'_, '_>) -> Value {
    match view.shape().expect("within the budget") {
        Shape::None => Value::Null,
        Shape::Bool(value) => json!(value),
        Shape::Int(value) if value.unsigned_abs() <= 1 << 53 => json!(value),
        Shape::Int(value) => json!({"int": value.to_string()}),
        Shape::Long(bytes) => json!({"int": decimal(bytes)}),
        Shape::Float(value) => json!({"float": float(value)}),
        Shape::Text(bytes) => text(bytes),
        Shape::Bytes(bytes) => json!({"bytes": hexadecimal(bytes)}),
        Shape::Tuple(items) => json!({"tuple": all(items)}),
        Shape::List(items) => all(items),
        Shape::Set(items) => json!({"set": all(items)}),
        Shape::Dict(items) => json!({"dict": pairs(items)}),
        Shape::Global(module, name) => {
            let [module, name] = [module, name].map(String::from_utf8_lossy);
            json!({"global": format!("{module} {name}")})
        }
        Shape::Call {
            callee,
            arguments,
            state,
            items,
        } => {
            let mut call =
                json!({"call": value(callee), "args": all(arguments.tuple().expect("a tuple"))});
            if let Some(state) = state {
                call["state"] = value(state);
            }
            match items.map(|items| items.shape().expect("within the budget")) {
                Some(Shape::List(items)) => call["items"] = all(items),
                Some(Shape::Dict(items)) => call["pairs"] = pairs(items),
                Some(_) => panic!("an object is filled with a list or a dict"),
                None => {}
            }
            call
        }
        Shape::Persistent(id) => json!({"persid": value(id)}),
        Shape::Buffer(number) => json!({"buffer": number}),
    }
}

fn all(items: Vec<View<'_, '_>>) -> Value {
    items.into_iter().map(value).collect()
}

fn pairs(items: Vec<(View<'_, '_>, View<'_, '_>)>) -> Value {
    let pairs = items.into_iter();
    pairs
        .map(|(key, item)| json!([value(key), value(item)]))
        .collect()
}

/// A text, or the pickle that is kept in one.
fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => json!(text),
        Err(_) => json!({"pickle": whole(bytes)}),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every bit counts, but for those of what is no number.
fn float(value: f64) -> String {
    match value.is_nan() {
        true => "nan".to_owned(),
        false => format!("{:016x}", value.to_bits()),
    }
}

/// A number of any size in decimal digits. Its bytes are little endian, two's complement.
fn decimal(bytes: &[u8]) -> String {
    let negative = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
    let mut magnitude = bytes.to_vec();
    if negative {
        let mut carry = true;
        for byte in &mut magnitude {
            let (next, overflow) = (!*byte).overflowing_add(u8::from(carry));
            (*byte, carry) = (next, overflow);
        }
    }
    let mut digits = Vec::new();
    while magnitude.iter().any(|byte| *byte != 0) {
        let mut rest = 0_u32;
        for byte in magnitude.iter_mut().rev() {
            let part = rest << 8 | u32::from(*byte);
            *byte = (part / 10) as u8;
            rest = part % 10;
        }
        digits.push(char::from(b'0' + rest as u8));
    }
    let sign = if negative { "-" } else { "" };
    sign.chars().chain(digits.into_iter().rev()).collect()
}

/// The JSON of the scripts, in the same words as that from here.
pub(super) fn expected(value: &Value) -> Value {
    let global = |name: &str| json!({"global": name});
    let pickler = global("torch.distributed.rpc.internal _InternalRPCPickler");
    let received = |name: &str| {
        let getattr = global("builtins getattr");
        json!({"call": getattr, "args": [&pickler, name]})
    };
    match value {
        Value::Array(items) => items.iter().map(expected).collect(),
        Value::Object(fields) => {
            if let Some(function) = fields.get("func").and_then(Value::as_str) {
                let call = global("torch.distributed.rpc.internal PythonUDF");
                let arguments = json!({"tuple": expected(&fields["args"])});
                let keywords = json!({"dict": expected(&fields["kwargs"])});
                return json!({"call": call, "args": [global(function), arguments, keywords]});
            }
            if let Some(parts) = fields.get("rref") {
                let parts = json!({"tuple": parts});
                return json!({"call": received("_py_rref_receiver"), "args": [parts]});
            }
            if let Some(text) = fields.get("float").and_then(Value::as_str) {
                let value = text.parse().expect("a float");
                return json!({"float": float(value)});
            }
            let fields = fields.iter().map(|(key, value)| {
                let key = match key.as_str() {
                    "new" => "call",
                    "frozenset" => "set",
                    other => other,
                };
                (key.to_owned(), expected(value))
            });
            Value::Object(fields.collect())
        }
        other => other.clone(),
    }
}

/// Puts the two forms that tensors have in pickles into the one of the scripts.
pub(super) fn with_short_tensors(value: Value) -> Value {
    let short = |call: &Value, arguments: &Value| {
        let jit = call["global"] == "torch.jit._pickle build_tensor_from_id";
        let python =
            call["call"]["global"] == "builtins getattr" && call["args"][1] == "_tensor_receiver";
        (jit || python).then(|| json!({"tensor": arguments[0]}))
    };
    match value {
        Value::Array(items) => items.into_iter().map(with_short_tensors).collect(),
        Value::Object(fields) => {
            if let (Some(call), Some(arguments)) = (fields.get("call"), fields.get("args"))
                && let Some(tensor) = short(call, arguments)
            {
                return tensor;
            }
            let fields = fields.into_iter();
            let fields = fields.map(|(key, value)| (key, with_short_tensors(value)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}
