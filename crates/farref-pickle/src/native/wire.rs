//! The bytes of a value in the foreign form, as Rust sees them: `docs/protocol.md`, FO-1. The Python package has the same
//! struct, with references, peers and buffers in the places of what those write of themselves.

use farref::{Blob, Width};
use serde::{Deserialize, Serialize};

use crate::value::{Captured, ValueError};

/// A pickle, and what travels beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wire {
    /// Whether it is a function or method, its arguments and those that have names; otherwise it is a value.
    pub(super) is_call: bool,
    pub(super) pickle: Blob,
    /// In the order in which the pickle takes them.
    pub(super) buffers: Vec<Memory>,
    /// Numbers of references that the message carries.
    pub(super) references: Vec<u32>,
    pub(super) peers: Vec<SentPeer>,
}

impl Wire {
    /// How many bytes are beside the pickle, and in no part of the message.
    pub(super) fn inline(&self) -> usize {
        let memory = self.buffers.iter().map(Memory::inline);
        memory.chain(self.peers.iter().map(SentPeer::inline)).sum()
    }
}

/// What a buffer writes of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Memory {
    Here(Width, Bytes),
    Part(u32),
}

/// What a peer writes of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SentPeer(u32, Option<u32>, String);

impl Memory {
    /// How many bytes of it are here.
    pub(super) fn inline(&self) -> usize {
        match self {
            Self::Here(_, Bytes(bytes)) => bytes.len(),
            Self::Part(_) => 0,
        }
    }

    /// For who reads it.
    pub(super) fn captured(&self) -> Captured {
        match self {
            Self::Part(part) => Captured::variant("Part", Captured::Number((*part).into())),
            Self::Here(width, Bytes(bytes)) => {
                let width = Captured::Text(match width {
                    Width::One => "One",
                    Width::Two => "Two",
                    Width::Four => "Four",
                    Width::Eight => "Eight",
                });
                let here = vec![width, Captured::Bytes(bytes.clone())];
                Captured::variant("Here", Captured::List(here))
            }
        }
    }

    /// Bytes that were in the pickle.
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::Here(Width::One, Bytes(bytes.to_vec()))
    }
}

impl SentPeer {
    /// How many bytes its name has.
    pub(super) fn inline(&self) -> usize {
        self.2.len()
    }

    /// What a peer has written.
    pub(super) fn of(inside: &Captured) -> Result<Self, ValueError> {
        let small = |number: &Captured| u32::try_from(number.number()?).map_err(ValueError::new);
        match inside.list()? {
            [worker, life, Captured::String(name)] => {
                let life = match life {
                    Captured::Some(life) => Some(small(life)?),
                    _ => None,
                };
                Ok(Self(small(worker)?, life, name.clone()))
            }
            _ => Err(ValueError::new("a peer of another kind")),
        }
    }

    /// For who reads it.
    pub(super) fn captured(&self) -> Captured {
        let Self(worker, life, name) = self;
        let number = |number: &u32| Captured::Number((*number).into());
        Captured::List(vec![
            number(worker),
            Captured::some(life.as_ref().map(number)),
            Captured::String(name.clone()),
        ])
    }
}

/// Bytes as bytes, and not one by one.
#[derive(Debug)]
pub(super) struct Bytes(Vec<u8>);

#[cfg(any(test, feature = "fuzzing"))]
impl Bytes {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl serde::de::Visitor<'_> for Visitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Visitor)
    }
}
