//! Reading no deeper than the stack is, whatever the codec.
//!
//! A recursive type is read by recursion, and how deep that goes is up to whoever wrote the bytes: a
//! megabyte of them can nest a million values. Not every codec has a limit of its own, and a stack that
//! overflows takes the process along. So what a foreign codec reads is read through [`Limited`], which
//! counts. Farref's own codec counts by itself, see [`reader`](super::reader).
//!
//! Only what a type can recur through is counted: options, sequences, maps and enums. Structs, tuples
//! and newtypes in between are as deep as the program's types make them, whatever the bytes say.

use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::error::{CodecError, CodecErrorKind};
use super::scope;

/// How many options, sequences, maps and enums may be nested in one value. What serde_json allows.
pub(super) const MAX_DEPTH: u32 = 128;

/// Anything of serde's that reads, and how much deeper it may go.
pub(super) struct Limited<T> {
    inner: T,
    left: u32,
}

impl<T> Limited<T> {
    pub(super) fn new(inner: T) -> Self {
        Self {
            inner,
            left: MAX_DEPTH,
        }
    }

    /// The same limit for something else.
    fn same<U>(&self, inner: U) -> Limited<U> {
        Limited {
            inner,
            left: self.left,
        }
    }

    /// One level less for a visitor.
    #[inline]
    fn below<V, E: Error>(&self, visitor: V) -> Result<Limited<V>, E> {
        match self.left.checked_sub(1) {
            Some(left) => Ok(Limited {
                inner: visitor,
                left,
            }),
            None => Err(E::custom(too_deep())),
        }
    }
}

/// Codecs need not keep the words of an error; the scope does.
#[cold]
pub(super) fn too_deep() -> String {
    let complaint = format!("it is nested more than {MAX_DEPTH} levels deep");
    scope::complain(CodecError::of_kind(CodecErrorKind::TooDeep, &complaint));
    complaint
}

macro_rules! forward_plain {
    ($($method:ident)*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
                self.inner.$method(visitor)
            }
        )*
    };
}

macro_rules! forward_below {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(
                self,
                $($argument: $type,)*
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                let visitor = self.below(visitor)?;
                self.inner.$method($($argument,)* visitor)
            }
        )*
    };
}

macro_rules! forward_same {
    ($($method:ident($($argument:ident: $type:ty),*))*) => {
        $(
            #[inline]
            fn $method<V: Visitor<'de>>(
                self,
                $($argument: $type,)*
                visitor: V,
            ) -> Result<V::Value, D::Error> {
                let visitor = self.same(visitor);
                self.inner.$method($($argument,)* visitor)
            }
        )*
    };
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Limited<D> {
    type Error = D::Error;

    forward_plain! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_i128 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
        deserialize_u128 deserialize_f32 deserialize_f64 deserialize_char deserialize_str
        deserialize_string deserialize_unit deserialize_identifier
    }

    forward_below! {
        deserialize_any()
        deserialize_option()
        deserialize_seq()
        deserialize_map()
        deserialize_enum(name: &'static str, variants: &'static [&'static str])
        deserialize_ignored_any()
    }

    forward_same! {
        deserialize_bytes()
        deserialize_byte_buf()
        deserialize_unit_struct(name: &'static str)
        deserialize_newtype_struct(name: &'static str)
        deserialize_tuple(len: usize)
        deserialize_tuple_struct(name: &'static str, len: usize)
        deserialize_struct(name: &'static str, fields: &'static [&'static str])
    }

    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit_plain {
    ($($method:ident($type:ty))*) => {
        $(
            #[inline]
            fn $method<E: Error>(self, value: $type) -> Result<V::Value, E> {
                self.inner.$method(value)
            }
        )*
    };
}

macro_rules! visit_access {
    ($($method:ident($access:ident))*) => {
        $(
            #[inline]
            fn $method<A: $access<'de>>(self, access: A) -> Result<V::Value, A::Error> {
                let access = self.same(access);
                self.inner.$method(access)
            }
        )*
    };
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Limited<V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.expecting(f)
    }

    visit_plain! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_i128(i128)
        visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64) visit_u128(u128) visit_f32(f32)
        visit_f64(f64) visit_char(char) visit_str(&str) visit_borrowed_str(&'de str)
        visit_string(String) visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8])
        visit_byte_buf(Vec<u8>)
    }

    visit_access! {
        visit_some(Deserializer)
        visit_newtype_struct(Deserializer)
        visit_seq(SeqAccess)
        visit_map(MapAccess)
        visit_enum(EnumAccess)
    }

    #[inline]
    fn visit_none<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_none()
    }

    #[inline]
    fn visit_unit<E: Error>(self) -> Result<V::Value, E> {
        self.inner.visit_unit()
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Limited<S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let deserializer = self.same(deserializer);
        self.inner.deserialize(deserializer)
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Limited<A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.same(seed);
        self.inner.next_element_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Limited<A> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, A::Error> {
        let seed = self.same(seed);
        self.inner.next_key_seed(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.same(seed);
        self.inner.next_value_seed(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.inner.size_hint()
    }
}

impl<'de, A: EnumAccess<'de>> EnumAccess<'de> for Limited<A> {
    type Error = A::Error;
    type Variant = Limited<A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Self::Variant), A::Error> {
        let left = self.left;
        let seed = self.same(seed);
        let (value, inner) = self.inner.variant_seed(seed)?;
        Ok((value, Limited { inner, left }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Limited<A> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        let seed = self.same(seed);
        self.inner.newtype_variant_seed(seed)
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        let visitor = self.same(visitor);
        self.inner.tuple_variant(len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        let visitor = self.same(visitor);
        self.inner.struct_variant(fields, visitor)
    }
}
