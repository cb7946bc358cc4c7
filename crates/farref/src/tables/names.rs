//! What the workers of the group are called, and where they are.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use farref_proto::NodeId;
use tokio::sync::{Notify, Semaphore};

use crate::rendezvous::{Card, Directory};

/// Of how many lives that are over the names are kept, so that errors can name them.
const REMEMBERED: usize = 1024;

/// How many are looked up at one time. A peer can tell of many who do not exist, and the store has others to serve.
const LOOKUPS: usize = 64;

/// The names of the workers that this one has heard of.
pub(crate) struct Names {
    /// Where to look names up. Another wire than farref's own may have none.
    directory: Option<Directory>,
    known: RwLock<KnownNames>,
    /// Wakes those who wait for a name.
    pub(crate) changed: Notify,
    /// Turns of those who look names up.
    pub(crate) lookups: Arc<Semaphore>,
}

#[derive(Default)]
struct KnownNames {
    names: HashMap<NodeId, KnownName>,
    /// Those of them that are over, the latest to go last.
    over: VecDeque<NodeId>,
}

struct KnownName {
    name: Arc<str>,
    /// Whether the worker itself has said so when it connected. What the store says does not count then.
    proved: bool,
}

impl Names {
    pub(crate) fn new(directory: Option<Directory>) -> Self {
        Self {
            directory,
            known: RwLock::default(),
            changed: Notify::new(),
            lookups: Arc::new(Semaphore::new(LOOKUPS)),
        }
    }

    pub(crate) fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// What a life is called.
    pub(crate) fn of(&self, node: NodeId) -> Option<Arc<str>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.names.get(&node).map(|known| Arc::clone(&known.name))
    }

    /// The named lives that are not over, of those that are asked for.
    pub(crate) fn not_over(&self, wanted: impl Fn(&NodeId) -> bool) -> BTreeSet<NodeId> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let wanted = known.names.keys().filter(|node| wanted(node));
        let lives = wanted.filter(|node| !known.over.contains(node));
        lives.copied().collect()
    }

    /// The lives of that name, the latest first.
    pub(crate) fn lives(&self, name: &str) -> Vec<NodeId> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let lives = known
            .names
            .iter()
            .filter(|(_, known)| known.name.as_ref() == name);
        let mut lives: Vec<NodeId> = lives.map(|(&node, _)| node).collect();
        lives.sort_unstable_by(|a, b| b.cmp(a));
        lives
    }

    /// A life is called so, by what somebody else says.
    pub(crate) fn name(&self, node: NodeId, name: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.names.get(&node).is_some_and(|known| known.proved) {
            return;
        }
        known.insert(node, name, false);
        drop(known);
        self.changed.notify_waiters();
    }

    /// A life has connected, and proved that it is called so. Says whether that is news.
    pub(crate) fn prove(&self, node: NodeId, name: &str) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let before = known.names.get_mut(&node);
        if let Some(before) = before.filter(|before| &*before.name == name) {
            before.proved = true;
            return false;
        }
        known.insert(node, name, true);
        drop(known);
        self.changed.notify_waiters();
        true
    }

    pub(crate) fn insert(&self, card: Card) {
        self.name(card.node, &card.name);
        if let Some(directory) = &self.directory {
            directory.insert(card);
        }
    }

    /// A life never was one of the group's.
    pub(crate) fn remove(&self, node: NodeId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if !known.over.contains(&node) {
            known.names.remove(&node);
        }
        drop(known);
        if let Some(directory) = &self.directory {
            directory.forget(node);
        }
    }

    /// A life is over. Its name stays known for a while, so that errors can name it; its address is of no
    /// more use.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let KnownNames { names, over } = &mut *known;
        if names.contains_key(&node) && !over.contains(&node) {
            over.push_back(node);
        }
        while over.len() > REMEMBERED {
            over.pop_front().map(|oldest| names.remove(&oldest));
        }
        drop(known);
        if let Some(directory) = &self.directory {
            directory.forget(node);
        }
        self.changed.notify_waiters();
    }
}

impl KnownNames {
    fn insert(&mut self, node: NodeId, name: &str, proved: bool) {
        let name = Arc::from(name);
        self.names.insert(node, KnownName { name, proved });
    }
}

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Errors name those who are gone, but not all who ever were.
    #[test]
    fn names_of_the_dead_are_kept_for_the_latest_of_them() {
        let names = Names::new(None);
        let alive = NodeId::new(1, 1);
        names.name(alive, "alive");
        let lives = 10_000;
        for life in 1..=lives {
            let node = NodeId::new(2, life);
            names.name(node, "restarted");
            assert_eq!(names.of(node).as_deref(), Some("restarted"));
            names.forget(node);
            names.forget(node);
        }
        let known = names.known.read().unwrap().names.len();
        assert!(known <= 1 + 1024, "{known} names");
        let latest = NodeId::new(2, lives);
        assert_eq!(names.of(latest).as_deref(), Some("restarted"));
        assert_eq!(names.lives("restarted").first(), Some(&latest));
        assert_eq!(names.of(alive).as_deref(), Some("alive"));
    }

    /// P3: everybody can write into a store.
    #[test]
    fn what_a_worker_has_proved_to_be_called_goes_before_what_the_store_says() {
        let names = Names::new(None);
        let node = NodeId::new(1, 1);
        names.name(node, "boss");
        assert!(names.prove(node, "clerk"), "it is news");
        assert_eq!(names.of(node).as_deref(), Some("clerk"));
        assert!(names.lives("boss").is_empty());
        names.name(node, "boss");
        assert_eq!(names.of(node).as_deref(), Some("clerk"));
        assert!(!names.prove(node, "clerk"), "it is known");

        let honest = NodeId::new(2, 1);
        names.name(honest, "honest");
        assert!(!names.prove(honest, "honest"), "it was known");
        names.name(honest, "boss");
        assert_eq!(names.of(honest).as_deref(), Some("honest"));
    }
}
