//! The beginning of a group: of which kind it is, and who founds it.

use farref_proto::GroupId;
use serde::{Deserialize, Serialize};

use super::card::Card;
use crate::error::{RendezvousError, corrupt};
use crate::identity::MAX_WORLD_SIZE;
use crate::random;

/// The first byte of the founders' record.
const VERSION: u8 = 3;

/// Whether a group is founded by a fixed number of workers or by the first that comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GroupKind {
    /// Founded by so many workers, which have the ranks below that number.
    Static(u32),
    /// Founded by the first that comes.
    Dynamic,
}

/// The beginning of a group: agreed on once, by whoever writes it first.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Founding {
    pub(super) group: GroupId,
    pub(super) founders: Vec<Card>,
}

impl GroupKind {
    pub(super) fn to_text(self) -> String {
        match self {
            Self::Static(size) => format!("static {size}"),
            Self::Dynamic => "dynamic".into(),
        }
    }

    pub(super) fn from_text(text: &str) -> Option<Self> {
        match text.strip_prefix("static ") {
            Some(size) => {
                let size = size.parse().ok()?;
                (1..=MAX_WORLD_SIZE)
                    .contains(&size)
                    .then_some(Self::Static(size))
            }
            None => (text == "dynamic").then_some(Self::Dynamic),
        }
    }

    /// In words for errors.
    pub(super) fn describe(self) -> String {
        match self {
            Self::Static(size) => format!("a world size of {size}"),
            Self::Dynamic => "no fixed world size".into(),
        }
    }
}

impl Founding {
    /// A group with a new id.
    pub(super) fn new(founders: Vec<Card>) -> Result<Self, RendezvousError> {
        let mut bytes = [0; 8];
        random::fill(&mut bytes).map_err(|_| RendezvousError::NoRandomness)?;
        let group = GroupId(u64::from_le_bytes(bytes));
        Ok(Self { group, founders })
    }

    /// The record of it in the store.
    pub(super) fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, vec![VERSION])
    }

    /// Reads what stands at `key`.
    pub(super) fn decode(key: &str, bytes: &[u8]) -> Result<Self, RendezvousError> {
        let encoded = match bytes.split_first() {
            Some((&VERSION, encoded)) => encoded,
            Some((version, _)) => return Err(corrupt(key, &format!("version {version}"))),
            None => return Err(corrupt(key, "it is empty")),
        };
        let founding: Self =
            postcard::from_bytes(encoded).map_err(|error| corrupt(key, &error.to_string()))?;
        if founding.founders.len() > MAX_WORLD_SIZE as usize {
            return Err(corrupt(key, "it has too many founders"));
        }
        for card in &founding.founders {
            card.check()
                .map_err(|error| corrupt(key, &error.to_string()))?;
        }
        Ok(founding)
    }
}
