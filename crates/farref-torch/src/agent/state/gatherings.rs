//! What is known about gatherings: who has come to which, and who is gone.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::sync::Mutex;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use super::ending::GroupKind;
use super::links::lock;
use crate::rpc::RpcError;

/// The most gatherings that peers may begin before this worker takes part in them.
const MAX_GATHERINGS: usize = 64;

/// What is known about gatherings.
#[derive(Debug, Default)]
pub(crate) struct Gatherings {
    open: Mutex<HashMap<String, Gathering>>,
    changed: Notify,
    /// Who has not come to the gathering that this worker is at.
    pub(crate) missing: Mutex<Vec<String>>,
    /// The members of a static group that are gone, in the order in which they went.
    lost: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
pub(crate) struct Gathering {
    /// Who has told the leader.
    pub(crate) there: BTreeSet<String>,
    /// Whether the leader has told this worker.
    pub(crate) complete: bool,
}

impl Gatherings {
    pub(crate) fn open(&self) -> std::sync::MutexGuard<'_, HashMap<String, Gathering>> {
        lock(&self.open)
    }

    /// Something has happened that whoever waits for the others must know.
    fn changed(&self) {
        self.changed.notify_waiters();
    }

    /// A member is gone. In a dynamic group nobody is waited for by name.
    pub(crate) fn lose(&self, group_kind: &GroupKind, name: &str) {
        if matches!(group_kind, GroupKind::Static { .. }) {
            let mut lost = lock(&self.lost);
            if !lost.iter().any(|lost| lost == name) {
                lost.push(name.to_owned());
            }
        }
        self.changed();
    }

    /// Who of a static group went first.
    pub(crate) fn first_lost(&self) -> Option<String> {
        lock(&self.lost).first().cloned()
    }

    /// Comes back when something has happened since this was called.
    pub(crate) fn change(&self) -> Pin<Box<Notified<'_>>> {
        let mut changed = Box::pin(self.changed.notified());
        changed.as_mut().enable();
        changed
    }

    /// There is always room for those that this worker comes to itself (`awaited`).
    pub(crate) fn note(
        &self,
        gathering: &str,
        awaited: bool,
        note: impl FnOnce(&mut Gathering),
    ) -> Result<(), RpcError> {
        let mut gatherings = self.open();
        let is_new = !gatherings.contains_key(gathering);
        if gatherings.len() >= MAX_GATHERINGS && is_new && !awaited {
            let what = "so many gatherings at once";
            return Err(RpcError::Unsupported(what.to_owned()));
        }
        note(gatherings.entry(gathering.to_owned()).or_default());
        drop(gatherings);
        self.changed();
        Ok(())
    }
}
