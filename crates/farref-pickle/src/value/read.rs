//! Pickle to serde.

mod access;
mod shapes;

use serde::de::{self, Deserializer, Visitor};

use access::{Arguments, PairSequence, Pairs, Sequence, Taken, Variant};
use shapes::{is_builtin, long, named_tuple, sequence_of, text, typed};

pub use shapes::{Pair, keywords, unpacked};

use super::array::Array;
use super::captured::{Captured, Fields};
use super::error::{TOO_LARGE, ValueError};
use super::named::Named;
use crate::pickle::{Shape, View};

/// What those enums are called that are any plain data: the reader says which variant it is.
const ANY_DATA: [&str; 2] = ["farref_pickle::PyValue", "farref_torch::PyValue"];

/// What is in a pickle besides plain data, and what it is to whoever reads it.
pub trait Special {
    /// The fields that a struct of this name reads of itself, if such structs are no plain data.
    fn fields(
        &self,
        _name: &'static str,
        _view: View<'_, '_>,
    ) -> Result<Option<Fields>, ValueError> {
        Ok(None)
    }

    /// The same for those who know no type.
    fn unknown(&self, _view: View<'_, '_>) -> Result<Option<Fields>, ValueError> {
        Ok(None)
    }

    /// Which variant it is of an enum that is any data.
    fn variant(&self, _view: View<'_, '_>) -> Result<Option<&'static str>, ValueError> {
        Ok(None)
    }

    /// What it is, if it travels beside the pickle.
    fn beside(&self, view: View<'_, '_>) -> Result<Option<Beside>, ValueError>;
}

/// What travels beside a pickle.
pub enum Beside {
    /// A reference, by its number.
    Reference(u64),
    /// Memory: what a buffer reads of itself.
    Memory(Captured),
    /// A worker: what a peer reads of itself.
    Peer(Captured),
    /// Memory of which it is known what is in it.
    Array(Array),
}

/// Reads a value: calls `read` with a deserializer over it.
pub fn read_value<E: std::fmt::Display>(
    view: View<'_, '_>,
    special: &dyn Special,
    read: impl FnOnce(Value<'_, '_, '_>) -> Result<(), E>,
) -> Result<(), ValueError> {
    let what = What::One(view);
    read(Value { what, special }).map_err(ValueError::new)
}

/// The same for the arguments of a function: by place, by name, and what they are called.
pub fn read_arguments<'p, 'a, E: std::fmt::Display>(
    items: &[View<'p, 'a>],
    named: &[Pair<'p, 'a>],
    parameters: &'static [&'static str],
    special: &dyn Special,
    read: impl FnOnce(Value<'_, 'p, 'a>) -> Result<(), E>,
) -> Result<(), ValueError> {
    let what = What::Arguments(items, named, parameters);
    read(Value { what, special }).map_err(ValueError::new)
}

/// A value to be read.
#[derive(Clone, Copy)]
pub struct Value<'c, 'p, 'a> {
    what: What<'c, 'p, 'a>,
    special: &'c dyn Special,
}

#[derive(Clone, Copy)]
enum What<'c, 'p, 'a> {
    One(View<'p, 'a>),
    /// The arguments of a function: by place, by name, and what they are called.
    Arguments(
        &'c [View<'p, 'a>],
        &'c [Pair<'p, 'a>],
        &'static [&'static str],
    ),
}

impl<'c, 'p, 'a> Value<'c, 'p, 'a> {
    fn one(self, view: View<'p, 'a>) -> Self {
        Self {
            what: What::One(view),
            ..self
        }
    }

    fn view(self) -> Result<View<'p, 'a>, ValueError> {
        match self.what {
            What::One(view) => match typed(view)? {
                Some(inside) => Ok(inside),
                None => Ok(view),
            },
            What::Arguments(..) => Err(ValueError::new("arguments are read as a tuple")),
        }
    }

    fn shape(self) -> Result<Shape<'p, 'a>, ValueError> {
        Ok(self.view()?.shape()?)
    }

