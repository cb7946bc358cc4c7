//! What keeps a node from shutting down.

use serde::{Deserialize, Serialize};

/// What a node still has to do before it may shut down.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Residue {
    /// Whether the program on the node has asked for the shutdown at all, or only serves.
    pub wants_shutdown: bool,
    /// Calls made or being worked on, and what a node's driver does of its own.
    pub calls: u32,
    /// References owned or held.
    pub references: u32,
    /// Autograd contexts.
    pub contexts: u32,
    /// Membership changes that are not settled.
    pub unsettled: u32,
}

impl Residue {
    /// Whether nothing but references keeps the node from going.
    pub fn only_references(&self) -> bool {
        let references = self.references;
        let rest = Self {
            wants_shutdown: true,
            references,
            ..Self::default()
        };
        references > 0 && *self == rest
    }

    /// Whether the node may go.
    pub fn is_idle(&self) -> bool {
        let ready = Self {
            wants_shutdown: true,
            ..Self::default()
        };
        *self == ready
    }
}
