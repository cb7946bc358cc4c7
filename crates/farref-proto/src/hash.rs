//! Hash maps whose layout depends on the ids and a given seed alone, never on the process, and whose
//! size follows the number of entries both ways.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};
use std::ops::{Deref, DerefMut};

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

/// Maps below this size are not worth shrinking.
const SMALL: usize = 4096;

/// How ids are hashed: both halves with a secret of their own.
///
/// The hash function multiplies one half of an id by the other. By itself it mixes a seed into the first one only, and
/// a constant into the second, which for the id that is this constant makes the seed and the first half of no account.
#[derive(Clone, Debug)]
pub(crate) struct IdState {
    first: u64,
    second: u64,
}

impl IdState {
    pub(crate) fn new(seed: u64) -> Self {
        // Both with about as many ones as zeros, be the seed what it may: it is a factor.
        let [first, second] = [1, 2]
            .map(|step| mixed(seed.wrapping_add(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(step))));
        Self { first, second }
    }
}

/// The mixing step of SplitMix64.
fn mixed(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl BuildHasher for IdState {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher {
            hasher: FoldHasher::with_seed(self.first, SharedSeed::global_fixed()),
            second: self.second,
        }
    }
}

/// Hashes one id.
pub(crate) struct IdHasher {
    hasher: FoldHasher<'static>,
    second: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.hasher.write(bytes);
    }

    fn write_u32(&mut self, half: u32) {
        self.hasher.write_u32(half);
    }

    /// The second half of an id, or one that is nothing else.
    fn write_u64(&mut self, half: u64) {
        self.hasher.write_u64(half ^ self.second);
    }

    fn finish(&self) -> u64 {
        self.hasher.finish()
    }
}

/// A map keyed by ids. Peers choose part of the ids, so the runtime gives each table a secret seed;
/// simulations give a constant. Nothing may let its iteration order out: sort first.
///
/// A plain `HashMap` lets deleted entries count as full. A table of constant size whose entries come
/// and go would end up twice as large as it need be, and one that was large once would stay so. This
/// one is laid out anew instead.
#[derive(Clone, Debug)]
pub(crate) struct IdMap<K, T> {
    map: HashMap<K, T, IdState>,
    /// How many entries fit into the present layout when it is fresh.
    full: usize,
}

/// An empty map.
pub(crate) fn id_map<K, T>(seed: u64) -> IdMap<K, T> {
    IdMap {
        map: HashMap::with_hasher(IdState::new(seed)),
        full: 0,
    }
}

impl<K: Eq + Hash, T> IdMap<K, T> {
    pub(crate) fn insert(&mut self, key: K, value: T) -> Option<T> {
        self.make_room();
        self.map.insert(key, value)
    }

    pub(crate) fn entry(&mut self, key: K) -> Entry<'_, K, T> {
        self.make_room();
        self.map.entry(key)
    }

    /// All entries, in no order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (K, T)> {
        self.map.into_iter()
    }

    pub(crate) fn remove<Q>(&mut self, key: &Q) -> Option<T>
    where
        K: Borrow<Q>,
        Q: Eq + Hash + ?Sized,
    {
        let removed = self.map.remove(key);
        if self.full > SMALL && self.map.len() < self.full / 8 {
            self.map.shrink_to(self.map.len() * 2);
            self.full = self.map.capacity();
        }
        removed
    }

    /// Makes room for one more entry: in the size the map has if deleted entries are why there is no
    /// room, in twice that size if it is really full.
    fn make_room(&mut self) {
        if self.map.len() < self.map.capacity() {
            return;
        }
        if self.map.len() < self.full - self.full / 16 {
            let hasher = self.map.hasher().clone();
            let mut fresh = HashMap::with_capacity_and_hasher(self.full, hasher);
            fresh.extend(self.map.drain());
            self.map = fresh;
        } else {
            self.map.reserve(1);
        }
        self.full = self.map.capacity();
    }
}

impl<K, T> Deref for IdMap<K, T> {
    type Target = HashMap<K, T, IdState>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl<K, T> DerefMut for IdMap<K, T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.map
    }
}

