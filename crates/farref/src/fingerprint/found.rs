//! What a part of a type asks of a deserializer.

use std::any::type_name;

use serde::de::Visitor;

use super::hash::Hash;

/// Values within values.
pub(super) const MAX_DEPTH: usize = 128;
/// Elements of a tuple, each of which takes making those before it. Serde has tuples of up to 16.
pub(super) const MAX_POSITIONS: usize = 32;

/// What a part asks for, in the words of serde.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    Leaf(&'static str),
    /// A type of farref's own.
    Own(&'static str),
    UnitStruct(&'static str),
    Option,
    Seq,
    Map,
    Newtype(&'static str),
    Tuple(usize),
    TupleStruct(&'static str, usize),
    Struct(&'static str, &'static [&'static str]),
    Enum(&'static str, &'static [&'static str]),
    UnitVariant,
    NewtypeVariant,
    TupleVariant(usize),
    StructVariant(&'static [&'static str]),
}

/// What is asked for at the end of a path, prepared for the tracer.
#[derive(Clone, Debug)]
pub(super) struct Found {
    /// Says it in full but for the parts.
    pub(super) label: String,
    /// How many parts there are to visit.
    pub(super) parts: usize,
    /// Whether they have names.
    pub(super) by_name: bool,
    /// Equal for things that are certain to have equal parts. `None` if nothing else can be equal.
    pub(super) identity: Option<u64>,
}

/// Tells types apart that have one name for serde: `Pair<u8>` and `Pair<u16>`.
pub(super) type Identity = fn() -> Hash;

/// The identity of what a visitor visits: nothing but the visitor's type knows it.
pub(super) fn identity<'de, V: Visitor<'de>>() -> Hash {
    Hash::new()
        .part(type_name::<V>())
        .part(type_name::<V::Value>())
}

impl Found {
    /// What cannot be reached.
    pub(super) fn opaque() -> Self {
        Self::new(Asked::Leaf("opaque"), Hash::new)
    }

    pub(super) fn new(asked: Asked, identity: Identity) -> Self {
        let (parts, by_name) = match asked {
            Asked::Leaf(_) | Asked::Own(_) | Asked::UnitStruct(_) | Asked::UnitVariant => {
                (0, false)
            }
            Asked::Option | Asked::Seq | Asked::Newtype(_) | Asked::NewtypeVariant => (1, false),
            Asked::Map => (2, false),
            Asked::Tuple(len) | Asked::TupleStruct(_, len) | Asked::TupleVariant(len) => {
                (len.min(MAX_POSITIONS), false)
            }
            Asked::Struct(_, fields) | Asked::StructVariant(fields) => (fields.len(), true),
            Asked::Enum(_, variants) => (variants.len(), false),
        };
        let label = asked.label();
        let identity = match asked {
            _ if parts == 0 => Some(Hash::new().part(&label).0),
            // The visitors of two variants of an enum can have the same type.
            Asked::NewtypeVariant | Asked::TupleVariant(_) | Asked::StructVariant(_) => None,
            _ => Some(identity().part(&label).0),
        };
        Self {
            label,
            parts,
            by_name,
            identity,
        }
    }
}

impl Asked {
    fn label(self) -> String {
        match self {
            Self::Leaf(kind) => kind.to_owned(),
            Self::Own(name) => named("own", name),
            Self::UnitStruct(name) => named("unit struct", name),
            Self::Option => "option".to_owned(),
            Self::Seq => "seq".to_owned(),
            Self::Map => "map".to_owned(),
            Self::Newtype(name) => named("newtype struct", name),
            Self::Tuple(len) => format!("tuple {len}"),
            Self::TupleStruct(name, len) => named(&format!("tuple struct {len}"), name),
            Self::Struct(name, fields) => with_names(named("struct", name), fields),
            Self::Enum(name, variants) => with_names(named("enum", name), variants),
            Self::UnitVariant => "unit variant".to_owned(),
            Self::NewtypeVariant => "newtype variant".to_owned(),
            Self::TupleVariant(len) => format!("tuple variant {len}"),
            Self::StructVariant(fields) => with_names("struct variant".to_owned(), fields),
        }
    }
}

/// A name goes with its length, so that no name can be taken for two.
fn named(label: &str, name: &str) -> String {
    format!("{label} {}:{name}", name.len())
}

fn with_names(label: String, names: &[&str]) -> String {
    names.iter().fold(label, |label, name| named(&label, name))
}
