//! What operators take: tensors, numbers, sizes, types of elements.

use std::fmt;

use farref::Buffer;
use farref_autograd::{Candle, Tensor, engine};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::Result;
use crate::rpc::tensors::Dtype;
use crate::value::tensor_of;

/// A tensor, and what its elements are in PyTorch: candle has no `bool`.
#[derive(Clone, Debug)]
pub(super) struct Input {
    pub(super) tensor: Tensor,
    pub(super) dtype: Dtype,
}

/// A number.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

/// A tensor or a number.
#[derive(Clone, Debug)]
pub(super) enum Operand {
    Tensor(Input),
    Number(Number),
}

/// Sizes or dimensions: one, or a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sizes(pub(super) Vec<i64>);

/// A type of elements that was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Type(pub(super) Dtype);

/// Where a tensor is to be. There is only the CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Cpu;

/// How the elements of a tensor lie in memory. There is only one way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Strided;

/// Something that changes nothing here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ignored;

impl Operand {
    /// The tensor that it is.
    pub(super) fn tensor(&self) -> Option<&Input> {
        match self {
            Self::Tensor(input) => Some(input),
            Self::Number(_) => None,
        }
    }

    pub(super) fn is_bool(&self) -> bool {
        match self {
            Self::Tensor(input) => input.dtype == Dtype::Bool,
            Self::Number(number) => matches!(number, Number::Bool(_)),
        }
    }

    pub(super) fn dims(&self) -> &[usize] {
        self.tensor().map_or(&[], |input| input.tensor.dims())
    }
}

impl From<Input> for Operand {
    fn from(input: Input) -> Self {
        Self::Tensor(input)
    }
}

impl Number {
    pub(super) fn to_f64(self) -> f64 {
        match self {
            Self::Bool(value) => f64::from(u8::from(value)),
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// As an integer. Only numbers that are, or are made so, are asked.
    pub(super) fn to_i64(self) -> i64 {
        match self {
            Self::Bool(value) => i64::from(value),
            Self::Int(value) => value,
            Self::Float(value) => value as i64,
        }
    }

    pub(super) fn is_one(self) -> bool {
        self.to_f64() == 1.0
    }
}

/// `c10::ScalarType`: the numbers that stand for types in calls of operators.
const CODES: [(i64, Dtype); 24] = [
    (0, Dtype::Byte),
    (1, Dtype::Char),
    (2, Dtype::Short),
    (3, Dtype::Int),
    (4, Dtype::Long),
    (5, Dtype::Half),
    (6, Dtype::Float),
    (7, Dtype::Double),
    (8, Dtype::ComplexHalf),
    (9, Dtype::ComplexFloat),
    (10, Dtype::ComplexDouble),
    (11, Dtype::Bool),
    (12, Dtype::QInt8),
    (13, Dtype::QUInt8),
    (14, Dtype::QInt32),
    (15, Dtype::BFloat16),
    (23, Dtype::Float8_e5m2),
    (24, Dtype::Float8_e4m3fn),
    (25, Dtype::Float8_e5m2fnuz),
    (26, Dtype::Float8_e4m3fnuz),
    (27, Dtype::UInt16),
    (28, Dtype::UInt32),
    (29, Dtype::UInt64),
    (44, Dtype::Float8_e8m0fnu),
];

impl Type {
    fn from_code<E: de::Error>(code: i64) -> Result<Self, E> {
        let found = CODES.iter().find(|(other, _)| *other == code);
        let unknown = || {
            E::custom(format_args!(
                "there is no type of elements with number {code}"
            ))
        };
        Ok(Self(found.ok_or_else(unknown)?.1))
    }

    fn from_name<E: de::Error>(name: &str) -> Result<Self, E> {
        let short = name.strip_prefix("torch.").unwrap_or(name);
        let found = Dtype::ALL.iter().find(|dtype| dtype.python_name() == short);
        let unknown = || E::custom(format_args!("`{name}` is no type of elements"));
        Ok(Self(*found.ok_or_else(unknown)?))
    }
}

/// Reads whatever is there, of which few things are right.
macro_rules! reads {
    ($type:ty: $expecting:literal; $($body:tt)*) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Reader;

                impl<'de> Visitor<'de> for Reader {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expecting)
                    }

                    $($body)*
                }

