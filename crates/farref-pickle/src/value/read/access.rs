//! The parts of a value, one after the other, as serde asks for them.

use std::cell::Cell;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::super::error::ValueError;
use super::super::named::Named;
use super::super::rest::{KEYWORDS, REST};
use super::shapes::Pair;
use super::{Value, What};
use crate::pickle::View;

/// Items one after the other.
pub(super) struct Sequence<'c, 'p, 'a> {
    value: Value<'c, 'p, 'a>,
    items: std::vec::IntoIter<View<'p, 'a>>,
}

impl<'c, 'p, 'a> Sequence<'c, 'p, 'a> {
    pub(super) fn new(value: Value<'c, 'p, 'a>, items: Vec<View<'p, 'a>>) -> Self {
        let items = items.into_iter();
        Self { value, items }
    }
}

impl<'de> SeqAccess<'de> for Sequence<'_, '_, '_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        match self.items.next() {
            Some(item) => seed.deserialize(self.value.one(item)).map(Some),
            None => Ok(None),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

/// The items of a dict as pairs, one after the other.
pub(super) struct PairSequence<'c, 'p, 'a> {
    pub(super) value: Value<'c, 'p, 'a>,
    pub(super) items: std::vec::IntoIter<Pair<'p, 'a>>,
}

impl<'de> SeqAccess<'de> for PairSequence<'_, '_, '_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        match self.items.next() {
            Some(pair) => {
                let value = self.value;
                seed.deserialize(OnePair { value, pair }).map(Some)
            }
            None => Ok(None),
        }
    }
}

/// A key and its value, to be read as a tuple.
struct OnePair<'c, 'p, 'a> {
    value: Value<'c, 'p, 'a>,
    pair: Pair<'p, 'a>,
}

impl<'de> Deserializer<'de> for OnePair<'_, '_, '_> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        let (key, value) = self.pair;
        visitor.visit_seq(Sequence::new(self.value, vec![key, value]))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The items of a dict.
pub(super) struct Pairs<'c, 'p, 'a> {
    value: Value<'c, 'p, 'a>,
    items: std::vec::IntoIter<Pair<'p, 'a>>,
    next: Option<View<'p, 'a>>,
}

impl<'c, 'p, 'a> Pairs<'c, 'p, 'a> {
    pub(super) fn new(value: Value<'c, 'p, 'a>, items: Vec<Pair<'p, 'a>>) -> Self {
        let (items, next) = (items.into_iter(), None);
        Self { value, items, next }
    }
}

impl<'de> MapAccess<'de> for Pairs<'_, '_, '_> {
    type Error = ValueError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, ValueError> {
        let Some((key, value)) = self.items.next() else {
            return Ok(None);
        };
        self.next = Some(value);
        seed.deserialize(self.value.one(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, ValueError> {
        let value = self.next.take();
        let value = value.ok_or_else(|| ValueError::new("a value without a key"))?;
        seed.deserialize(self.value.one(value))
    }
}

/// The arguments of a function, in the order in which it takes them.
pub(super) struct Arguments<'c, 'p, 'a, 'r> {
    pub(super) value: Value<'c, 'p, 'a>,
    pub(super) place: usize,
    pub(super) length: usize,
    pub(super) taken: &'r Taken,
}

/// What arguments were taken besides those that one parameter each takes.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// By a parameter that takes all that are left.
    pub(super) rest: Cell<bool>,
    /// The same for those that have names.
    pub(super) keywords: Cell<bool>,
}

/// One argument of a function, or all that are left.
struct Argument<'c, 'p, 'a, 'r> {
    value: Value<'c, 'p, 'a>,
    place: usize,
    one: Option<View<'p, 'a>>,
    name: &'static str,
    taken: &'r Taken,
}

impl<'c, 'p, 'a> Argument<'c, 'p, 'a, '_> {
    /// Those by place from here on.
    fn rest(&self) -> Sequence<'c, 'p, 'a> {
        self.taken.rest.set(true);
        let items = match self.value.what {
            What::Arguments(items, ..) => items.get(self.place..).unwrap_or_default(),
            What::One(_) => &[],
        };
        Sequence::new(self.value, items.to_vec())
    }

    /// Those by name that are none of the parameters.
    fn keywords(&self) -> Result<PairSequence<'c, 'p, 'a>, ValueError> {
        self.taken.keywords.set(true);
        let mut left = Vec::new();
        if let What::Arguments(_, keywords, parameters) = self.value.what {
            for &(keyword, value) in keywords {
                let name = keyword.text()?;
                if !parameters.iter().any(|it| it.as_bytes() == name) {
                    left.push((keyword, value));
                }
            }
        }
        Ok(PairSequence {
            value: self.value,
            items: left.into_iter(),
        })
    }
}

