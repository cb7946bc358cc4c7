//! Arguments of calls: parameters that take what is left of them, as `*args` and `**kwargs` do, and all of them as a tuple.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// What [`Rest`] reads itself as.
pub(super) const REST: &str = "farref_pickle::Rest";
/// What [`Keywords`] reads itself as.
pub(super) const KEYWORDS: &str = "farref_pickle::Keywords";

/// All arguments by place that are left, as `*args` in Python. As the type of a parameter of a function that Python
/// calls, behind those that take one argument each.
///
/// ```
/// use farref_pickle::Rest;
///
/// #[farref::remote(python = "tools.longest")]
/// async fn longest(first: String, others: Rest<String>) -> String {
///     others.into_iter().fold(first, |one, other| if other.len() > one.len() { other } else { one })
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rest<T>(pub Vec<T>);

/// All arguments by name that are left, as `**kwargs` in Python, in the order in which they were given. As the type of
/// the last parameter of a function that Python calls.
///
/// ```
/// use farref_pickle::{Keywords, Rest};
///
/// #[farref::remote(python = "tools.describe")]
/// async fn describe(given: Rest<f64>, named: Keywords<f64>) -> String {
///     let names: Vec<_> = named.iter().map(|(name, _)| &name[..]).collect();
///     format!("{} by place, and {}", given.len(), names.join(", "))
/// }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keywords<T>(pub Vec<(String, T)>);

macro_rules! dereferences {
    ($($name:ident: $inside:ty),*) => {
        $(impl<T> Deref for $name<T> {
            type Target = $inside;

            fn deref(&self) -> &$inside {
                &self.0
            }
        }

        impl<T> DerefMut for $name<T> {
            fn deref_mut(&mut self) -> &mut $inside {
                &mut self.0
            }
        })*
    };
}

dereferences!(Rest: Vec<T>, Keywords: Vec<(String, T)>);

impl<T> IntoIterator for Rest<T> {
    type Item = T;
    type IntoIter = std::vec::IntoIter<T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<T> IntoIterator for Keywords<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<(String, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A tuple: the arguments of another call.
impl<T: Serialize> Serialize for Rest<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeTuple;

        let mut tuple = serializer.serialize_tuple(self.0.len())?;
        self.0
            .iter()
            .try_for_each(|item| tuple.serialize_element(item))?;
        tuple.end()
    }
}

impl<T: Serialize> Serialize for Keywords<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// Arguments that are a tuple, even if there are none.
pub struct Tuple<T>(pub T);

impl<T: Serialize> Serialize for Tuple<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeTuple;

        if size_of::<T>() == 0 {
            return serializer.serialize_tuple(0)?.end();
        }
        self.0.serialize(serializer)
    }
}

/// Reads what is inside of a newtype struct of that name.
struct Inside<T>(PhantomData<T>);

impl<'de, T: DeserializeOwned> Visitor<'de> for Inside<T> {
    type Value = T;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the arguments that are left")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, inside: D) -> Result<T, D::Error> {
        T::deserialize(inside)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Rest<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let inside = Inside(PhantomData);
        deserializer
            .deserialize_newtype_struct(REST, inside)
            .map(Self)
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Keywords<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let inside = Inside(PhantomData);
        deserializer
            .deserialize_newtype_struct(KEYWORDS, inside)
            .map(Self)
    }
}
