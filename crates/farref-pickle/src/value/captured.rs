//! Small values in memory, on their way into a pickle or out of one.
//!
//! Some types of the runtime travel beside a value and leave only a number in it (references, buffers,
//! tensors). What they write of themselves is caught here, and what they read of themselves is served from
//! here; neither reaches Python.

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{self, Deserializer, EnumAccess, IntoDeserializer, VariantAccess, Visitor};
use serde::ser::{self, Impossible, Serialize, Serializer};

use super::error::ValueError;

/// What a type of the runtime reads of itself.
pub type Fields = Vec<(&'static str, Captured)>;

/// What a type of the runtime wrote, or is to read.
#[derive(Clone, PartialEq, Debug)]
pub enum Captured {
    None,
    Bool(bool),
    Number(u64),
    Text(&'static str),
    String(String),
    Bytes(Vec<u8>),
    List(Vec<Self>),
    Some(Box<Self>),
    /// A variant with one value.
    Variant(&'static str, Box<Self>),
    /// A struct.
    Fields(Fields),
}

impl Captured {
    /// What a value writes.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, ValueError> {
        value.serialize(Capture)
    }

    pub fn some(value: Option<Self>) -> Self {
        value.map_or(Self::None, |value| Self::Some(Box::new(value)))
    }

    pub fn variant(name: &'static str, value: Self) -> Self {
        Self::Variant(name, Box::new(value))
    }

    /// The same for those who keep values of any type, and know no variants: those are maps of one.
    pub fn plain(self) -> Self {
        match self {
            Self::Variant(name, value) => Self::Fields(vec![(name, value.plain())]),
            Self::Some(value) => Self::Some(Box::new(value.plain())),
            Self::List(items) => Self::List(items.into_iter().map(Self::plain).collect()),
            Self::Fields(fields) => {
                let fields = fields.into_iter();
                Self::Fields(fields.map(|(name, value)| (name, value.plain())).collect())
            }
            other => other,
        }
    }

    pub fn number(&self) -> Result<u64, ValueError> {
        match self {
            Self::Number(number) => Ok(*number),
            other => Err(ValueError::unexpected(other)),
        }
    }

    pub fn boolean(&self) -> Result<bool, ValueError> {
        match self {
            Self::Bool(value) => Ok(*value),
            other => Err(ValueError::unexpected(other)),
        }
    }

    pub fn text(&self) -> Result<&'static str, ValueError> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(ValueError::unexpected(other)),
        }
    }

    pub fn list(&self) -> Result<&[Self], ValueError> {
        match self {
            Self::List(items) => Ok(items),
            other => Err(ValueError::unexpected(other)),
        }
    }
}

impl ValueError {
    fn unexpected(found: &Captured) -> Self {
        Self::new(format_args!(
            "a type of the runtime wrote {found:?} of itself, which this wire does not know"
        ))
    }
}

/// Catches what a value writes.
struct Capture;

/// The items of a sequence, or the fields of a struct.
pub struct Capturing<T> {
    caught: Vec<T>,
}

macro_rules! numbers {
    ($($method:ident: $type:ty),*) => {
        $(fn $method(self, value: $type) -> Result<Captured, ValueError> {
            u64::try_from(value)
                .map(Captured::Number)
                .map_err(|_| ValueError::new("a negative number"))
        })*
    };
}

