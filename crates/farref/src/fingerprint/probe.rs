//! A deserializer that reads nothing: it leads a type to one of its parts and notes what that asks
//! for.
//!
//! A [`Run`] goes along a path, and ends with an error in any case. What lies beside the path but
//! has to be there (the elements of a tuple before the one the path leads to, the key of a map's
//! value) is *made* of dummy values. The only choice in making is the variant of an enum, which
//! [`Choices`] finds by trial.

use std::collections::HashMap;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::found::{Asked, Found, Identity, MAX_DEPTH, identity};
use super::hash::Hash;

/// The names of farref's own types begin with this. They can only be read inside a call.
const OWN: &str = "farref::";

/// The part of a value where a path goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Which: the number of a field, an element or a variant.
    pub(super) part: usize,
    /// Whether a field is offered by its name, which leaves out those before it. Types that were
    /// written by hand may only know the other way.
    pub(super) by_name: bool,
}

/// One deserialization.
pub(super) struct Run<'t> {
    path: &'t [Step],
    steps_left: usize,
    choices: &'t mut Choices,
    /// The enums and sequences that are being made: every type that contains itself has one.
    making: Vec<u64>,
    found: Option<Found>,
    worth_another: bool,
}

/// How a run ended.
pub(super) struct Ended {
    /// What is at the end of the path, if the run got there.
    pub(super) found: Option<Found>,
    /// Whether another run would make other choices.
    pub(super) worth_another: bool,
    pub(super) steps_left: usize,
}

/// Where in the type a deserializer is.
#[derive(Clone, Copy)]
enum At {
    /// On the path, with this many steps behind it.
    Path(usize),
    /// Beside it, at this depth.
    Beside(usize),
}

impl At {
    /// Where the neighbours of the part at this place are made.
    fn beside(self) -> Self {
        let (Self::Path(depth) | Self::Beside(depth)) = self;
        Self::Beside(depth)
    }
}

/// What a deserializer has to do.
enum Turn {
    /// Go on to a part.
    Follow(Step, At),
    /// Make a value, its parts at this place.
    Make(At),
}

impl<'t> Run<'t> {
    pub(super) fn new(path: &'t [Step], steps: usize, choices: &'t mut Choices) -> Self {
        Self {
            path,
            steps_left: steps,
            choices,
            making: Vec::new(),
            found: None,
            worth_another: false,
        }
    }

    /// The deserializer for the whole.
    pub(super) fn probe(&mut self) -> Probe<'_, 't> {
        self.at(At::Path(0))
    }

    pub(super) fn end(self) -> Ended {
        Ended {
            found: self.found,
            worth_another: self.worth_another,
            steps_left: self.steps_left,
        }
    }

    fn at(&mut self, at: At) -> Probe<'_, 't> {
        Probe { run: self, at }
    }

    /// A value is asked for. At the end of the path this says what it is and stops the run.
    fn arrive(&mut self, at: At, asked: Asked, identity: Identity) -> Result<Turn, Stop> {
        // A type may go on after an error; it gets nowhere.
        if self.found.is_some() {
            return Err(Stop);
        }
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Stop)?;
        match at {
            At::Beside(depth) if depth >= MAX_DEPTH => Err(Stop),
            At::Beside(depth) => Ok(Turn::Make(At::Beside(depth + 1))),
            At::Path(behind) => match self.path.get(behind) {
                Some(step) => Ok(Turn::Follow(*step, At::Path(behind + 1))),
                None => {
                    self.found = Some(Found::new(asked, identity));
                    Err(Stop)
                }
            },
        }
    }

    /// Something without parts is asked for: no path goes through it.
    fn arrive_at_leaf(&mut self, at: At, asked: Asked) -> Result<(), Stop> {
        match self.arrive(at, asked, Hash::new)? {
            Turn::Make(_) => Ok(()),
            Turn::Follow(..) => Err(Stop),
        }
    }

    /// Offers a tuple of `len` elements, or those up to the one that the path leads to.
    fn elements<'de, V: Visitor<'de>>(
        &mut self,
        turn: Turn,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_seq(Elements::new(self, turn, len))
    }

    /// Offers a struct.
    fn fields<'de, V: Visitor<'de>>(
        &mut self,
        turn: Turn,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match turn {
            Turn::Follow(step, value) if step.by_name => {
                let name = fields.get(step.part).ok_or(Stop)?;
                visitor.visit_map(Entry {
                    run: self,
                    key: Some(Key::Name(name)),
                    value,
                })
            }
            turn => self.elements(turn, fields.len(), visitor),
        }
    }

    /// Makes a sequence: of one element, as some types insist on one, unless that cannot be made or
    /// is inside a sequence of its kind.
    fn make_seq<'de, V: Visitor<'de>>(
        &mut self,
        element: At,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let Hash(key) = identity::<V>();
        let within_itself = self.making.contains(&key);
        let len = if within_itself { 0 } else { 1 };
        self.making.push(key);
        let made = visitor.visit_seq(Elements {
            may_end: true,
            ..Elements::new(self, Turn::Make(element), len)
        });
        self.making.pop();
        made
    }

    /// Makes an enum, of the variant that the choices have for it.
    fn make_enum<'de, V: Visitor<'de>>(
        &mut self,
        content: At,
        variants: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let Hash(key) = identity::<V>();
        if self.making.contains(&key) {
            return Err(Stop);
        }
        let proven = self.choices.proven.get(&key).copied();
        let variant = proven.unwrap_or_else(|| self.choices.attempt(key));
        self.making.push(key);
        let made = visitor.visit_enum(Variant {
            run: self,
            index: variant,
            at: content,
        });
        self.making.pop();
        if made.is_ok() {
            self.choices.proven.insert(key, variant);
        } else if proven.is_none() && !self.worth_another {
            self.worth_another = self.choices.reconsider(key, variants);
        }
        made
    }
}