    /// What it is, if it travels beside the pickle.
    fn beside(self) -> Result<Option<Beside>, ValueError> {
        self.special.beside(self.view()?)
    }

    /// The array that it is, if it is one: of several numbers, and somebody is about to read them.
    fn array(self) -> Result<Option<Array>, ValueError> {
        let view = self.view()?;
        if !view.is_call()? {
            return Ok(None);
        }
        match self.special.beside(view)? {
            Some(Beside::Array(array)) if !array.is_number() => {
                view.pay(array.rows())?;
                Ok(Some(array))
            }
            _ => Ok(None),
        }
    }

    /// The bytes that it is, if it is some. Python makes a `bytearray` by a call.
    fn bytes(self) -> Result<Option<&'a [u8]>, ValueError> {
        Ok(match self.shape()? {
            Shape::Bytes(bytes) => Some(bytes),
            Shape::Call {
                callee, arguments, ..
            } if is_builtin(callee, b"bytearray")? => match arguments.tuple()?.first() {
                None => Some(&[]),
                Some(bytes) => match bytes.shape()? {
                    Shape::Bytes(bytes) => Some(bytes),
                    _ => None,
                },
            },
            _ => None,
        })
    }

    /// The items of a sequence.
    fn items(self) -> Result<Vec<View<'p, 'a>>, ValueError> {
        let shape = self.shape()?;
        match shape {
            Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => Ok(items),
            Shape::Call { .. } => match sequence_of(&shape)? {
                Some(Some(items)) => self.one(items).items(),
                Some(None) => Ok(Vec::new()),
                None => Err(shape.is_not("a sequence").into()),
            },
            other => Err(other.is_not("a sequence").into()),
        }
    }

    /// The items of a tuple. A named one is an object that is made of its items and nothing else.
    fn tuple(self) -> Result<Vec<View<'p, 'a>>, ValueError> {
        match named_tuple(self.view()?)? {
            Some(items) => Ok(items),
            None => self.items(),
        }
    }

    /// The items of a dict, or the attributes of an object.
    fn pairs(self) -> Result<Vec<Pair<'p, 'a>>, ValueError> {
        match self.shape()? {
            Shape::Dict(items) => Ok(items),
            Shape::Call {
                items: Some(items), ..
            } => self.one(items).pairs(),
            Shape::Call {
                state: Some(state), ..
            } => self.one(state).attributes(),
            Shape::Call {
                callee, arguments, ..
            } => match callee.shape()? {
                Shape::Global(b"collections", b"OrderedDict" | b"Counter") => {
                    match arguments.tuple()?.first() {
                        Some(&inside) => self.one(inside).pairs(),
                        None => Ok(Vec::new()),
                    }
                }
                _ => Err(self.shape()?.is_not("a dict").into()),
            },
            other => Err(other.is_not("a dict").into()),
        }
    }

    /// The attributes in the state of an object. A class with slots has two sorts: those of the usual kind,
    /// if there are any, and those in slots.
    fn attributes(self) -> Result<Vec<Pair<'p, 'a>>, ValueError> {
        let parts = match self.shape()? {
            Shape::Tuple(parts) if parts.len() == 2 => parts,
            _ => return self.pairs(),
        };
        let mut all = Vec::new();
        for part in parts {
            if !matches!(part.shape()?, Shape::None) {
                all.extend(self.one(part).pairs()?);
            }
        }
        Ok(all)
    }
}

