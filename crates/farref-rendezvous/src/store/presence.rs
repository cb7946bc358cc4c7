//! What a store can do beyond storing, if it notices when its users go.

use bytes::Bytes;

use super::StoreFuture;

/// A store that notices when its users go, dead or alive: by leases, mostly. [`Store::presence`](super::Store::presence)
/// says of a store that it is one, as that on etcd does.
///
/// A *user* is one opened store, as each worker has it. A *member* is a user that has [settled](Self::settle).
///
/// # Guarantees
///
/// 1. What was [set while here](Self::compare_set_while_here) is gone soon after its user has left or died, unless
///    another user has set it since.
/// 2. Once all members have gone, what is in the store is over: [`over`](Self::over) returns at all users who are
///    still there, every operation of theirs fails with [`StoreError::Ended`](super::StoreError::Ended), at the
///    latest when somebody opens the store anew, and who does finds it empty. Before anybody has settled, the same
///    happens when all users have gone.
/// 3. A user that was taken for dead, and is not, hears of it from [`Store::lost`](super::Store::lost). It may set
///    again what is gone, unless others have begun anew meanwhile.
///
/// ```
/// use farref_rendezvous::{MemoryStore, Store};
///
/// // One process has one memory: nobody is left behind who could notice.
/// assert!(MemoryStore::new().presence().is_none());
/// ```
pub trait StorePresence: Send + Sync {
    /// Like [`Store::compare_set`](super::Store::compare_set), of a key that goes with this user.
    fn compare_set_while_here<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes>;

    /// Makes this user a member: from now on what is in the store stays at least as long as it is there.
    fn settle(&self) -> StoreFuture<'_, ()>;

    /// Waits until all members have gone, of whom there was one at least.
    fn over(&self) -> StoreFuture<'_, ()>;

    /// Leaves: the others need not wait to notice it. Nothing can be done with the store afterwards.
    ///
    /// A worker does this when it ends, of whatever kind the end is, and when it could not join. A store that the program
    /// has brought is not left by a worker that could not join: the next may try with it.
    fn leave(&self) -> StoreFuture<'_, ()>;
}
