//! The forks of one reference that its owner knows, each with its holder.
//!
//! Nearly every reference has one holder, so one fork is kept inline and costs no allocation. More
//! are kept sorted, which makes them compact and their order independent of arrival.

use crate::ids::{ForkId, NodeId};

/// One registered fork.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Fork {
    pub(super) id: ForkId,
    pub(super) holder: NodeId,
}

/// A set of forks, by id.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum ForkSet {
    #[default]
    Empty,
    One(Fork),
    Many(Vec<Fork>),
}

impl ForkSet {
    pub(super) fn as_slice(&self) -> &[Fork] {
        match self {
            Self::Empty => &[],
            Self::One(fork) => std::slice::from_ref(fork),
            Self::Many(forks) => forks,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Self::Empty)
    }

    pub(super) fn holder(&self, id: ForkId) -> Option<NodeId> {
        let forks = self.as_slice();
        let at = forks.binary_search_by_key(&id, |fork| fork.id).ok()?;
        Some(forks[at].holder)
    }

    /// Adds the fork unless one with its id is there.
    pub(super) fn insert(&mut self, id: ForkId, holder: NodeId) {
        let fork = Fork { id, holder };
        match self {
            Self::Empty => *self = Self::One(fork),
            Self::One(one) if one.id == id => {}
            Self::One(one) => {
                let mut both = vec![*one, fork];
                both.sort_unstable_by_key(|fork| fork.id);
                *self = Self::Many(both);
            }
            Self::Many(forks) => {
                if let Err(at) = forks.binary_search_by_key(&id, |fork| fork.id) {
                    forks.insert(at, fork);
                }
            }
        }
    }

    /// Removes the forks that satisfy a condition.
    pub(super) fn remove_if(&mut self, mut gone: impl FnMut(&Fork) -> bool) {
        match self {
            Self::Empty => {}
            Self::One(one) => {
                if gone(one) {
                    *self = Self::Empty;
                }
            }
            Self::Many(forks) => {
                forks.retain(|fork| !gone(fork));
                match forks.as_slice() {
                    [] => *self = Self::Empty,
                    [one] => *self = Self::One(*one),
                    _ => {}
                }
            }
        }
    }

    pub(super) fn remove(&mut self, id: ForkId) {
        match self {
            Self::Many(forks) if forks.len() > 2 => {
                if let Ok(at) = forks.binary_search_by_key(&id, |fork| fork.id) {
                    forks.remove(at);
                }
            }
            _ => self.remove_if(|fork| fork.id == id),
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
        fn a_fork_set_behaves_like_a_map(ops in prop::collection::vec((0u64..8, 0u32..3, any::<bool>()), 0..60)) {
            let mut set = ForkSet::default();
            let mut map = BTreeMap::new();
            for (counter, holder, insert) in ops {
                let (id, holder) = (ForkId::new(NodeId::new(0, 1), counter), NodeId::new(holder, 1));
                if insert {
                    set.insert(id, holder);
                    map.entry(id).or_insert(holder);
                } else {
                    set.remove(id);
                    map.remove(&id);
                }
                let listed: Vec<_> = set.as_slice().iter().map(|fork| (fork.id, fork.holder)).collect();
                prop_assert_eq!(listed, map.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(set.is_empty(), map.is_empty());
                prop_assert_eq!(set.holder(id), map.get(&id).copied());
            }
        }
    }
}
