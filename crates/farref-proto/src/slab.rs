//! A map for millions of entries, keyed by ids: each takes its own size and a few bytes more.
//!
//! A hash map doubles, so between one and two thirds of its buckets are empty, each as large as an entry. Here only
//! an index of eight bytes an entry does that. Entries lie in pages, which are never moved and never more than one
//! page too many.
//!
//! # Invariants
//!
//! - **SL-1** Places that only a crowd of entries needed are given back, at a cost that, spread over those
//!   that went, does not grow with the crowd.
//! - **SL-2** What others get to see does not depend on where entries lie: equality and hash are those of a map.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use hashbrown::HashTable;

use crate::hash::{IdState, sorted_keys};

/// Entries of a page.
const PAGE: usize = 1024;
/// Maps below this size are not worth packing.
const SMALL: usize = 4 * PAGE;
/// There is no such place.
const NOWHERE: u32 = u32::MAX;

/// A map keyed by ids. As with [`IdMap`](crate::hash::IdMap) the seed keeps peers from choosing ids that collide, and
/// nothing may let its iteration order out.
#[derive(Clone)]
pub(crate) struct SlabMap<K, T> {
    index: HashTable<Indexed>,
    pages: Vec<Vec<Place<K, T>>>,
    /// The first of the places that are free, each of which names the next.
    free: u32,
    hasher: IdState,
}

/// Where an entry is, and the hash of its key: an index that grows looks at no entry.
#[derive(Clone, Copy)]
struct Indexed {
    place: u32,
    hash: u32,
}

impl Indexed {
    /// The table looks at the highest bits and at the lowest.
    fn hash(self) -> u64 {
        u64::from(self.hash) << 32 | u64::from(self.hash)
    }
}

#[derive(Clone)]
enum Place<K, T> {
    Free { next: u32 },
    Taken { key: K, value: T },
}

impl<K: Copy + Eq + Hash, T> SlabMap<K, T> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            index: HashTable::new(),
            pages: Vec::new(),
            free: NOWHERE,
            hasher: IdState::new(seed),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    fn find(&self, key: &K) -> Option<u32> {
        // Many a node only holds, or only owns.
        if self.index.is_empty() {
            return None;
        }
        let wanted = self.indexed(key, NOWHERE);
        let found = self.index.find(wanted.hash(), self.is_of(key, wanted));
        found.map(|found| found.place)
    }

    fn indexed(&self, key: &K, place: u32) -> Indexed {
        let hash = self.hasher.hash_one(key) as u32;
        Indexed { place, hash }
    }

    fn is_of(&self, key: &K, wanted: Indexed) -> impl Fn(&Indexed) -> bool {
        let pages = &self.pages;
        move |found| {
            found.hash == wanted.hash
                && matches!(at(pages, found.place), Some((other, _)) if other == key)
        }
    }

    pub(crate) fn contains_key(&self, key: &K) -> bool {
        self.find(key).is_some()
    }

    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        let place = self.find(key)?;
        at(&self.pages, place).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        let place = self.find(key)?;
        match place_mut(&mut self.pages, place)? {
            Place::Taken { value, .. } => Some(value),
            Place::Free { .. } => None,
        }
    }

    pub(crate) fn insert(&mut self, key: K, value: T) -> Option<T> {
        if let Some(known) = self.get_mut(&key) {
            return Some(std::mem::replace(known, value));
        }
        let entry = Place::Taken { key, value };
        let place = self.free;
        let place = if let Some(free) = place_mut(&mut self.pages, place) {
            if let Place::Free { next } = *free {
                self.free = next;
            }
            *free = entry;
            place
        } else {
            self.push(entry)
        };
        let indexed = self.indexed(&key, place);
        let hash_of = |known: &Indexed| known.hash();
        self.index.insert_unique(indexed.hash(), indexed, hash_of);
        None
    }

    /// Puts an entry behind all others, and says where that is.
    fn push(&mut self, entry: Place<K, T>) -> u32 {
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            debug_assert!(
                self.pages.len() < NOWHERE as usize / PAGE,
                "no place is left"
            );
            // The first grows with its entries: most maps are small.
            let room = if self.pages.is_empty() { 0 } else { PAGE };
            self.pages.push(Vec::with_capacity(room));
        }
        let before = (self.pages.len() - 1) * PAGE;
        let page = self.pages.last_mut();
        let offset = page.map_or(0, |page| {
            page.push(entry);
            page.len() - 1
        });
        (before + offset) as u32
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<T> {
        let wanted = self.indexed(key, self.find(key)?);
        let same = |found: &Indexed| found.place == wanted.place;
        let found = self.index.find_entry(wanted.hash(), same).ok()?;
        let Indexed { place, .. } = found.remove().0;
        let free = Place::Free { next: self.free };
        let removed = std::mem::replace(place_mut(&mut self.pages, place)?, free);
        self.free = place;
        if self.pages.len() * PAGE > SMALL && self.len() < self.pages.len() * PAGE / 8 {
            self.pack();
        }
        match removed {
            Place::Taken { value, .. } => Some(value),
            Place::Free { .. } => None,
        }
    }

    /// SL-1: lays out what is left anew, in as little room as it needs.
    fn pack(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        self.index = HashTable::new();
        self.free = NOWHERE;
        for entry in pages.into_iter().flatten() {
            if let Place::Taken { key, value } = entry {
                self.insert(key, value);
            }
        }
    }

    /// All entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.into_iter()
    }

    /// All values, in no order.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }
}

