//! Arrays of numbers: Python's tensors and arrays, for those who read tensors, buffers, sequences or a single number.
//!
//! # Invariants
//!
//! - **AR-1** Whatever shape is announced, there are as many bytes as elements of that shape have, or it is an error. Nothing
//!   is made of a shape alone: rows that have nothing in them are [paid for](Array::rows).
//! - **AR-2** A tensor that needs gradients arrives as data, and inside of a context not at all: no gradient would find its
//!   way back.

use std::borrow::Cow;

use farref::Buffer;
use half::{bf16, f16};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};

use super::captured::{Captured, Fields};
use super::error::ValueError;

/// What a tensor of candle's writes itself as.
pub const TENSOR: &str = "farref_autograd::Tensor";

/// A type of elements.
#[derive(PartialEq, Eq, Debug)]
pub struct Element {
    /// What tensors of candle's call it, if there are such.
    pub candle: Option<&'static str>,
    /// What PyTorch calls it, and numpy mostly.
    pub torch: &'static str,
    /// What numpy's pickles call it, if there are such.
    pub numpy: Option<&'static str>,
    /// How many bytes it has.
    pub size: usize,
}

macro_rules! elements {
    ($($candle:expr, $torch:literal, $numpy:expr, $size:literal;)*) => {
        &[$(Element { candle: $candle, torch: $torch, numpy: $numpy, size: $size }),*]
    };
}

/// All of them. What candle calls one is what Python gets first of those that it may be.
const ELEMENTS: &[Element] = elements![
    Some("U8"), "uint8", Some("u1"), 1;
    // candle has no truth values. This way only.
    Some("U8"), "bool", Some("b1"), 1;
    Some("U32"), "uint32", Some("u4"), 4;
    Some("I16"), "int16", Some("i2"), 2;
    Some("I32"), "int32", Some("i4"), 4;
    Some("I64"), "int64", Some("i8"), 8;
    Some("BF16"), "bfloat16", None, 2;
    Some("F16"), "float16", Some("f2"), 2;
    Some("F32"), "float32", Some("f4"), 4;
    Some("F64"), "float64", Some("f8"), 8;
    Some("F8E4M3"), "float8_e4m3fn", None, 1;
    Some("F8E8M0"), "float8_e8m0fnu", None, 1;
    None, "int8", Some("i1"), 1;
    None, "uint16", Some("u2"), 2;
    None, "uint64", Some("u8"), 8;
    None, "complex64", Some("c8"), 8;
    None, "complex128", Some("c16"), 16;
];

impl Element {
    fn find(is_it: impl Fn(&Self) -> bool) -> Option<&'static Self> {
        ELEMENTS.iter().find(|element| is_it(element))
    }

    /// By candle's name.
    pub fn of_candle(name: &str) -> Option<&'static Self> {
        Self::find(|element| element.candle == Some(name))
    }

    /// By PyTorch's.
    pub fn of_torch(name: &[u8]) -> Option<&'static Self> {
        Self::find(|element| element.torch.as_bytes() == name)
    }

    /// By numpy's.
    pub fn of_numpy(code: &[u8]) -> Option<&'static Self> {
        Self::find(|element| element.numpy.is_some_and(|numpy| numpy.as_bytes() == code))
    }
}

/// An array that came.
#[derive(Clone, Debug)]
pub struct Array {
    pub element: &'static Element,
    /// How many elements there are in each dimension. None: it is one number.
    pub shape: Vec<usize>,
    /// What a buffer reads of itself: the elements.
    pub memory: Captured,
    /// Whether the first dimension is the one that runs fastest, and not the last.
    pub is_fortran: bool,
    /// Whether its sender wants gradients for it.
    pub requires_grad: bool,
}

impl Array {
    /// Whether it is one number.
    pub fn is_number(&self) -> bool {
        self.shape.is_empty()
    }

