//! Hash maps whose layout depends on the ids and a given seed alone, never on the process.

use std::collections::HashMap;

pub(crate) use foldhash::fast::FixedState;

/// A map keyed by ids. Peers choose part of the ids, so the runtime gives each table a secret seed;
/// simulations give a constant. Nothing may let its iteration order out: sort first.
pub(crate) type IdMap<K, T> = HashMap<K, T, FixedState>;

/// An empty map.
pub(crate) fn id_map<K, T>(seed: u64) -> IdMap<K, T> {
    HashMap::with_hasher(FixedState::with_seed(seed))
}

/// The keys that satisfy a condition, in order.
pub(crate) fn sorted_keys<K: Copy + Ord, T>(
    map: &IdMap<K, T>,
    mut wanted: impl FnMut(&K, &T) -> bool,
) -> Vec<K> {
    let mut keys: Vec<K> = map
        .iter()
        .filter(|(key, value)| wanted(key, value))
        .map(|(key, _)| *key)
        .collect();
    keys.sort_unstable();
    keys
}

/// Feeds a map to a hasher in key order, for state comparison in the model checker.
pub(crate) fn hash_sorted<K: Copy + Ord + std::hash::Hash, T: std::hash::Hash>(
    map: &IdMap<K, T>,
    state: &mut impl std::hash::Hasher,
) {
    use std::hash::Hash;
    map.len().hash(state);
    for key in sorted_keys(map, |_, _| true) {
        key.hash(state);
        map.get(&key).hash(state);
    }
}