fn at<K, T>(pages: &[Vec<Place<K, T>>], place: u32) -> Option<(&K, &T)> {
    let place = place as usize;
    match pages.get(place / PAGE)?.get(place % PAGE)? {
        Place::Taken { key, value } => Some((key, value)),
        Place::Free { .. } => None,
    }
}

fn place_mut<K, T>(pages: &mut [Vec<Place<K, T>>], place: u32) -> Option<&mut Place<K, T>> {
    let place = place as usize;
    pages.get_mut(place / PAGE)?.get_mut(place % PAGE)
}

/// The entries of a [`SlabMap`], in no order.
pub(crate) struct Iter<'a, K, T> {
    pages: std::slice::Iter<'a, Vec<Place<K, T>>>,
    page: std::slice::Iter<'a, Place<K, T>>,
}

impl<'a, K, T> Iterator for Iter<'a, K, T> {
    type Item = (&'a K, &'a T);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match self.page.next() {
                Some(Place::Taken { key, value }) => return Some((key, value)),
                Some(Place::Free { .. }) => {}
                None => self.page = self.pages.next()?.iter(),
            }
        }
    }
}

impl<'a, K, T> IntoIterator for &'a SlabMap<K, T> {
    type Item = (&'a K, &'a T);
    type IntoIter = Iter<'a, K, T>;

    fn into_iter(self) -> Iter<'a, K, T> {
        Iter {
            pages: self.pages.iter(),
            page: [].iter(),
        }
    }
}

impl<K: fmt::Debug, T: fmt::Debug> fmt::Debug for SlabMap<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

/// SL-2
impl<K: Copy + Eq + Hash, T: PartialEq> PartialEq for SlabMap<K, T> {
    fn eq(&self, other: &Self) -> bool {
        let same = |(key, value): (&K, &T)| other.get(key).is_some_and(|known| known == value);
        self.len() == other.len() && self.iter().all(same)
    }
}

impl<K: Copy + Eq + Hash, T: Eq> Eq for SlabMap<K, T> {}