impl<'de, 'c, 'p, 'a> Deserializer<'de> for Value<'c, 'p, 'a> {
    type Error = ValueError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if let What::Arguments(items, ..) = self.what {
            return self.deserialize_tuple(items.len(), visitor);
        }
        if let What::One(view) = self.what
            && let Some(fields) = self.special.unknown(view)?
        {
            // Whoever does not know the type may keep it and read it as one later, as enums without tags do.
            return Captured::Fields(fields).plain().deserialize_any(visitor);
        }
        if let Some(beside) = self.beside()? {
            let inside = match beside {
                Beside::Array(array) if array.is_number() => return array.read(visitor),
                Beside::Array(array) => array.memory.plain(),
                Beside::Reference(number) => Captured::Number(number),
                Beside::Memory(inside) | Beside::Peer(inside) => inside.plain(),
            };
            return visitor.visit_newtype_struct(inside);
        }
        match self.shape()? {
            Shape::None => visitor.visit_unit(),
            Shape::Bool(value) => visitor.visit_bool(value),
            Shape::Int(value) => visitor.visit_i64(value),
            Shape::Long(bytes) => {
                let number = long(bytes)?;
                match u64::try_from(number) {
                    Ok(number) => visitor.visit_u64(number),
                    Err(_) => Err(ValueError::new(TOO_LARGE)),
                }
            }
            Shape::Float(value) => visitor.visit_f64(value),
            Shape::Text(bytes) => visitor.visit_str(text(bytes)?),
            Shape::Bytes(bytes) => visitor.visit_bytes(bytes),
            Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
                visitor.visit_seq(Sequence::new(self, items))
            }
            Shape::Dict(items) => visitor.visit_map(Pairs::new(self, items)),
            Shape::Global(module, name) => {
                visitor.visit_string(format!("{}.{}", text(module)?, text(name)?))
            }
            // A device is its name.
            Shape::Call {
                callee, arguments, ..
            } if matches!(callee.shape()?, Shape::Global(b"torch", b"device")) => {
                match arguments.tuple()?.first() {
                    Some(&name) => self.one(name).deserialize_any(visitor),
                    None => Err(ValueError::new("a device without a name")),
                }
            }
            shape @ Shape::Call { .. } => match sequence_of(&shape)? {
                Some(_) => visitor.visit_seq(Sequence::new(self, self.items()?)),
                None => match self.bytes()? {
                    Some(bytes) => visitor.visit_bytes(bytes),
                    None => visitor.visit_map(Pairs::new(self, self.pairs()?)),
                },
            },
            other @ (Shape::Persistent(_) | Shape::Buffer(_)) => {
                Err(other.is_not("plain data").into())
            }
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.what {
            What::One(view) if matches!(view.shape()?, Shape::None) => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.shape()? {
            Shape::Long(_) => Err(ValueError::new(TOO_LARGE)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.shape()? {
            Shape::Long(bytes) => visitor.visit_i128(long(bytes)?),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.shape()? {
            // The largest have a byte more, for the sign.
            Shape::Long([bytes @ .., 0]) if bytes.len() <= 16 => {
                let mut all = [0; 16];
                all[..bytes.len()].copy_from_slice(bytes);
                visitor.visit_u128(u128::from_le_bytes(all))
            }
            Shape::Long(bytes) => match u128::try_from(long(bytes)?) {
                Ok(number) => visitor.visit_u128(number),
                Err(_) => Err(ValueError::new(TOO_LARGE)),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.shape()? {
            // Python writes 2 where it means 2.0.
            Shape::Int(value) => visitor.visit_f64(value as f64),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        match self.what {
            What::Arguments(items, keywords, _) if items.is_empty() && keywords.is_empty() => {
                visitor.visit_unit()
            }
            What::Arguments(items, keywords, _) => {
                let given = items.len() + keywords.len();
                Err(ValueError::new(format_args!(
                    "the function takes no arguments, {given} were given"
                )))
            }
            What::One(_) => self.deserialize_any(visitor),
        }
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if let Some(bytes) = self.bytes()? {
            return visitor.visit_bytes(bytes);
        }
        match self.shape()? {
            // PyTorch's C++ keeps bytes in texts.
            Shape::Text(bytes) => visitor.visit_bytes(bytes),
            _ => self.deserialize_seq(visitor),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        if let What::Arguments(items, ..) = self.what {
            return self.deserialize_tuple(items.len(), visitor);
        }
        let shape = self.shape()?;
        match shape {
            Shape::Bytes(bytes) => {
                let bytes = bytes.iter().copied();
                visitor.visit_seq(de::value::SeqDeserializer::new(bytes))
            }
            Shape::Tuple(items) | Shape::List(items) | Shape::Set(items) => {
                visitor.visit_seq(Sequence::new(self, items))
            }
            Shape::Dict(items) => visitor.visit_seq(PairSequence {
                value: self,
                items: items.into_iter(),
            }),
            Shape::Call { .. } if sequence_of(&shape)?.is_some() => {
                visitor.visit_seq(Sequence::new(self, self.items()?))
            }
            Shape::Call { .. } => {
                if let Some(array) = self.array()? {
                    return array.read(visitor);
                }
                if let Some(bytes) = self.bytes()? {
                    let bytes = bytes.iter().copied();
                    return visitor.visit_seq(de::value::SeqDeserializer::new(bytes));
                }
                let Ok(pairs) = self.pairs() else {
                    return Err(shape.is_not("a sequence").into());
                };
                visitor.visit_seq(PairSequence {
                    value: self,
                    items: pairs.into_iter(),
                })
            }
            other => Err(other.is_not("a sequence").into()),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        let What::Arguments(items, keywords, parameters) = self.what else {
            if let Some(array) = self.array()? {
                return array.read(visitor);
            }
            return visitor.visit_seq(Sequence::new(self, self.tuple()?));
        };
        let taken = Taken::default();
        let read = visitor.visit_seq(Arguments {
            value: self,
            place: 0,
            length,
            taken: &taken,
        });
        // Which of them nobody takes shows when all parameters have been read.
        if items.len() > length && !taken.rest.get() {
            return Err(ValueError::new(format_args!(
                "the function takes {length} arguments, {} were given",
                items.len()
            )));
        }
        for (keyword, _) in keywords {
            let keyword = text(keyword.text()?)?;
            let place = parameters.iter().position(|name| *name == keyword);
            let fine = match place {
                Some(place) => place >= items.len(),
                None => taken.keywords.get(),
            };
            if !fine {
                return Err(ValueError::new(format_args!(
                    "there is no argument `{keyword}`, or it is there twice; the function takes ({})",
                    parameters.join(", ")
                )));
            }
        }
        read
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_map(Pairs::new(self, self.pairs()?))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if let What::One(view) = self.what
            && let Some(fields) = self.special.fields(name, view)?
        {
            return Captured::Fields(fields).deserialize_any(visitor);
        }
        match self.shape()? {
            Shape::Tuple(items) | Shape::List(items) => {
                return visitor.visit_seq(Sequence::new(self, items));
            }
            // A class whose objects never change has its attributes one after the other.
            Shape::Call {
                state: Some(state), ..
            } => {
                if let Shape::List(items) = state.shape()? {
                    return visitor.visit_seq(Sequence::new(self, items));
                }
            }
            Shape::Call { .. } => {
                if let Some(items) = named_tuple(self.view()?)? {
                    return visitor.visit_seq(Sequence::new(self, items));
                }
            }
            _ => {}
        }
        visitor.visit_map(Pairs::new(self, self.pairs()?))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        match name {
            "farref::RRef" => match self.beside()? {
                Some(Beside::Reference(number)) => {
                    visitor.visit_newtype_struct(Captured::Number(number))
                }
                _ => Err(self.shape()?.is_not("a reference").into()),
            },
            "farref::Peer" => match self.beside()? {
                Some(Beside::Peer(inside)) => visitor.visit_newtype_struct(inside),
                _ => visitor.visit_newtype_struct(self),
            },
            "farref::Blob" | "farref::Buffer" => {
                let inside = match self.beside()? {
                    Some(Beside::Memory(inside)) => as_memory(name, inside),
                    Some(Beside::Array(array)) => as_memory(name, array.memory),
                    _ => {
                        let bytes = match (self.bytes()?, self.shape()?) {
                            (Some(bytes), _) | (None, Shape::Text(bytes)) => bytes.to_vec(),
                            (None, other) => return Err(other.is_not("bytes").into()),
                        };
                        let here = vec![Captured::Text("One"), Captured::Bytes(bytes)];
                        as_memory(name, Captured::variant("Here", Captured::List(here)))
                    }
                };
                visitor.visit_newtype_struct(inside)
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, ValueError> {
        if ANY_DATA.contains(&name) {
            let variant = self.variant()?;
            return visitor.visit_enum(Variant {
                name: variant,
                value: Some(self),
            });
        }
        match self.shape()? {
            Shape::Text(name) => visitor.visit_enum(Variant {
                name: text(name)?,
                value: None,
            }),
            _ => {
                let pairs = self.pairs()?;
                let [(variant, value)] = pairs[..] else {
                    return Err(ValueError::new(format_args!(
                        "a variant is its name, or a dict of its name and its value, not a dict of {}",
                        pairs.len()
                    )));
                };
                visitor.visit_enum(Variant {
                    name: text(variant.text()?)?,
                    value: Some(self.one(value)),
                })
            }
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, ValueError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 u8 u16 u32 u64 char str string unit_struct identifier
    }
}

/// Memory as a blob or a buffer reads it: a blob has no size of elements.
fn as_memory(name: &str, inside: Captured) -> Captured {
    match inside {
        Captured::Variant("Here", here) if name == "farref::Blob" => match *here {
            Captured::List(mut parts) if parts.len() == 2 => {
                Captured::variant("Here", parts.remove(1))
            }
            other => Captured::variant("Here", other),
        },
        other => other,
    }
}

impl Value<'_, '_, '_> {
    /// Which variant of any data it is.
    fn variant(self) -> Result<&'static str, ValueError> {
        if let What::One(view) = self.what
            && let Some(variant) = self.special.variant(view)?
        {
            return Ok(variant);
        }
        match self.beside()? {
            Some(Beside::Reference(_)) => return Ok("Reference"),
            Some(Beside::Array(array)) if array.is_number() => return Ok(array.kind_of_number()),
            Some(Beside::Memory(_) | Beside::Array(_)) => return Ok("Bytes"),
            Some(Beside::Peer(_)) | None => {}
        }
        Ok(match self.shape()? {
            Shape::None => "None",
            Shape::Bool(_) => "Bool",
            Shape::Int(_) | Shape::Long(_) => "Int",
            Shape::Float(_) => "Float",
            Shape::Text(_) => "Text",
            Shape::Bytes(_) => "Bytes",
            Shape::Tuple(_) => "Tuple",
            Shape::List(_) => "List",
            Shape::Set(_) => "Set",
            Shape::Dict(_) => "Dict",
            Shape::Global(..) => "Name",
            shape @ Shape::Call { callee, items, .. } => {
                if Named::read(self.view()?)?.is_some() {
                    "Name"
                } else if sequence_of(&shape)?.is_some() {
                    match callee.shape()? {
                        Shape::Global(_, b"set" | b"frozenset") => "Set",
                        Shape::Global(_, b"tuple" | b"Size") => "Tuple",
                        _ => "List",
                    }
                } else if self.bytes()?.is_some() {
                    "Bytes"
                } else if items.is_some()
                    || matches!(
                        callee.shape()?,
                        Shape::Global(b"collections", b"OrderedDict" | b"Counter")
                    )
                {
                    "Dict"
                } else {
                    let class = match callee.shape()? {
                        callee @ Shape::Global(..) => callee.to_string(),
                        _ => "no class with a name".to_owned(),
                    };
                    return Err(ValueError::new(format_args!(
                        "an object of {class} is no plain data"
                    )));
                }
            }
            other @ (Shape::Persistent(_) | Shape::Buffer(_)) => {
                return Err(other.is_not("plain data").into());
            }
        })
    }
}
