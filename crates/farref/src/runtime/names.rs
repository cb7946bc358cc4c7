//! What the workers of the group are called, and where they are.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use farref_proto::NodeId;
use tokio::sync::{Notify, watch};

use crate::native::{Contacts, Rejection};
use crate::rendezvous::{Card, Directory};
use crate::report::snapshot::Snapshot;
use crate::runtime::{Core, Stage};

/// How long to wait before a newcomer is looked up again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Of how many lives that are over the names are kept, so that errors can name them.
const REMEMBERED: usize = 1024;

/// The names of the workers that this one has heard of.
pub(crate) struct Names {
    /// Where to look names up. Another wire than farref's own may have none.
    directory: Option<Directory>,
    known: RwLock<Known>,
    /// Wakes those who wait for a name.
    pub(crate) changed: Notify,
    /// Who does not take this worker's connections while it tries to join, and why.
    pub(crate) rejections: watch::Sender<BTreeMap<NodeId, Rejection>>,
}

#[derive(Default)]
struct Known {
    names: HashMap<NodeId, Arc<str>>,
    /// Those of them that are over, the latest to go last.
    over: VecDeque<NodeId>,
}

impl Names {
    pub(crate) fn new(directory: Option<Directory>) -> Self {
        Self {
            directory,
            known: RwLock::default(),
            changed: Notify::new(),
            rejections: watch::Sender::default(),
        }
    }

    pub(crate) fn directory(&self) -> Option<&Directory> {
        self.directory.as_ref()
    }

    /// What a life is called.
    pub(crate) fn of(&self, node: NodeId) -> Option<Arc<str>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.names.get(&node).cloned()
    }

    /// The lives of that name, the latest first.
    pub(crate) fn lives(&self, name: &str) -> Vec<NodeId> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let lives = known
            .names
            .iter()
            .filter(|(_, known)| known.as_ref() == name);
        let mut lives: Vec<NodeId> = lives.map(|(&node, _)| node).collect();
        lives.sort_unstable_by(|a, b| b.cmp(a));
        lives
    }

    /// A life is called so.
    pub(crate) fn name(&self, node: NodeId, name: &str) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.names.insert(node, Arc::from(name));
        drop(known);
        self.changed.notify_waiters();
    }

    pub(crate) fn insert(&self, card: Card) {
        self.name(card.node, &card.name);
        if let Some(directory) = &self.directory {
            directory.insert(card);
        }
    }

    /// Finds out what a newcomer is called.
    pub(crate) fn learn(&self, core: &Arc<Core>, node: NodeId) {
        let Some(directory) = self.directory.clone().filter(|_| self.of(node).is_none()) else {
            return self.changed.notify_waiters();
        };
        let weak = Arc::downgrade(core);
        core.runtime.spawn(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                let found = directory.lookup(node).await;
                // Its own greeting may have said who it is, and it may be gone again.
                let Some(core) = weak.upgrade().filter(|core| {
                    core.names.of(node).is_none()
                        && core.look(|own| own.membership().view().is_member(node))
                }) else {
                    return;
                };
                match found {
                    Ok(card) => return core.names.insert(card),
                    Err(error) => {
                        tracing::debug!(%node, %error, "a newcomer is not found in the store");
                    }
                }
                drop(core);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        });
    }

    /// A life is over. Its name stays known for a while, so that errors can name it; its address is of no
    /// more use.
    pub(crate) fn forget(&self, node: NodeId) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { names, over } = &mut *known;
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

impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Names")
    }
}

/// Lets the agent look addresses up and tell of whom it has met.
#[derive(Debug)]
pub(crate) struct AddressBook(pub(crate) Weak<Core>);

impl Contacts for AddressBook {
    fn lookup(
        &self,
        node: NodeId,
    ) -> Pin<Box<dyn Future<Output = Result<Card, String>> + Send + '_>> {
        Box::pin(async move {
            let core = self.0.upgrade().ok_or("this worker is gone")?;
            let directory = core.names.directory().ok_or("there is no directory")?;
            directory
                .lookup(node)
                .await
                .map_err(|error| error.to_string())
        })
    }

    fn met(&self, card: &Card, max_calls: u32) {
        if let Some(core) = self.0.upgrade() {
            if core.names.of(card.node).is_none() {
                core.names.insert(card.clone());
            }
            core.met(card.node, max_calls);
        }
    }

    fn turned_away(&self, by: NodeId, rejection: Rejection) {
        let Some(core) = self.0.upgrade() else {
            return;
        };
        if *core.stage.borrow() == Stage::Joining {
            let rejections = &core.names.rejections;
            rejections.send_modify(|all| {
                all.insert(by, rejection);
            });
        }
    }

    fn is_here(&self) -> bool {
        self.0
            .upgrade()
            .is_some_and(|core| matches!(*core.stage.borrow(), Stage::Joining | Stage::Member))
    }

    fn starving(&self, lasted: Duration) {
        if let Some(core) = self.0.upgrade() {
            core.starving(lasted);
        }
    }

    fn snapshot(&self, references: usize) -> Option<Snapshot> {
        let core = self.0.upgrade()?;
        Some(Snapshot::of(&core, references))
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
}
