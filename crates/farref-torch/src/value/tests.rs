//! The laws of values: what is written is read back (VC-2), what Python makes is read as what it is, and
//! nothing takes more than in proportion to its bytes (VC-1).

mod arguments;
mod hostile;
mod python_made;
mod written;

use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use farref_pickle::value::ValueError;
use farref_pickle::{Keywords, Rest};

use super::*;
use crate::pickle::{Pickle, Shape, View};

/// A value as the runtime gets it.
fn write<T: Serialize>(value: &T) -> Body {
    let bytes = PickleCodec::default().encode(value).unwrap();
    Body::decode(&bytes).unwrap()
}

/// A value as the runtime reads it, or what is wrong with it.
fn try_read<T: DeserializeOwned>(body: &Body) -> Result<T, String> {
    let mut value = None;
    let bytes = body.encode().unwrap();
    let read = PickleCodec::default().decode(&bytes, &mut |deserializer| {
        value = Some(erased_serde::deserialize(deserializer)?);
        Ok(())
    });
    match read {
        Ok(()) => Ok(value.expect("it was read")),
        Err(error) => Err(error.to_string()),
    }
}

/// What came in a message as this pickle.
fn pickled(pickle: &[u8]) -> Body {
    Body {
        pickle: pickle.to_vec(),
        ..Body::default()
    }
}

fn read<T: DeserializeOwned>(pickle: &[u8]) -> T {
    try_read(&pickled(pickle)).unwrap()
}

fn error<T: DeserializeOwned + fmt::Debug>(pickle: &[u8]) -> String {
    try_read::<T>(&pickled(pickle)).unwrap_err()
}

/// There and back.
fn back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    try_read(&write(value)).unwrap()
}

/// What Python sees in a pickle, as Python would print it.
fn printed(pickle: &[u8]) -> String {
    let pickle = Pickle::read(pickle).unwrap();
    let budget = pickle.budget();
    print(pickle.view(&budget))
}

fn print(view: View<'_, '_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let list = |items: Vec<View<'_, '_>>| {
        let items: Vec<String> = items.into_iter().map(print).collect();
        items.join(", ")
    };
    match view.shape().unwrap() {
        Shape::None => "None".to_owned(),
        Shape::Bool(true) => "True".to_owned(),
        Shape::Bool(false) => "False".to_owned(),
        Shape::Int(number) => number.to_string(),
        Shape::Long(bytes) => format!("long({bytes:02x?})"),
        Shape::Float(number) => format!("{number:?}"),
        Shape::Text(bytes) => format!("{:?}", text(bytes)),
        Shape::Bytes(bytes) => format!("b{:?}", text(bytes)),
        Shape::Tuple(items) => format!("({})", list(items)),
        Shape::List(items) => format!("[{}]", list(items)),
        Shape::Set(items) => format!("{{{}}}", list(items)),
        Shape::Dict(items) => {
            let items: Vec<String> = items
                .into_iter()
                .map(|(key, value)| format!("{}: {}", print(key), print(value)))
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        Shape::Global(module, name) => format!("{}.{}", text(module), text(name)),
        Shape::Call {
            callee, arguments, ..
        } => format!("{}{}", print(callee), print(arguments)),
        Shape::Persistent(id) => format!("<{}>", print(id)),
        Shape::Buffer(number) => format!("<buffer {number}>"),
    }
}

/// As Python knows it from tests: a class, a tuple with names, or a dict.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Point {
    x: i64,
    y: f64,
}