    /// Which variant of any data it is, if it is one number.
    pub fn kind_of_number(&self) -> &'static str {
        match self.element.torch {
            "bool" => "Bool",
            name if name.contains("int") => "Int",
            _ => "Float",
        }
    }

    /// How many rows there are of an array that has nothing in it: they take memory, and came in no bytes.
    pub fn rows(&self) -> usize {
        let rows = self.shape.iter().take_while(|length| **length > 0);
        match self.shape.contains(&0) {
            true => rows.fold(1, |rows, length| rows.saturating_mul(*length)),
            false => 0,
        }
    }

    /// What a tensor of candle's reads of itself.
    pub fn fields(self) -> Result<Fields, ValueError> {
        if self.requires_grad && farref::context::incoming().is_some() {
            return Err(ValueError::new(
                "a tensor that needs gradients came in Python's form inside of a context: contexts do not cross languages, so none \
                 would find their way back. Send it detached",
            ));
        }
        let element = self.element.candle.ok_or_else(|| {
            ValueError::new(format_args!(
                "a tensor of {} has no counterpart in candle: send it as another type",
                self.element.torch
            ))
        })?;
        let sizes = self.shape.iter();
        let shape = sizes.map(|&size| Captured::Number(size as u64)).collect();
        let data = match self.is_fortran {
            false => self.memory,
            true => {
                let bytes = transposed(&self.bytes(&self.buffer()?)?, &self.shape, self.element);
                let width = match self.element.size {
                    2 => "Two",
                    4 => "Four",
                    8 => "Eight",
                    _ => "One",
                };
                let here = vec![Captured::Text(width), Captured::Bytes(bytes)];
                Captured::variant("Here", Captured::List(here))
            }
        };
        Ok(vec![
            ("element", Captured::Text(element)),
            ("shape", Captured::List(shape)),
            ("requires_grad", Captured::Bool(false)),
            ("link", Captured::None),
            ("data", data),
        ])
    }

    /// Reads it as a number, or as a sequence of numbers or of such sequences.
    pub fn read<'de, V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, ValueError> {
        let buffer = self.buffer()?;
        let mut bytes = self.bytes(&buffer)?;
        if self.is_fortran {
            bytes = Cow::Owned(transposed(&bytes, &self.shape, self.element));
        }
        let numbers = Numbers {
            element: self.element,
            shape: &self.shape,
            bytes: &bytes,
        };
        numbers.deserialize_any(visitor)
    }

    fn buffer(&self) -> Result<Buffer, ValueError> {
        Buffer::deserialize(self.memory.clone())
    }

    /// All elements, if it is as many as there should be (AR-1).
    fn bytes<'b>(&self, buffer: &'b Buffer) -> Result<Cow<'b, [u8]>, ValueError> {
        let mut shape = self.shape.iter();
        let wanted = shape.try_fold(self.element.size, |size, &length| size.checked_mul(length));
        if wanted != Some(buffer.len()) {
            return Err(ValueError::new(format_args!(
                "an array of shape {:?} and type {} does not have {} bytes",
                self.shape,
                self.element.torch,
                buffer.len()
            )));
        }
        match buffer.as_slice::<u8>() {
            Some(bytes) => Ok(Cow::Borrowed(bytes)),
            None => {
                let copy = buffer.clone().into_vec().map_err(ValueError::new)?;
                Ok(Cow::Owned(copy))
            }
        }
    }
}

/// Elements of which the first dimension runs fastest, with the last one running fastest. There are as many as the shape
/// says.
fn transposed(bytes: &[u8], shape: &[usize], element: &Element) -> Vec<u8> {
    let mut place = vec![0; shape.len()];
    let mut steps = Vec::with_capacity(shape.len());
    let mut step = element.size;
    for &length in shape {
        steps.push(step);
        step = step.saturating_mul(length);
    }
    let mut all = Vec::with_capacity(bytes.len());
    let mut start = 0;
    for _ in 0..bytes.len() / element.size {
        let end = start + element.size;
        all.extend_from_slice(bytes.get(start..end).unwrap_or_default());
        for dimension in (0..shape.len()).rev() {
            place[dimension] += 1;
            start += steps[dimension];
            if place[dimension] < shape[dimension] {
                break;
            }
            start -= steps[dimension] * place[dimension];
            place[dimension] = 0;
        }
    }
    all
}

/// An array, or a part of one, to be read.
#[derive(Clone, Copy)]
struct Numbers<'n> {
    element: &'static Element,
    shape: &'n [usize],
    bytes: &'n [u8],
}

impl Numbers<'_> {
    fn one<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        macro_rules! one {
            ($type:ty, $visit:ident $(, $from:ident)?) => {{
                let bytes = self.bytes.try_into().map_err(ValueError::new)?;
                let number = <$type>::from_le_bytes(bytes);
                visitor.$visit(number $(.$from())?)
            }};
        }
        match self.element.torch {
            "bool" => visitor.visit_bool(self.bytes != [0]),
            "uint8" => one!(u8, visit_u8),
            "int8" => one!(i8, visit_i8),
            "uint16" => one!(u16, visit_u16),
            "int16" => one!(i16, visit_i16),
            "uint32" => one!(u32, visit_u32),
            "int32" => one!(i32, visit_i32),
            "uint64" => one!(u64, visit_u64),
            "int64" => one!(i64, visit_i64),
            "bfloat16" => one!(bf16, visit_f32, to_f32),
            "float16" => one!(f16, visit_f32, to_f32),
            "float32" => one!(f32, visit_f32),
            "float64" => one!(f64, visit_f64),
            other => Err(ValueError::new(format_args!(
                "numbers of {other} have no counterpart in Rust"
            ))),
        }
    }
}

impl<'de> Deserializer<'de> for Numbers<'_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.shape {
            [] => self.one(visitor),
            [length, inner @ ..] => visitor.visit_seq(Rows {
                left: *length,
                step: self.bytes.len().checked_div(*length).unwrap_or(0),
                rows: Self {
                    shape: inner,
                    ..self
                },
            }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The rows of an array, one after the other.
struct Rows<'n> {
    left: usize,
    /// How many bytes each has.
    step: usize,
    rows: Numbers<'n>,
}

impl<'de> SeqAccess<'de> for Rows<'_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let (bytes, rest) = self.rows.bytes.split_at(self.step);
        self.rows.bytes = rest;
        seed.deserialize(Numbers { bytes, ..self.rows }).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_whose_first_dimension_runs_fastest_is_turned_around() {
        let element = Element::of_torch(b"int16").unwrap();
        let shape = [2, 3, 4];
        let place = |of: [usize; 3], fastest_first: bool| match fastest_first {
            true => of[0] + 2 * (of[1] + 3 * of[2]),
            false => of[2] + 4 * (of[1] + 3 * of[0]),
        };
        let (mut given, mut wanted) = ([0; 48], [0; 48]);
        for number in 0..24_u8 {
            let index = usize::from(number);
            let of = [index / 12, index / 4 % 3, index % 4];
            given[2 * place(of, true)] = number;
            wanted[2 * place(of, false)] = number;
        }
        assert_eq!(transposed(&given, &shape, element), wanted);
    }
}
