//! Pickle to serde.

mod access;
mod shapes;

use std::cell::RefCell;
use std::collections::HashMap;

use serde::de::{self, Deserializer, Visitor};

use access::{Arguments, PairSequence, Pairs, Sequence, Taken, Variant};
use shapes::{
    Pair, call, is_builtin, keywords, long, named_tuple, sequence_of, text, typed, unpacked,
};

use super::arrivals::Arrivals;
use super::body::{Body, Form};
use super::captured::Captured;
use super::error::{TOO_LARGE, ValueError};
use super::{python, tensor};
use crate::pickle::{Pickle, Shape, View};
use crate::rpc::{self, Named, Udf};

/// Reads a value: calls `read` with a deserializer over it.
pub(super) fn from_body<E: std::fmt::Display>(
    body: &Body,
    arrivals: &Arrivals,
    parameters: &'static [&'static str],
    read: impl FnOnce(Value<'_, '_, '_>) -> Result<(), E>,
) -> Result<(), ValueError> {
    let context = Context {
        body,
        arrivals,
        references: body
            .references
            .iter()
            .zip(0..)
            .map(|(&node, number)| (node as usize, number))
            .collect(),
        uses: RefCell::default(),
    };
    let pickle = Pickle::read(match &body.pickle[..] {
        [] => crate::pickle::EMPTY_TUPLE_PICKLE,
        pickle => pickle,
    })?;
    let budget = pickle.budget();
    let root = pickle.view(&budget);
    let (items, named) = match body.form {
        // Arguments as this worker wrote them for itself.
        Form::Whole if !parameters.is_empty() && matches!(root.shape()?, Shape::Tuple(_)) => {
            (root.tuple()?, Vec::new())
        }
        Form::Whole | Form::Only => {
            let view = match body.form {
                Form::Only => root.tuple_of::<1>()?[0],
                _ => root,
            };
            let value = Value {
                what: What::One(view),
                context: &context,
            };
            return read(value).map_err(ValueError::new);
        }
        Form::Udf => call(&Udf::read(root)?, 0)?,
        Form::Proxied => call(&Udf::read(root)?, rpc::PROXY_PARTS)?,
        Form::Method => {
            let udf = Udf::read(root)?;
            let items = udf.arguments.tuple()?;
            let [_, _, given, named] = items[..] else {
                return Err(ValueError::new("a call of a method has four parts"));
            };
            (unpacked(given)?, keywords(named)?)
        }
        Form::RustMethod => {
            let [_, given] = Udf::read(root)?.arguments.tuple_of()?;
            (given.tuple()?, Vec::new())
        }
        Form::Head(count) => {
            let mut items = root.tuple()?;
            items.truncate(count as usize);
            (items, Vec::new())
        }
        Form::Nothing => (Vec::new(), Vec::new()),
    };
    let value = Value {
        what: What::Arguments(&items, &named, parameters),
        context: &context,
    };
    read(value).map_err(ValueError::new)
}

/// What belongs to the message that a value is read from.
struct Context<'b> {
    body: &'b Body,
    arrivals: &'b Arrivals,
    /// Nodes that are references, and their numbers.
    references: HashMap<usize, u32>,
    /// How often each tensor has been read.
    uses: RefCell<HashMap<usize, usize>>,
}

