//! Why a worker does not get into a group, or out of it.

use std::time::Duration;

use farref::StoreError;

use crate::gloo::GlooError;

/// Why a worker could not join a PyTorch group, or leave it in order.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// PyTorch would not take this name.
    #[error("{name:?} cannot be the name of a worker in this group: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// Rank and world size do not go together, or are too large for PyTorch.
    #[error(
        "id (rank) {id}{} cannot be had: ids are below the world size, and below {limit}",
        world.map(|world| format!(" in a group of {world}")).unwrap_or_default()
    )]
    Id {
        /// The id.
        id: u16,
        /// The world size, if there is one.
        world: Option<u16>,
        /// What all ids are below.
        limit: u32,
    },
    /// The store failed, or somebody did not write what was waited for.
    #[error("{doing}: {source}")]
    Store {
        /// What was being done.
        doing: String,
        /// What the store said.
        source: StoreError,
    },
    /// The ranks of a static group did not come together.
    #[error("the ranks of the group did not come together: {0}")]
    Gloo(#[from] GlooError),
    /// Not all workers of a static group have come.
    #[error(
        "{have} of {world} workers came to the store within {waited:.1?}; check that all were started, and \
         with the same world size"
    )]
    Absent {
        /// How many came.
        have: i64,
        /// How many there should be.
        world: u16,
        /// How long was waited.
        waited: Duration,
    },
    /// The group is of the other kind.
    #[error(
        "this worker was started for a {mine} group, and the group that meets here is {group}: give all \
         workers a world size (init_rpc(.., world_size=..) in Python), or none"
    )]
    Kind {
        /// What this worker was started for.
        mine: &'static str,
        /// What the group is.
        group: String,
    },
    /// Two workers have the same name.
    #[error(
        "the name {name:?} is taken: worker {other} has it, and this worker is {mine}; choose another"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// The id of this worker.
        mine: u16,
        /// The id of the worker that has the name.
        other: u16,
    },
    /// Another worker has, or had, this id.
    #[error(
        "id {id} is taken: worker {other:?} has it or had it; PyTorch does not let a second worker have an id, \
         not even when the first one has left, so take one that was never in use"
    )]
    IdTaken {
        /// The id.
        id: u16,
        /// The worker that has it.
        other: String,
    },
    /// Somebody else has kept the right to change the group.
    #[error(
        "another worker has been joining or leaving for {waited:.1?} (its token is {token:?}); if it has failed, \
         end its process: nobody else can change the group while it is there"
    )]
    Busy {
        /// What the other worker has put into the store.
        token: String,
        /// How long was waited.
        waited: Duration,
    },
    /// A worker wants to send tensors to devices that this one does not have.
    #[error(
        "worker {name:?} maps its devices to {devices} of this worker, which has none: take this worker out of \
         its device maps"
    )]
    Devices {
        /// The worker.
        name: String,
        /// The devices.
        devices: String,
    },
    /// An entry of the store, or what a worker told, is not what PyTorch writes.
    #[error(
        "{what} is not what PyTorch writes ({reason}); do all workers use the same store, the same number of \
         init_rpc calls, and nothing else?"
    )]
    Corrupt {
        /// A key of the store, or who told it.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl GroupError {
    /// For `map_err`: what was being done when the store failed.
    pub(super) fn store(doing: impl Into<String>) -> impl FnOnce(StoreError) -> Self {
        let doing = doing.into();
        move |source| Self::Store { doing, source }
    }

    /// Whether it is the store that is gone.
    pub(crate) fn is_lost_store(&self) -> bool {
        use StoreError::{Lost, Unreachable};
        matches!(
            self,
            Self::Store {
                source: Lost { .. } | Unreachable { .. },
                ..
            }
        )
    }
}