/// What a parameter that takes all that are left reads.
struct Left<A>(A);

impl<'de, A: SeqAccess<'de, Error = ValueError>> Deserializer<'de> for Left<A> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_seq(self.0)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

macro_rules! as_one {
    ($($method:ident($($argument:ident: $type:ty),*);)*) => {
        $(fn $method<V: Visitor<'de>>(
            self,
            $($argument: $type,)*
            visitor: V,
        ) -> Result<V::Value, ValueError> {
            match self.one {
                Some(one) => self.value.one(one).$method($($argument,)* visitor),
                None => Missing(self.name).$method($($argument,)* visitor),
            }
        })*
    };
}

impl<'de> Deserializer<'de> for Argument<'_, '_, '_, '_> {
    type Error = ValueError;

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match (name, self.one) {
            (REST, _) => visitor.visit_newtype_struct(Left(self.rest())),
            (KEYWORDS, _) => visitor.visit_newtype_struct(Left(self.keywords()?)),
            (name, Some(one)) => self
                .value
                .one(one)
                .deserialize_newtype_struct(name, visitor),
            (name, None) => Missing(self.name).deserialize_newtype_struct(name, visitor),
        }
    }

    as_one! {
        deserialize_any();
        deserialize_bool();
        deserialize_i8();
        deserialize_i16();
        deserialize_i32();
        deserialize_i64();
        deserialize_i128();
        deserialize_u8();
        deserialize_u16();
        deserialize_u32();
        deserialize_u64();
        deserialize_u128();
        deserialize_f32();
        deserialize_f64();
        deserialize_char();
        deserialize_str();
        deserialize_string();
        deserialize_bytes();
        deserialize_byte_buf();
        deserialize_option();
        deserialize_unit();
        deserialize_unit_struct(name: &'static str);
        deserialize_seq();
        deserialize_tuple(length: usize);
        deserialize_tuple_struct(name: &'static str, length: usize);
        deserialize_map();
        deserialize_struct(name: &'static str, fields: &'static [&'static str]);
        deserialize_enum(name: &'static str, variants: &'static [&'static str]);
        deserialize_identifier();
        deserialize_ignored_any();
    }
}

impl<'de> SeqAccess<'de> for Arguments<'_, '_, '_, '_> {
    type Error = ValueError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, ValueError> {
        let What::Arguments(items, keywords, parameters) = self.value.what else {
            return Ok(None);
        };
        if self.place == self.length {
            return Ok(None);
        }
        let place = self.place;
        self.place += 1;
        let name = parameters.get(place).copied().unwrap_or_default();
        let mut one = items.get(place).copied();
        if one.is_none() {
            for &(keyword, value) in keywords {
                if keyword.text()? == name.as_bytes() {
                    one = Some(value);
                    break;
                }
            }
        }
        let argument = Argument {
            value: self.value,
            place,
            one,
            name,
            taken: self.taken,
        };
        seed.deserialize(argument).map(Some)
    }
}

/// An argument that was not given: fine if it is optional.
struct Missing(&'static str);

impl<'de> Deserializer<'de> for Missing {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::new(format_args!(
            "the argument `{}` is missing",
            self.0
        )))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_none()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A variant of an enum.
pub(super) struct Variant<'n, 'c, 'p, 'a> {
    pub(super) name: &'n str,
    pub(super) value: Option<Value<'c, 'p, 'a>>,
}

impl<'de, 'n, 'c, 'p, 'a> EnumAccess<'de> for Variant<'n, 'c, 'p, 'a> {
    type Error = ValueError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self), ValueError> {
        let name: StrDeserializer<'_, ValueError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_, '_, '_> {
    type Error = ValueError;

    fn unit_variant(self) -> Result<(), ValueError> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(
        self,
        seed: T,
    ) -> Result<T::Value, ValueError> {
        match self.value {
            Some(value) if self.name == "Name" => match Named::read(value.view()?)? {
                Some(named) => {
                    seed.deserialize(format!("{}.{}", named.module, named.name).into_deserializer())
                }
                None => seed.deserialize(value),
            },
            Some(value) => seed.deserialize(value),
            None => Err(ValueError::new(format_args!(
                "the variant {} has a value",
                self.name
            ))),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self.value {
            Some(value) => value.deserialize_tuple(length, visitor),
            None => Err(ValueError::new(format_args!(
                "the variant {} has values",
                self.name
            ))),
        }
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match self.value {
            Some(value) => value.deserialize_struct("", fields, visitor),
            None => Err(ValueError::new(format_args!(
                "the variant {} has fields",
                self.name
            ))),
        }
    }
}
