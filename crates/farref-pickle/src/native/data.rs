//! Python data as a Rust enum.

use farref::functions::ForeignType;
use farref::{Blob, RRef};
use serde::ser::{SerializeMap, SerializeTuple, SerializeTupleStruct};
use serde::{Deserialize, Serialize, Serializer};

/// Any plain Python data, with references in it.
///
/// For functions that take or return what they do not look into. What has a type is better written as one: a
/// `dict` with known keys is a struct with those fields.
///
/// ```
/// use farref_pickle::PyValue;
///
/// #[farref::remote(python = "tools.count")]
/// async fn count(value: PyValue) -> usize {
///     match value {
///         PyValue::List(items) | PyValue::Tuple(items) | PyValue::Set(items) => items.len(),
///         PyValue::Dict(items) => items.len(),
///         _ => 1,
///     }
/// }
/// ```
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(rename = "farref_pickle::PyValue")]
#[non_exhaustive]
pub enum PyValue {
    /// `None`.
    None,
    /// A `bool`.
    Bool(bool),
    /// An `int`. Those that need more than 64 bits are refused.
    Int(i64),
    /// A `float`.
    Float(f64),
    /// A `str`.
    Text(String),
    /// A `bytes`, or other memory.
    Bytes(Blob),
    /// A `list`.
    List(Vec<Self>),
    /// A `tuple`.
    Tuple(Vec<Self>),
    /// A `set` or a `frozenset`.
    Set(Vec<Self>),
    /// A `dict`, or the attributes of an object.
    Dict(Vec<(Self, Self)>),
    /// A `farref.RRef`.
    Reference(RRef<Self>),
    /// A function or a class, by the name that Python finds it under.
    Name(String),
}

// A reference to it is one to anything: whoever fetches the value finds out what it is.
farref::__private::inventory::submit! {
    ForeignType::of::<PyValue>()
}

impl Serialize for PyValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Int(value) => serializer.serialize_i64(*value),
            Self::Float(value) => serializer.serialize_f64(*value),
            Self::Text(text) => serializer.serialize_str(text),
            Self::Bytes(bytes) => bytes.serialize(serializer),
            Self::List(items) => items.serialize(serializer),
            Self::Tuple(items) => {
                let mut tuple = serializer.serialize_tuple(items.len())?;
                items
                    .iter()
                    .try_for_each(|item| tuple.serialize_element(item))?;
                tuple.end()
            }
            Self::Set(items) => {
                let mut set =
                    serializer.serialize_tuple_struct("farref_pickle::Set", items.len())?;
                items
                    .iter()
                    .try_for_each(|item| set.serialize_field(item))?;
                set.end()
            }
            Self::Dict(items) => {
                let mut dict = serializer.serialize_map(Some(items.len()))?;
                items
                    .iter()
                    .try_for_each(|(key, value)| dict.serialize_entry(key, value))?;
                dict.end()
            }
            Self::Reference(reference) => reference.serialize(serializer),
            Self::Name(name) => serializer.serialize_newtype_struct("farref::ForeignClass", name),
        }
    }
}
