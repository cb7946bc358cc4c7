//! Python data as a Rust enum, and calls of Python functions as values.

use std::fmt;

use farref::RRef;
use serde::ser::{SerializeMap, SerializeTuple, SerializeTupleStruct};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::tensor::RawTensor;

/// What a set writes itself as.
pub(super) const SET: &str = "farref_torch::Set";
/// What a call of a Python function writes itself as.
pub(super) const UDF_STRUCT: &str = "farref_torch::Udf";
/// The function that stands for all functions of Python, in the runtime's eyes.
pub(crate) const UDF: &str = "farref_torch::python";
/// The same for those that return a future of what they return.
pub(crate) const UDF_ASYNC: &str = "farref_torch::python_async";

/// Any plain Python data, with tensors and references in it.
///
/// For functions that take or return what they do not look into. What has a type is better written as one: a
/// `dict` with known keys is a struct with those fields.
///
/// ```
/// use farref_torch::PyValue;
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
#[derive(Clone, Debug, Deserialize)]
#[serde(rename = "farref_torch::PyValue")]
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
    /// A `bytes`.
    Bytes(farref::Blob),
    /// A `list`.
    List(Vec<Self>),
    /// A `tuple`.
    Tuple(Vec<Self>),
    /// A `set` or a `frozenset`.
    Set(Vec<Self>),
    /// A `dict`, or the attributes of an object.
    Dict(Vec<(Self, Self)>),
    /// A `torch.Tensor`.
    Tensor(RawTensor),
    /// A `torch.distributed.rpc.RRef`.
    Reference(RRef<Self>),
    /// A function or a class, by the name that Python finds it under.
    Name(String),
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
                let mut set = serializer.serialize_tuple_struct(SET, items.len())?;
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
            Self::Tensor(tensor) => tensor.serialize(serializer),
            Self::Reference(reference) => reference.serialize(serializer),
            Self::Name(name) => serializer.serialize_newtype_struct("farref::ForeignClass", name),
        }
    }
}

/// A call of a Python function, as an argument of the function that stands for all of them.
pub(crate) struct UdfCall {
    /// `module.name`.
    pub(crate) function: String,
    /// A tuple.
    pub(crate) arguments: Box<dyn erased_serde::Serialize + Send + Sync>,
    /// By name.
    pub(crate) keywords: Vec<(String, Box<dyn erased_serde::Serialize + Send + Sync>)>,
}

impl fmt::Debug for UdfCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(..)", self.function)
    }
}

impl Serialize for UdfCall {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeStruct;

        struct Keywords<'a>(&'a [(String, Box<dyn erased_serde::Serialize + Send + Sync>)]);

        impl Serialize for Keywords<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
            }
        }

        let mut call = serializer.serialize_struct(UDF_STRUCT, 3)?;
        call.serialize_field("function", &self.function)?;
        call.serialize_field("arguments", &self.arguments)?;
        call.serialize_field("keywords", &Keywords(&self.keywords))?;
        call.end()
    }
}

impl<'de> Deserialize<'de> for UdfCall {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom(
            "a Python function was called on a worker that has no Python: call the Rust function by its own \
             name",
        ))
    }
}