impl Serializer for Capture {
    type Ok = Captured;
    type Error = ValueError;
    type SerializeSeq = Capturing<Captured>;
    type SerializeTuple = Capturing<Captured>;
    type SerializeTupleStruct = Capturing<Captured>;
    type SerializeTupleVariant = Impossible<Captured, ValueError>;
    type SerializeMap = Impossible<Captured, ValueError>;
    type SerializeStruct = Capturing<(&'static str, Captured)>;
    type SerializeStructVariant = Impossible<Captured, ValueError>;

    numbers!(
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64
    );

    fn serialize_bool(self, value: bool) -> Result<Captured, ValueError> {
        Ok(Captured::Bool(value))
    }

    fn serialize_bytes(self, bytes: &[u8]) -> Result<Captured, ValueError> {
        Ok(Captured::Bytes(bytes.to_vec()))
    }

    fn serialize_none(self) -> Result<Captured, ValueError> {
        Ok(Captured::None)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Captured, ValueError> {
        Ok(Captured::Some(Box::new(value.serialize(self)?)))
    }

    fn serialize_unit(self) -> Result<Captured, ValueError> {
        Ok(Captured::None)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
    ) -> Result<Captured, ValueError> {
        Ok(Captured::Text(variant))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Captured, ValueError> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<Captured, ValueError> {
        Ok(Captured::variant(variant, value.serialize(self)?))
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self::SerializeSeq, ValueError> {
        Ok(Capturing { caught: Vec::new() })
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, ValueError> {
        self.serialize_seq(None)
    }

    fn serialize_tuple_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, ValueError> {
        self.serialize_seq(None)
    }

    fn serialize_struct(
        self,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStruct, ValueError> {
        Ok(Capturing { caught: Vec::new() })
    }

    fn serialize_f32(self, _: f32) -> Result<Captured, ValueError> {
        Err(ValueError::new("a number with a fraction"))
    }

    fn serialize_f64(self, _: f64) -> Result<Captured, ValueError> {
        Err(ValueError::new("a number with a fraction"))
    }

    fn serialize_char(self, _: char) -> Result<Captured, ValueError> {
        Err(ValueError::new("a character"))
    }

    fn serialize_str(self, text: &str) -> Result<Captured, ValueError> {
        Ok(Captured::String(text.to_owned()))
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Captured, ValueError> {
        Ok(Captured::None)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, ValueError> {
        Err(ValueError::new("a variant of several values"))
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, ValueError> {
        Err(ValueError::new("a map"))
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, ValueError> {
        Err(ValueError::new("a variant with fields"))
    }
}

impl Capturing<Captured> {
    fn push<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
        self.caught.push(Captured::of(value)?);
        Ok(())
    }
}

/// serde has a trait for each kind of sequence; to a capture they are all the same.
macro_rules! sequences {
    ($($trait:ident: $method:ident),*) => {
        $(impl ser::$trait for Capturing<Captured> {
            type Ok = Captured;
            type Error = ValueError;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), ValueError> {
                self.push(value)
            }

            fn end(self) -> Result<Captured, ValueError> {
                Ok(Captured::List(self.caught))
            }
        })*
    };
}

sequences!(
    SerializeSeq: serialize_element,
    SerializeTuple: serialize_element,
    SerializeTupleStruct: serialize_field
);

impl ser::SerializeStruct for Capturing<(&'static str, Captured)> {
    type Ok = Captured;
    type Error = ValueError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), ValueError> {
        self.caught.push((name, Captured::of(value)?));
        Ok(())
    }

    fn end(self) -> Result<Captured, ValueError> {
        Ok(Captured::Fields(self.caught))
    }
}

impl<'de> IntoDeserializer<'de, ValueError> for Captured {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Captured {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            Self::None => visitor.visit_unit(),
            Self::Bool(value) => visitor.visit_bool(value),
            Self::Number(number) => visitor.visit_u64(number),
            Self::Text(text) => visitor.visit_str(text),
            Self::String(text) => visitor.visit_string(text),
            Self::Bytes(bytes) => visitor.visit_byte_buf(bytes),
            Self::List(items) => visitor.visit_seq(SeqDeserializer::new(items.into_iter())),
            Self::Some(value) => value.deserialize_any(visitor),
            Self::Variant(..) => visitor.visit_enum(self),
            Self::Fields(fields) => visitor.visit_map(MapDeserializer::new(fields.into_iter())),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self {
            Self::None => visitor.visit_none(),
            Self::Some(value) => visitor.visit_some(*value),
            other => visitor.visit_some(other),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        visitor.visit_enum(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Captured {
    type Error = ValueError;
    type Variant = Self;

    fn variant_seed<V: de::DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), ValueError> {
        let (name, value) = match self {
            Self::Text(name) => (name, Self::None),
            Self::Variant(name, value) => (name, *value),
            // As those see it who know no variants.
            Self::Fields(mut fields) if fields.len() == 1 => fields.remove(0),
            other => return Err(ValueError::unexpected(&other)),
        };
        let name: de::value::StrDeserializer<'_, ValueError> = name.into_deserializer();
        Ok((seed.deserialize(name)?, value))
    }
}

impl<'de> VariantAccess<'de> for Captured {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        Ok(())
    }

    fn newtype_variant_seed<T: de::DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, ValueError> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.deserialize_any(visitor)
    }
}
