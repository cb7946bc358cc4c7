//! Names for references: what this worker publishes, and taking it back in time.

use std::sync::{Arc, Weak};

use farref_proto::NodeId;

use crate::error::{Misuse, Result};
use crate::runtime::core::Core;
use crate::runtime::handle::Handle;
use crate::support::mutation::mutated;
use crate::tables::published::{Entry, MAX_NAME, NotPublished};

impl Core {
    /// Publishes a reference of this worker's under a name, in the place of what was published under it. Says which
    /// version of the name that is.
    pub(crate) fn publish(
        self: &Arc<Self>,
        name: &str,
        handle: &Arc<Handle>,
        type_name: &'static str,
    ) -> Result<u64> {
        self.check_naming(name)?;
        self.check_member()?;
        handle.check_sendable(self)?;
        let held = handle.held()?;
        if mutated!(PublishOwnOnly) && held.owner != self.me {
            return Err(Misuse::BadName.into());
        }
        let entry = |version| Entry {
            handle: Arc::clone(handle),
            version,
            owner: held.owner,
            fingerprint: held.fingerprint,
            type_name,
        };
        let (version, before) = match self.published.publish(name, entry) {
            Ok(published) => published,
            Err(NotPublished::Names) => return Err(Misuse::TooManyNames.into()),
            Err(NotPublished::Late) => return Err(self.not_member()),
        };
        drop(before);
        // It may have gone before the name was there to be taken back.
        if self.look(|node| node.membership().view().is_gone(held.owner)) {
            drop(self.published.owner_gone(held.owner));
        }
        Ok(version)
    }

    /// Whether a name can be looked up at all.
    pub(crate) fn check_naming(&self, name: &str) -> Result<()> {
        if !self.agent().has_names() {
            return Err(Misuse::NoNames.into());
        }
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Misuse::BadName.into());
        }
        Ok(())
    }

    /// Values of a worker that is gone have no names any more.
    pub(super) fn unpublish_values_of(&self, owner: NodeId) {
        if !mutated!(KeepLostNames) {
            let gone = self.published.owner_gone(owner);
            drop(gone);
        }
    }

    /// The group is at rest but for references: the names stand for nothing any more. It may go on all the same, with
    /// other names.
    ///
    /// What they stood for may have references in turn, which go when its destructors have run. Until then this worker
    /// is not at rest, so that nobody takes them for leaks.
    pub(crate) fn withdraw_names(self: &Arc<Self>) {
        if mutated!(KeepNamesAtEnd) {
            return;
        }
        let names = self.published.withdraw();
        if names.is_empty() {
            return;
        }
        self.input(|node, _| node.begin_work());
        let going = Arc::new(NamesGoing(Arc::downgrade(self)));
        let names = names.into_iter().map(|name| (name, Arc::clone(&going)));
        // Each is dropped before its part of `going` is.
        self.user_code.drop_later(names.collect());
    }

    /// Drops what names stood for, elsewhere: the last reference to a value of the program leads to its destructor,
    /// and whoever ends the worker has to go on meanwhile.
    pub(super) fn let_go_of_names(&self, names: Vec<Entry<Arc<Handle>>>) {
        self.user_code.drop_later(names);
    }
}

/// Dropped with the last of the names that were taken back.
struct NamesGoing(Weak<Core>);

impl Drop for NamesGoing {
    fn drop(&mut self) {
        if let Some(core) = self.0.upgrade() {
            core.input(|node, _| node.end_work());
        }
    }
}
