//! How a worker gets into a group of PyTorch workers and out of it, as far as it happens in their store.
//!
//! | part | job |
//! | --- | --- |
//! | [`arrival`] | being counted, so that the host of the store goes on |
//! | [`meeting`] | the keys that members read and write |
//! | [`turn`] | who may change a dynamic group |
//! | [`gone`] | what workers that died have left there |
//! | [`devices`] | what the members of a static group tell each other with Gloo |
//! | [`address`] | under which address this worker is to be found |
//!
//! A group has a fixed size (static) or workers come and go (dynamic). PyTorch's workers of a dynamic group
//! take turns in changing it; between taking and giving up its turn a worker also calls the others.
//!
//! # Invariants
//!
//! - **GR-1** The keys, the values and their order are PyTorch's: a PyTorch worker that comes at any moment
//!   finds what it would find if this worker were one. There is one more key, when a static group has lost a member.
//! - **GR-2** A worker that fails to join does not stay in the list of a dynamic group.
//! - **GR-3** What others have put into the store is checked before it is believed, and errors name the key.
//! - **GR-4** The turn to change a dynamic group is given up whatever becomes of its holder, as long as its process
//!   lives and reaches the store.
//! - **GR-5** The turn of a worker that is gone is given up by whoever waits for its own. One that joins, and has not said
//!   yet where it is, is not taken for gone for that.

use std::time::Duration;

use farref::StoreError;
use tokio::time::Instant;

use crate::gloo::GlooError;

mod address;
mod arrival;
mod devices;
mod gone;
mod meeting;
mod turn;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod torch_tests;

pub(crate) use address::{GLOO_INTERFACE, RPC_INTERFACE, hostname, published_ip};
pub(crate) use arrival::arrive;
pub(crate) use gone::is_over;
pub(crate) use meeting::{Meeting, Member, Place};
pub(crate) use turn::{Change, Turn};

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
    fn store(doing: impl Into<String>) -> impl FnOnce(StoreError) -> Self {
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

/// When a time that begins now ends. Callers may mean "never" by a very long one.
pub(crate) fn end_of(patience: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + patience.min(NEVER)
}

/// For `crate::fuzzing`: what others put into the store, and tell.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = devices::read(data, "worker0");
    let list = meeting::Listing::parse(data);
    if let Ok(list) = list {
        // What was understood means the same when it is written again.
        assert_eq!(meeting::Listing::parse(list.text().as_bytes()), Ok(list));
    }
}