/// A value to be read.
#[derive(Clone, Copy)]
pub(super) struct Value<'c, 'p, 'a> {
    what: What<'c, 'p, 'a>,
    context: &'c Context<'c>,
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

    /// Which tensor of the message it is, if it is one. A parameter of a module is one, too.
    fn tensor(self) -> Result<Option<usize>, ValueError> {
        let What::One(view) = self.what else {
            return Ok(None);
        };
        if !view.is_call()? {
            return Ok(None);
        }
        if let Some(parts) = view.call_of("torch._utils", "_rebuild_parameter")? {
            return match parts.first() {
                Some(&first) => self.one(first).tensor(),
                None => Ok(None),
            };
        }
        if let Some(parts) = view.call_of("torch.jit._pickle", "build_tensor_from_id")? {
            return match parts[..] {
                [place] => Ok(usize::try_from(place.int()?).ok()),
                _ => Ok(None),
            };
        }
        Ok(rpc::read_tensor(view)?)
    }

    /// What a tensor reads of itself.
    fn tensor_fields(
        self,
        name: &'static str,
        place: usize,
    ) -> Result<Vec<(&'static str, Captured)>, ValueError> {
        let Body {
            tensors, received, ..
        } = self.context.body;
        let entry = tensors.get(place).ok_or_else(|| {
            ValueError::new(format_args!("tensor {place} did not come with the value"))
        })?;
        let use_number = {
            let mut uses = self.context.uses.borrow_mut();
            let uses = uses.entry(place).or_default();
            *uses += 1;
            *uses - 1
        };
        let records = entry.requires_grad && entry.dtype.is_float();
        let link = match received {
            Some(received) if records => {
                let before = tensors[..place].iter();
                let place = before.filter(|tensor| tensor.requires_grad).count();
                let index = self.context.arrivals.read(*received, place, tensors);
                index.map(|index| (received.message, index))
            }
            _ => entry.link,
        };
        tensor::fields_of(name, entry, use_number, link)
    }

    /// The number of the reference that it is, or of the part, if it is one.
    fn beside(self) -> Result<Option<i64>, ValueError> {
        let view = self.view()?;
        if let Some(&number) = self.context.references.get(&view.key()) {
            return Ok(Some(number.into()));
        }
        match view.is_persistent()?.then(|| view.shape()).transpose()? {
            Some(Shape::Persistent(id)) => Ok(Some(id.int()?)),
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
        if let Some(place) = self.tensor()? {
            // Whoever does not know the type may keep it and read it as one later, as enums without tags do.
            let fields = self.tensor_fields(tensor::TENSOR, place)?;
            return Captured::Fields(fields).plain().deserialize_any(visitor);
        }
        if let Some(number) = self.beside()? {
            let beside = match u64::try_from(number) {
                Ok(reference) => Captured::Number(reference),
                Err(_) => {
                    let part = u64::try_from(-1 - number).map_err(ValueError::new)?;
                    Captured::variant("Part", Captured::Number(part)).plain()
                }
            };
            return visitor.visit_newtype_struct(beside);
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
            other @ Shape::Persistent(_) => Err(other.is_not("plain data").into()),
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
        if name == tensor::TENSOR || name == tensor::RAW_TENSOR {
            let place = self.tensor()?;
            let Some(place) = place else {
                return Err(self.shape()?.is_not("a tensor").into());
            };
            let fields = self.tensor_fields(name, place)?;
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
                Some(number) => {
                    let number = u64::try_from(number).map_err(ValueError::new)?;
                    visitor.visit_newtype_struct(Captured::Number(number))
                }
                None => Err(self.shape()?.is_not("a reference").into()),
            },
            "farref::Blob" | "farref::Buffer" => {
                let inside = match self.beside()? {
                    Some(number) if number < 0 => {
                        let part = u64::try_from(-1 - number).map_err(ValueError::new)?;
                        Captured::variant("Part", Captured::Number(part))
                    }
                    _ => {
                        let bytes = match (self.bytes()?, self.shape()?) {
                            (Some(bytes), _) | (None, Shape::Text(bytes)) => bytes.to_vec(),
                            (None, other) => return Err(other.is_not("bytes").into()),
                        };
                        let bytes = Captured::Bytes(bytes);
                        let here = match name {
                            "farref::Blob" => bytes,
                            _ => Captured::List(vec![Captured::Text("One"), bytes]),
                        };
                        Captured::variant("Here", here)
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
        if name == python::PY_VALUE {
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

impl Value<'_, '_, '_> {
    /// Which variant of a [`PyValue`](super::PyValue) it is.
    fn variant(self) -> Result<&'static str, ValueError> {
        if self.tensor()?.is_some() {
            if self
                .view()?
                .call_of("torch._utils", "_rebuild_parameter")?
                .is_some()
            {
                let what = "a parameter of a module is no plain data: send its `.data`";
                return Err(ValueError::new(what));
            }
            return Ok("Tensor");
        }
        if let Some(number) = self.beside()? {
            return Ok(if number < 0 { "Bytes" } else { "Reference" });
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
            other @ Shape::Persistent(_) => return Err(other.is_not("plain data").into()),
        })
    }
}