/// Which variant to make of an enum.
///
/// A variant is proven when it has been made. Until then each run makes one attempt. If it fails,
/// the innermost enum that has variants left goes on to its next one, and those inside it start
/// over. An enum within itself is not made: a variant that needs it fails, and one that does not is
/// what the search is for.
#[derive(Default)]
pub(super) struct Choices {
    proven: HashMap<u64, usize>,
    attempts: HashMap<u64, usize>,
}

impl Choices {
    pub(super) fn forget_attempts(&mut self) {
        self.attempts.clear();
    }

    fn attempt(&self, key: u64) -> usize {
        self.attempts.get(&key).copied().unwrap_or(0)
    }

    /// Goes on to the next variant. False if there is none: then to the first.
    fn reconsider(&mut self, key: u64, variants: usize) -> bool {
        let next = self.attempt(key) + 1;
        if next < variants {
            self.attempts.insert(key, next);
            true
        } else {
            self.attempts.remove(&key);
            false
        }
    }
}

/// The deserializer of one value.
pub(super) struct Probe<'a, 't> {
    run: &'a mut Run<'t>,
    at: At,
}

macro_rules! leaves {
    ($($method:ident: $label:literal => $visit:ident($($value:expr)?);)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
            self.run.arrive_at_leaf(self.at, Asked::Leaf($label))?;
            visitor.$visit($($value)?)
        }
    )*};
}

impl<'de> Deserializer<'de> for Probe<'_, '_> {
    type Error = Stop;