impl<'a, K, T> IntoIterator for &'a IdMap<K, T> {
    type Item = (&'a K, &'a T);
    type IntoIter = std::collections::hash_map::Iter<'a, K, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

impl<K: Eq + Hash, T: PartialEq> PartialEq for IdMap<K, T> {
    fn eq(&self, other: &Self) -> bool {
        self.map == other.map
    }
}

impl<K: Eq + Hash, T: Eq> Eq for IdMap<K, T> {}

/// In key order, for state comparison in the model checker.
impl<K: Copy + Ord + Hash, T: Hash> Hash for IdMap<K, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        for key in sorted_keys(self, |_, _| true) {
            key.hash(state);
            self.get(&key).hash(state);
        }
    }
}

/// Entries in the order of their keys, for what others get to see.
pub(crate) fn in_order<K: Copy + Ord, T>(entries: impl Iterator<Item = (K, T)>) -> Vec<(K, T)> {
    let mut entries: Vec<_> = entries.collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    entries
}

/// The keys that satisfy a condition, in order.
pub(crate) fn sorted_keys<'a, K: Copy + Ord + 'a, T: 'a>(
    map: impl IntoIterator<Item = (&'a K, &'a T)>,
    mut wanted: impl FnMut(&K, &T) -> bool,
) -> Vec<K> {
    let mut keys: Vec<K> = map
        .into_iter()
        .filter(|(key, value)| wanted(key, value))
        .map(|(key, _)| *key)
        .collect();
    keys.sort_unstable();
    keys
}

/// The least keys, at most so many, in order.
pub(crate) fn least_keys<'a, K: Copy + Ord + 'a, T: 'a>(
    map: impl IntoIterator<Item = (&'a K, &'a T)>,
    most: usize,
) -> Vec<K> {
    let mut keys: Vec<K> = map.into_iter().map(|(key, _)| *key).collect();
    if most < keys.len() {
        keys.select_nth_unstable(most);
        keys.truncate(most);
    }
    keys.sort_unstable();
    keys
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::ids::{NodeId, RRefId};

    /// A peer chooses both halves of an id: none of them may make the other one, and the seed, of no account.
    #[test]
    fn no_choice_of_ids_that_a_peer_can_make_without_the_seed_collides() {
        // What the hash function itself mixes into the second half is in its source.
        let second_halves = [0, 1, u64::MAX, 0xc0ac_29b7_c97c_50dd];
        for seed in [0, 1, 0x1234_5678_9abc_def0] {
            let map = id_map::<RRefId, ()>(seed);
            for counter in second_halves {
                let ids = (0..10_000).map(|rank| RRefId::new(NodeId::new(rank, 1), counter));
                let hashes: HashSet<u32> = ids.map(|id| map.hasher().hash_one(id) as u32).collect();
                assert!(hashes.len() > 9_000, "{} with {counter:#x}", hashes.len());
            }
            for rank in [0, 1, u32::MAX] {
                let ids = (0..10_000).map(|counter| RRefId::new(NodeId::new(rank, 1), counter));
                let hashes: HashSet<u32> = ids.map(|id| map.hasher().hash_one(id) as u32).collect();
                assert!(hashes.len() > 9_000, "{} of {rank}", hashes.len());
            }
        }
    }

    #[test]
    fn a_map_whose_entries_come_and_go_does_not_grow() {
        let mut map = id_map(0);
        for key in 0..10_000u64 {
            map.insert(key, ());
        }
        let size = map.capacity();
        for key in 10_000..1_000_000 {
            map.insert(key, ());
            map.remove(&(key - 10_000));
        }
        assert_eq!(map.len(), 10_000);
        assert!(map.full <= size, "{} and was {size}", map.full);
    }

    #[test]
    fn the_least_keys_come_in_order_and_never_too_many() {
        let mut map = id_map(0);
        for key in (0..100u64).rev() {
            map.insert(key, ());
        }
        for most in [0, 1, 99, 100, usize::MAX] {
            let expected: Vec<u64> = (0..100).take(most).collect();
            assert_eq!(least_keys(&map, most), expected);
        }
    }

    #[test]
    fn a_map_that_was_large_once_shrinks() {
        let mut map = id_map(0);
        for key in 0..1_000_000u64 {
            map.insert(key, ());
        }
        for key in 100..1_000_000 {
            map.remove(&key);
        }
        assert!((0..100).all(|key| map.contains_key(&key)));
        assert!(map.capacity() < 2 * SMALL, "{}", map.capacity());
    }
}
