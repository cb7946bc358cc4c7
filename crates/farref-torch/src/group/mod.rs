//! How a worker gets into a group of PyTorch workers and out of it, as far as it happens in their store.
//!
//! | part | job |
//! | --- | --- |
//! | [`arrival`] | being counted, so that the host of the store goes on |
//! | [`store`] | the keys that members read and write |
//! | [`listing`] | the list of a dynamic group's members |
//! | [`turn`], [`change`] | who may change a dynamic group, and how |
//! | [`abandoned`] | turns that were dropped before they were ended |
//! | [`gone`] | what workers that died have left there |
//! | [`devices`] | what the members of a static group tell each other with Gloo |
//! | [`error`] | what goes wrong |
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

mod abandoned;
mod address;
mod arrival;
mod change;
mod devices;
mod error;
mod gone;
mod listing;
mod store;
mod turn;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod torch_tests;

pub(crate) use address::{GLOO_INTERFACE, RPC_INTERFACE, published_ip};
pub(crate) use arrival::arrive;
pub(crate) use change::Change;
pub use error::GroupError;
pub(crate) use gone::is_over;
pub(crate) use store::{GroupStore, Member, Place};
pub(crate) use turn::Turn;

/// For `crate::fuzzing`: what others put into the store, and tell.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let _ = devices::read(data, "worker0");
    let list = listing::Listing::parse(data);
    if let Ok(list) = list {
        // What was understood means the same when it is written again.
        assert_eq!(listing::Listing::parse(list.text().as_bytes()), Ok(list));
    }
}
