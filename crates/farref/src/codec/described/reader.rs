//! Reading the described form, within the limits of the compact one.
//!
//! Nesting is limited as there (RD-1); what a type recurs through without asking for an option, a
//! sequence, a map or an enum is `deserialize_any`, which is counted too. The number of elements needs
//! no limit (RD-2): each takes a byte at least, also if its type does not look at it.
//!
//! Nothing is taken for something else (RD-3): a tuple has all its elements, as it has no names by which one that
//! is left out could be told, and a struct is written with no field that it does not read.

use postcard::Deserializer as Postcard;
use postcard::de_flavors::Slice;
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IgnoredAny, IntoDeserializer, MapAccess, SeqAccess,
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
    /// How many tags were passed: by this one sees whether something was read.
    passed: usize,
    /// How much deeper it may go.
    depth: u32,
}

impl<'de> Reader<'de> {
    pub(in crate::codec) fn new(body: &'de [u8]) -> Self {
        Self {
            postcard: Postcard::from_bytes(body),
            next: None,
            passed: 0,
            depth: MAX_DEPTH,
        }
    }

    /// Reads one part, and goes past it if its type does not look at what came.
    pub(in crate::codec) fn part<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let passed = self.passed;
        let value = read(self)?;
        if self.passed == passed {
            IgnoredAny::deserialize(&mut *self)?;
        }
        Ok(value)
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
        self.passed += 1;
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

    /// Reads a tuple of this length.
    fn tuple<V: Visitor<'de>>(&mut self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        if self.peek()? != tag::SEQ {
            return self.visit(visitor);
        }
        self.pass();
        let mut open = Open::new(self);
        let value = visitor.visit_seq(&mut open)?;
        open.close()?;
        match open.count == len {
            true => Ok(value),
            false => Err(Fault::said("a tuple cannot leave out elements")),
        }
    }

    /// Reads a struct with these fields.
    fn fields<V: Visitor<'de>>(
        &mut self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if self.peek()? != tag::MAP {
            return self.visit(visitor);
        }
        self.pass();
        let mut open = Open::new(self);
        open.fields = Some(fields);
        let value = visitor.visit_map(&mut open)?;
        open.close()?;
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
            tag::SOME => self.part(|reader| visitor.visit_some(reader)),
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

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.tuple(len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.tuple(len, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.fields(fields, visitor)
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
    /// How many were there so far.
    count: usize,
    /// The only keys that may be there, if these are the fields of a struct.
    fields: Option<&'static [&'static str]>,
    ended: bool,
}

impl<'a, 'de> Open<'a, 'de> {
    fn new(reader: &'a mut Reader<'de>) -> Self {
        Self {
            reader,
            count: 0,
            fields: None,
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
        self.count += 1;
        self.reader
            .part(|reader| seed.deserialize(reader))
            .map(Some)
    }
}

impl<'de> MapAccess<'de> for Open<'_, 'de> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some(fields) = self.fields else {
            return self.next_element_seed(seed);
        };
        if !self.has_next()? {
            return Ok(None);
        }
        if self.reader.peek()? != tag::STR {
            return Err(Fault::said(
                "there is no name where that of a field is read",
            ));
        }
        self.reader.pass();
        let name: &str = self.reader.content()?;
        if !fields.contains(&name) {
            return Err(Fault::said(format_args!(
                "it is written with a field `{name}` that it is not read with: `#[serde(skip_deserializing)]` needs \
                 `skip_serializing` as well, and a field has one name"
            )));
        }
        let name: StrDeserializer<'_, Fault> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        self.reader.part(|reader| seed.deserialize(reader))
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
        self.part(|reader| seed.deserialize(reader))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.tuple(len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.fields(fields, visitor)
    }
}