    // Ones rather than zeros: more types take them.
    leaves! {
        deserialize_any: "any" => visit_unit();
        deserialize_ignored_any: "ignored" => visit_unit();
        deserialize_identifier: "identifier" => visit_borrowed_str("1");
        deserialize_unit: "unit" => visit_unit();
        deserialize_bool: "bool" => visit_bool(true);
        deserialize_i8: "i8" => visit_i8(1);
        deserialize_i16: "i16" => visit_i16(1);
        deserialize_i32: "i32" => visit_i32(1);
        deserialize_i64: "i64" => visit_i64(1);
        deserialize_i128: "i128" => visit_i128(1);
        deserialize_u8: "u8" => visit_u8(1);
        deserialize_u16: "u16" => visit_u16(1);
        deserialize_u32: "u32" => visit_u32(1);
        deserialize_u64: "u64" => visit_u64(1);
        deserialize_u128: "u128" => visit_u128(1);
        deserialize_f32: "f32" => visit_f32(1.0);
        deserialize_f64: "f64" => visit_f64(1.0);
        deserialize_char: "char" => visit_char('1');
        deserialize_str: "str" => visit_borrowed_str("1");
        deserialize_string: "str" => visit_borrowed_str("1");
        // The length of a UUID, and no zero, which would end a C string.
        deserialize_bytes: "bytes" => visit_borrowed_bytes(b"0123456789abcdef");
        deserialize_byte_buf: "bytes" => visit_borrowed_bytes(b"0123456789abcdef");
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let asked = Asked::Option;
        match self.run.arrive(self.at, asked, identity::<V>)? {
            Turn::Follow(_, content) => visitor.visit_some(self.run.at(content)),
            Turn::Make(_) => visitor.visit_none(),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let asked = Asked::UnitStruct(name);
        self.run.arrive_at_leaf(self.at, asked)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        if name.starts_with(OWN) {
            let asked = Asked::Own(name);
            self.run.arrive_at_leaf(self.at, asked)?;
            return visitor.visit_unit();
        }
        let asked = Asked::Newtype(name);
        let (Turn::Follow(_, content) | Turn::Make(content)) =
            self.run.arrive(self.at, asked, identity::<V>)?;
        visitor.visit_newtype_struct(self.run.at(content))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let asked = Asked::Seq;
        match self.run.arrive(self.at, asked, identity::<V>)? {
            Turn::Make(element) => self.run.make_seq(element, visitor),
            follow => self.run.elements(follow, 1, visitor),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        let asked = Asked::Tuple(len);
        let turn = self.run.arrive(self.at, asked, identity::<V>)?;
        self.run.elements(turn, len, visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let asked = Asked::TupleStruct(name, len);
        let turn = self.run.arrive(self.at, asked, identity::<V>)?;
        self.run.elements(turn, len, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let asked = Asked::Map;
        let turn = self.run.arrive(self.at, asked, identity::<V>)?;
        let run = self.run;
        let entry = match turn {
            Turn::Follow(Step { part: 0, .. }, key) => Entry {
                run,
                key: Some(Key::At(key)),
                value: key,
            },
            Turn::Follow(_, value) => Entry {
                run,
                key: Some(Key::At(value.beside())),
                value,
            },
            // Empty, because an entry whose value fails could not be taken back.
            Turn::Make(value) => Entry {
                run,
                key: None,
                value,
            },
        };
        visitor.visit_map(entry)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let asked = Asked::Struct(name, fields);
        let turn = self.run.arrive(self.at, asked, identity::<V>)?;
        self.run.fields(turn, fields, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let asked = Asked::Enum(name, variants);
        match self.run.arrive(self.at, asked, identity::<V>)? {
            Turn::Follow(step, content) => visitor.visit_enum(Variant {
                run: self.run,
                index: step.part,
                at: content,
            }),
            Turn::Make(content) => self.run.make_enum(content, variants.len(), visitor),
        }
    }

    fn is_human_readable(&self) -> bool {
        false
    }
}

/// Elements that are made, and then perhaps the one that the path leads to.
struct Elements<'a, 't> {
    run: &'a mut Run<'t>,
    made: usize,
    beside: At,
    last: Option<At>,
    /// Whether an element that fails may be left out.
    may_end: bool,
}

impl<'a, 't> Elements<'a, 't> {
    fn new(run: &'a mut Run<'t>, turn: Turn, len: usize) -> Self {
        let (made, beside, last) = match turn {
            Turn::Follow(step, at) => (step.part, at.beside(), Some(at)),
            Turn::Make(beside) => (len, beside, None),
        };
        Self {
            run,
            made,
            beside,
            last,
            may_end: false,
        }
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Stop;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        let at = match self.made.checked_sub(1) {
            Some(left) => {
                self.made = left;
                self.beside
            }
            None => match self.last.take() {
                Some(at) => at,
                None => return Ok(None),
            },
        };
        match seed.deserialize(self.run.at(at)) {
            Err(Stop) if self.may_end => Ok(None),
            element => element.map(Some),
        }
    }
}

/// At most one entry of a map or a struct.
struct Entry<'a, 't> {
    run: &'a mut Run<'t>,
    key: Option<Key>,
    value: At,
}

enum Key {
    Name(&'static str),
    At(At),
}

impl<'de> MapAccess<'de> for Entry<'_, '_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        match self.key.take() {
            Some(Key::Name(name)) => seed.deserialize(name.into_deserializer()).map(Some),
            Some(Key::At(at)) => seed.deserialize(self.run.at(at)).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Stop> {
        seed.deserialize(self.run.at(self.value))
    }
}

/// A variant of an enum, which its content is yet to be asked of.
struct Variant<'a, 't> {
    run: &'a mut Run<'t>,
    index: usize,
    at: At,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Stop;
    type Variant = Self;

    /// Names the variant by its number, as postcard does.
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Stop> {
        let index = u32::try_from(self.index).map_err(|_| Stop)?;
        let variant = seed.deserialize(index.into_deserializer())?;
        Ok((variant, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        let asked = Asked::UnitVariant;
        self.run.arrive_at_leaf(self.at, asked)
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Stop> {
        let asked = Asked::NewtypeVariant;
        let (Turn::Follow(_, content) | Turn::Make(content)) =
            self.run.arrive(self.at, asked, Hash::new)?;
        seed.deserialize(self.run.at(content))
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        let asked = Asked::TupleVariant(len);
        let turn = self.run.arrive(self.at, asked, Hash::new)?;
        self.run.elements(turn, len, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let asked = Asked::StructVariant(fields);
        let turn = self.run.arrive(self.at, asked, Hash::new)?;
        self.run.fields(turn, fields, visitor)
    }
}

/// The end of a run. Says nothing more, because nobody reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stop;

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tracing of a type's shape stopped here")
    }
}

impl std::error::Error for Stop {}

impl Error for Stop {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}