/// SL-2: in key order, for state comparison in the model checker.
impl<K: Copy + Ord + Hash, T: Hash> Hash for SlabMap<K, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len().hash(state);
        for key in sorted_keys(self, |_, _| true) {
            key.hash(state);
            self.get(&key).hash(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_behaves_like_a_map(ops in prop::collection::vec((0u64..40, any::<u8>(), any::<bool>()), 0..200)) {
            let mut slab = SlabMap::new(7);
            let mut map = BTreeMap::new();
            for (key, value, insert) in ops {
                if insert {
                    prop_assert_eq!(slab.insert(key, value), map.insert(key, value));
                } else {
                    prop_assert_eq!(slab.remove(&key), map.remove(&key));
                }
                prop_assert_eq!(slab.len(), map.len());
                prop_assert_eq!(slab.is_empty(), map.is_empty());
                prop_assert_eq!(slab.get(&key), map.get(&key));
                prop_assert_eq!(slab.get_mut(&key), map.get_mut(&key));
                prop_assert_eq!(slab.contains_key(&key), map.contains_key(&key));
            }
            let mut listed: Vec<_> = slab.iter().map(|(key, value)| (*key, *value)).collect();
            listed.sort_unstable();
            prop_assert_eq!(listed, map.into_iter().collect::<Vec<_>>());
        }
    }

    /// SL-1: the same over many pages, which fill and empty in turn.
    #[test]
    fn it_behaves_like_a_map_also_when_it_is_packed() {
        const RANGE: u64 = 20_000;
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let mut slab = SlabMap::new(7);
        let mut map = BTreeMap::new();
        let [mut most, mut least] = [0, usize::MAX];
        for step in 0..400_000 {
            let (key, value) = (next() % RANGE, next());
            let fills = step / 100_000 % 2 == 0;
            if next() % 20 < if fills { 18 } else { 1 } {
                assert_eq!(slab.insert(key, value), map.insert(key, value));
            } else {
                assert_eq!(slab.remove(&key), map.remove(&key));
            }
            assert_eq!((slab.len(), slab.get(&key)), (map.len(), map.get(&key)));
            most = most.max(slab.pages.len());
            if most > SMALL / PAGE {
                least = least.min(slab.pages.len());
            }
        }
        assert!(least < most, "it was never packed: {most} pages");
        let listed = sorted_keys(&slab, |key, value| map.get(key) == Some(value));
        assert_eq!(listed, map.into_keys().collect::<Vec<_>>());
    }

    fn hash_of(map: &SlabMap<u64, u64>) -> u64 {
        IdState::new(0).hash_one(map)
    }

    /// SL-2
    #[test]
    fn equal_entries_make_equal_maps_wherever_they_lie() {
        let [mut one, mut other] = [SlabMap::new(1), SlabMap::new(2)];
        for key in 0..3000_u64 {
            one.insert(key, key);
            other.insert(2999 - key, 2999 - key);
        }
        one.remove(&17);
        one.insert(17, 17);
        assert_eq!(one, other);
        assert_eq!(hash_of(&one), hash_of(&other));
        other.insert(5, 6);
        assert_ne!(one, other);
        assert_ne!(hash_of(&one), hash_of(&other));
        other.remove(&5);
        assert_ne!(one, other);
    }

    /// SL-1
    #[test]
    fn a_map_that_was_large_once_shrinks() {
        let mut map = SlabMap::new(0);
        for key in 0..1_000_000_u64 {
            map.insert(key, key);
        }
        assert!(map.pages.len() <= 1_000_000 / PAGE + 1);
        for key in 100..1_000_000 {
            assert_eq!(map.remove(&key), Some(key));
        }
        assert!((0..100).all(|key| map.get(&key) == Some(&key)));
        assert!(map.pages.len() * PAGE <= SMALL, "{} pages", map.pages.len());
        assert!(map.index.capacity() < 4 * SMALL);
    }

    #[test]
    fn a_map_whose_entries_come_and_go_does_not_grow() {
        let mut map = SlabMap::new(0);
        for key in 0..1_000_000_u64 {
            map.insert(key, ());
            if key >= 10_000 {
                map.remove(&(key - 10_000));
            }
        }
        assert_eq!(map.len(), 10_000);
        assert!(map.pages.len() <= 10_000 / PAGE + 1);
        assert!(map.index.capacity() < 40_000);
    }
}
