//! Reading the compact form, which is postcard, within limits.
//!
//! Postcard has no limits of its own. How deep a recursive type nests and how many elements a sequence
//! has is up to whoever wrote the bytes: a megabyte of them can nest a million values and overflow the
//! stack, and five of them can announce four billion elements that take no bytes at all and keep a
//! thread busy for minutes. So the places where that happens are read here, and counted; everything
//! else is left to postcard. No visitor and no seed is wrapped for it, so plain data is read as fast as
//! by postcard alone.
//!
//! # Invariants
//!
//! - **RD-1** Options, sequences, maps and enums are nested at most [`MAX_DEPTH`] deep. Structs, tuples
//!   and newtypes in between are as deep as the program's types make them, whatever the bytes say.
//! - **RD-2** All sequences and maps of one value together have no more elements than the value has
//!   bytes, and [`FREE_ELEMENTS`] besides.
//! - **RD-3** Structs, tuples and variants are read with as many fields as they were written with, see
//!   [`count`](super::count).

use postcard::Deserializer as Postcard;
use postcard::de_flavors::Slice;
use serde::Deserialize;
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::count::FieldCounts;
use super::depth::{MAX_DEPTH, too_deep};
use super::fault::Fault;

/// How many elements one value may have that take no bytes, such as those of a `Vec<()>`.
pub(super) const FREE_ELEMENTS: u64 = 65_536;

/// Reads one value.
pub(super) struct Reader<'de> {
    postcard: Postcard<'de, Slice<'de>>,
    /// How much deeper it may go (RD-1).
    depth: u32,
    /// How many elements may still come (RD-2).
    elements: u64,
    /// How many fields were read (RD-3).
    counts: FieldCounts,
}

impl<'de> Reader<'de> {
    #[inline]
    pub(super) fn new(body: &'de [u8]) -> Self {
        Self {
            postcard: Postcard::from_bytes(body),
            depth: MAX_DEPTH,
            elements: FREE_ELEMENTS.saturating_add(body.len() as u64),
            counts: FieldCounts::new(),
        }
    }

    /// What is left of the bytes, and how many fields were in them.
    #[inline]
    pub(super) fn finish(self) -> Result<(&'de [u8], FieldCounts), Fault> {
        Ok((self.postcard.finalize()?, self.counts))
    }

    /// Reads something one level deeper.
    #[inline]
    fn below<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(Fault::said(too_deep()));
        };
        self.depth = depth;
        let value = read(self)?;
        self.depth += 1;
        Ok(value)
    }

    /// Reads how many elements a sequence or a map has.
    #[inline]
    fn length(&mut self) -> Result<usize, Fault> {
        let length = usize::deserialize(&mut self.postcard)?;
        match self.elements.checked_sub(length as u64) {
            Some(left) => self.elements = left,
            None => return Err(Fault::said(too_many())),
        }
        Ok(length)
    }
}

#[cold]
fn too_many() -> String {
    format!(
        "it announces more elements than it has bytes, and more than {FREE_ELEMENTS} that take none"
    )
}

/// A type that looks at what came, and a value of it that was not written for that: nobody who wrote it
/// knew the type.
#[cold]
fn not_described() -> Fault {
    Fault::said(
        "its type looks at what came before it knows what it is (`#[serde(untagged)]`, `#[serde(tag)]`, \
         `#[serde(flatten)]`, `serde_json::Value`), and the sender did not know that: have a remote \
         function return it, or send it as text",
    )
}

macro_rules! leave_to_postcard {
    ($($method:ident: $type:ty => $visit:ident;)*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
                // Postcard would not keep the words of the visitor's errors.
                visitor.$visit(<$type>::deserialize(&mut self.postcard)?)
            }
        )*
    };
}

macro_rules! not_described {
    ($($method:ident)*) => {
        $(
            fn $method<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fault> {
                Err(not_described())
            }
        )*
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Fault;

    leave_to_postcard! {
        deserialize_bool: bool => visit_bool;
        deserialize_i8: i8 => visit_i8;
        deserialize_i16: i16 => visit_i16;
        deserialize_i32: i32 => visit_i32;
        deserialize_i64: i64 => visit_i64;
        deserialize_i128: i128 => visit_i128;
        deserialize_u8: u8 => visit_u8;
        deserialize_u16: u16 => visit_u16;
        deserialize_u32: u32 => visit_u32;
        deserialize_u64: u64 => visit_u64;
        deserialize_u128: u128 => visit_u128;
        deserialize_f32: f32 => visit_f32;
        deserialize_f64: f64 => visit_f64;
        deserialize_char: char => visit_char;
        deserialize_str: &'de str => visit_borrowed_str;
        deserialize_string: &'de str => visit_borrowed_str;
        deserialize_bytes: &'de [u8] => visit_borrowed_bytes;
        deserialize_byte_buf: &'de [u8] => visit_borrowed_bytes;
    }

    not_described! { deserialize_any deserialize_identifier deserialize_ignored_any }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match u8::deserialize(&mut self.postcard)? {
            0 => visitor.visit_none(),
            1 => self.below(|reader| visitor.visit_some(reader)),
            _ => Err(Fault::from(postcard::Error::DeserializeBadOption)),
        }
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let left = self.length()?;
        self.below(|reader| visitor.visit_seq(Elements { reader, left }))
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let left = self.length()?;
        self.below(|reader| visitor.visit_map(Elements { reader, left }))
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.below(|reader| visitor.visit_enum(reader))
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        let mut elements = Elements {
            reader: self,
            left: len,
        };
        let value = visitor.visit_seq(&mut elements)?;
        // Aliases count as fields for serde, so not all that may be read need be there.
        let read = len - elements.left;
        elements.reader.counts.add(read);
        Ok(value)
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_tuple(len, visitor)
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// What follows a length.
struct Elements<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: usize,
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de> {
    type Error = Fault;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        self.next_element_seed(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(&mut *self.reader)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Fault;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Fault> {
        let index = u32::deserialize(&mut self.postcard)?;
        let index: U32Deserializer<Fault> = index.into_deserializer();
        let variant = seed.deserialize(index)?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Fault;

    #[inline]
    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(self)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_tuple(len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.deserialize_tuple(fields.len(), visitor)
    }
}
