//! Reading the described form, within the limits of the compact one.
//!
//! Nesting is limited as there (RD-1); what a type recurs through without asking for an option, a
//! sequence, a map or an enum is `deserialize_any`, which is counted too. The number of elements needs
//! no limit (RD-2): each takes a byte at least.

use postcard::Deserializer as Postcard;
use postcard::de_flavors::Slice;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::super::depth::{MAX_DEPTH, too_deep};
use super::super::fault::Fault;
use super::tag;

/// Reads one value.
pub(in crate::codec) struct Reader<'de> {
    postcard: Postcard<'de, Slice<'de>>,
    /// The tag of the part that comes next, if it has been looked at.
    next: Option<u8>,
    /// How much deeper it may go.
    depth: u32,
}

impl<'de> Reader<'de> {
    pub(in crate::codec) fn new(body: &'de [u8]) -> Self {
        Self {
            postcard: Postcard::from_bytes(body),
            next: None,
            depth: MAX_DEPTH,
        }
    }

    /// What is left of the bytes.
    pub(in crate::codec) fn finish(self) -> Result<&'de [u8], Fault> {
        Ok(self.postcard.finalize()?)
    }

    fn peek(&mut self) -> Result<u8, Fault> {
        match self.next {
            Some(tag) => Ok(tag),
            None => Ok(*self.next.insert(u8::deserialize(&mut self.postcard)?)),
        }
    }

    /// Goes past a tag that was looked at.
    fn pass(&mut self) {
        self.next = None;
    }

    /// What follows a tag.
    fn content<T: Deserialize<'de>>(&mut self) -> Result<T, Fault> {
        Ok(T::deserialize(&mut self.postcard)?)
    }

    fn expect_end(&mut self) -> Result<(), Fault> {
        if self.peek()? != tag::END {
            return Err(Fault::said("it has more elements than are read"));
        }
        self.pass();
        Ok(())
    }

    fn below<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Fault>) -> Result<T, Fault> {
        let Some(depth) = self.depth.checked_sub(1) else {
            return Err(Fault::said(too_deep()));
        };
        self.depth = depth;
        let value = read(self)?;
        self.depth += 1;
        Ok(value)
    }

    /// Reads whatever comes.
    fn visit<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Fault> {
        let tag = self.peek()?;
        self.pass();
        match tag {
            tag::FALSE => visitor.visit_bool(false),
            tag::TRUE => visitor.visit_bool(true),
            tag::I8 => visitor.visit_i8(self.content()?),
            tag::I16 => visitor.visit_i16(self.content()?),
            tag::I32 => visitor.visit_i32(self.content()?),
            tag::I64 => visitor.visit_i64(self.content()?),
            tag::I128 => visitor.visit_i128(self.content()?),
            tag::U8 => visitor.visit_u8(self.content()?),
            tag::U16 => visitor.visit_u16(self.content()?),
            tag::U32 => visitor.visit_u32(self.content()?),
            tag::U64 => visitor.visit_u64(self.content()?),
            tag::U128 => visitor.visit_u128(self.content()?),
            tag::F32 => visitor.visit_f32(self.content()?),
            tag::F64 => visitor.visit_f64(self.content()?),
            tag::CHAR => visitor.visit_char(self.content()?),
            tag::STR => visitor.visit_borrowed_str(self.content()?),
            tag::BYTES => visitor.visit_borrowed_bytes(self.content()?),
            tag::NONE => visitor.visit_none(),
            tag::SOME => visitor.visit_some(self),
            tag::UNIT => visitor.visit_unit(),
            tag::SEQ => {
                let mut open = Open::new(self);
                let value = visitor.visit_seq(&mut open)?;
                open.close()?;
                Ok(value)
            }
            tag::MAP => {
                let mut open = Open::new(self);
                let value = visitor.visit_map(&mut open)?;
                open.close()?;
                Ok(value)
            }
            _ => Err(Fault::said("its bytes are no such value")),
        }
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.peek()? {
            tag::SOME | tag::SEQ | tag::MAP => self.below(|reader| reader.visit(visitor)),
            _ => self.visit(visitor),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq map identifier ignored_any
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.peek()? {
            tag::NONE | tag::SOME | tag::UNIT => self.deserialize_any(visitor),
            // Formats that have no options of their own write the content alone.
            _ => self.below(|reader| visitor.visit_some(reader)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    // As deep as the program's types make them, whatever the bytes say.

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let tag = self.peek()?;
        self.pass();
        match tag {
            tag::STR => {
                let name: StrDeserializer<'_, Fault> = self.content::<&str>()?.into_deserializer();
                visitor.visit_enum(name)
            }
            tag::MAP => self.below(|reader| {
                let value = visitor.visit_enum(&mut *reader)?;
                reader.expect_end()?;
                Ok(value)
            }),
            _ => Err(Fault::said("there is no variant where one is read")),
        }
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements or entries of something.
struct Open<'a, 'de> {
    reader: &'a mut Reader<'de>,
    ended: bool,
}

impl<'a, 'de> Open<'a, 'de> {
    fn new(reader: &'a mut Reader<'de>) -> Self {
        Self {
            reader,
            ended: false,
        }
    }

    /// Whether another one comes.
    fn has_next(&mut self) -> Result<bool, Fault> {
        if !self.ended && self.reader.peek()? == tag::END {
            self.reader.pass();
            self.ended = true;
        }
        Ok(!self.ended)
    }

    /// Nothing may be left that was not read: it would be taken for what follows.
    fn close(&mut self) -> Result<(), Fault> {
        if self.has_next()? {
            return Err(Fault::said("it has more elements than are read"));
        }
        Ok(())
    }
}

impl<'de> SeqAccess<'de> for Open<'_, 'de> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        if !self.has_next()? {
            return Ok(None);
        }
        seed.deserialize(&mut *self.reader).map(Some)
    }
}

impl<'de> MapAccess<'de> for Open<'_, 'de> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        self.next_element_seed(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(&mut *self.reader)
    }
}

/// A variant with content.
impl<'de> EnumAccess<'de> for &mut Reader<'de> {
    type Error = Fault;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Fault> {
        let variant = seed.deserialize(&mut *self)?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for &mut Reader<'de> {
    type Error = Fault;

    fn unit_variant(self) -> Result<(), Fault> {
        <()>::deserialize(self)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.visit(visitor)
    }
}