                deserializer.deserialize_any(Reader)
            }
        }
    };
}

/// What a tensor of candle's reads of itself, but for the type of its elements.
#[derive(Deserialize)]
struct Fields {
    shape: Vec<usize>,
    requires_grad: bool,
    link: Option<engine::Link>,
    data: Buffer,
}

/// A tensor says what it is in PyTorch, and then what candle's reads of itself. As there, it needs gradients
/// outside of contexts, too, and so does what an operator makes of it; candle's by itself would be data.
fn read_tensor<'de, A: MapAccess<'de>>(mut map: A) -> Result<Input, A::Error> {
    match map.next_key::<String>()?.as_deref() {
        Some("dtype") => {}
        _ => return Err(de::Error::custom("a tensor is expected, not a dict")),
    }
    let dtype = map.next_value()?;
    let Fields {
        shape,
        requires_grad,
        link,
        data,
    } = Fields::deserialize(MapAccessDeserializer::new(map))?;
    let tensor = tensor_of(dtype, shape, data.into(), requires_grad).map_err(de::Error::custom)?;
    if let Some(link) = link
        && requires_grad
    {
        engine::record_recv::<Candle>(link, tensor.id()).map_err(de::Error::custom)?;
    }
    Ok(Input { tensor, dtype })
}

macro_rules! reads_number {
    ($make:expr) => {
        fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
            Ok($make(Number::Bool(value)))
        }

        fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
            Ok($make(Number::Int(value)))
        }

        fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
            Ok($make(Number::Float(value)))
        }
    };
}

reads! { Input: "a tensor";
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Input, A::Error> {
        read_tensor(map)
    }
}

reads! { Number: "a number of 64 bits";
    reads_number!(|number| number);
}

reads! { Operand: "a tensor or a number of 64 bits";
    reads_number!(Operand::Number);

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Operand, A::Error> {
        read_tensor(map).map(Operand::Tensor)
    }
}

reads! { Sizes: "an int or a list of ints";
    fn visit_i64<E>(self, value: i64) -> Result<Sizes, E> {
        Ok(Sizes(vec![value]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Sizes, A::Error> {
        let mut sizes = Vec::new();
        while let Some(size) = items.next_element()? {
            sizes.push(size);
        }
        Ok(Sizes(sizes))
    }
}

reads! { Type: "a torch.dtype";
    fn visit_i64<E: de::Error>(self, code: i64) -> Result<Type, E> {
        Type::from_code(code)
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Type, E> {
        Type::from_name(name)
    }
}

reads! { Cpu: "a torch.device";
    fn visit_str<E: de::Error>(self, name: &str) -> Result<Cpu, E> {
        match name.split(':').next() {
            Some("cpu") => Ok(Cpu),
            _ => Err(E::custom(format_args!(
                "this worker computes on the CPU, not on `{name}`"
            ))),
        }
    }
}

reads! { Strided: "a torch.layout";
    fn visit_i64<E: de::Error>(self, layout: i64) -> Result<Strided, E> {
        match layout {
            0 => Ok(Strided),
            _ => Err(E::custom("this worker has strided tensors only")),
        }
    }
}

reads! { Ignored: "a number or a name";
    fn visit_i64<E>(self, _: i64) -> Result<Ignored, E> {
        Ok(Ignored)
    }

    fn visit_str<E>(self, _: &str) -> Result<Ignored, E> {
        Ok(Ignored)
    }
}

impl Serialize for Input {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.tensor.serialize(serializer)
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Bool(value) => serializer.serialize_bool(value),
            Self::Int(value) => serializer.serialize_i64(value),
            Self::Float(value) => serializer.serialize_f64(value),
        }
    }
}

impl Serialize for Operand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tensor(input) => input.serialize(serializer),
            Self::Number(number) => number.serialize(serializer),
        }
    }
}

impl Serialize for Sizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl Serialize for Type {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.python_name())
    }
}

impl Serialize for Cpu {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("cpu")
    }
}

impl Serialize for Strided {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(0)
    }
}

impl Serialize for Ignored {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(0)
    }
}
