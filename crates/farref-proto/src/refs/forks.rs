//! The forks of one reference that its owner knows, each with its holder.
//!
//! Nearly every reference has one holder, so one fork is kept inline and costs no allocation. More
//! are kept sorted, which makes them compact and their order independent of arrival.
//!
//! - **FK-1** A fork is known by its id *and* its holder. Ids can be guessed: whoever registers one that was made for
//!   somebody else has a fork of its own by that, and takes nothing from anybody.

use crate::ids::{ForkId, NodeId};

/// One registered fork.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Fork {
    pub(super) id: ForkId,
    pub(super) holder: NodeId,
}

/// A set of forks, by id and holder.
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

    /// Who has a fork with this id: the first of them, should there be several (FK-1).
    pub(super) fn holder(&self, id: ForkId) -> Option<NodeId> {
        let forks = self.as_slice();
        let at = forks.partition_point(|fork| fork.id < id);
        let fork = forks.get(at).filter(|fork| fork.id == id)?;
        Some(fork.holder)
    }

    /// Whether this holder has a fork with this id.
    pub(super) fn contains(&self, id: ForkId, holder: NodeId) -> bool {
        self.as_slice().binary_search(&Fork { id, holder }).is_ok()
    }

    /// Adds the fork unless it is there.
    pub(super) fn insert(&mut self, id: ForkId, holder: NodeId) {
        let fork = Fork { id, holder };
        match self {
            Self::Empty => *self = Self::One(fork),
            Self::One(one) if *one == fork => {}
            Self::One(one) => {
                let mut both = vec![*one, fork];
                both.sort_unstable();
                *self = Self::Many(both);
            }
            Self::Many(forks) => {
                if let Err(at) = forks.binary_search(&fork) {
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

    pub(super) fn remove(&mut self, id: ForkId, holder: NodeId) {
        let gone = Fork { id, holder };
        match self {
            Self::Many(forks) if forks.len() > 2 => {
                if let Ok(at) = forks.binary_search(&gone) {
                    forks.remove(at);
                }
            }
            _ => self.remove_if(|fork| *fork == gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// FK-1
        #[test]
        fn a_fork_set_behaves_like_a_set_of_pairs(ops in prop::collection::vec((0u64..4, 0u32..3, any::<bool>()), 0..60)) {
            let mut set = ForkSet::default();
            let mut pairs = BTreeSet::new();
            for (counter, holder, insert) in ops {
                let (id, holder) = (ForkId::new(NodeId::new(0, 1), counter), NodeId::new(holder, 1));
                if insert {
                    set.insert(id, holder);
                    pairs.insert((id, holder));
                } else {
                    set.remove(id, holder);
                    pairs.remove(&(id, holder));
                }
                let listed: Vec<_> = set.as_slice().iter().map(|fork| (fork.id, fork.holder)).collect();
                prop_assert_eq!(listed, pairs.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(set.is_empty(), pairs.is_empty());
                prop_assert_eq!(set.contains(id, holder), pairs.contains(&(id, holder)));
                let first = pairs.iter().find(|(other, _)| *other == id);
                prop_assert_eq!(set.holder(id), first.map(|(_, holder)| *holder));
            }
        }
    }
}
