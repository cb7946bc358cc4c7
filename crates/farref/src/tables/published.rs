//! What a worker has published under names, and who waits for a name.
//!
//! # Invariants
//!
//! - **PU-1** Versions of a name grow, also over the time in which it was not published.
//! - **PU-2** No change of a name is missed by who waits for it: it is counted among those who wait before it looks.
//! - **PU-3** What is kept is bounded by the names that are published, [`MAX_NAMES`] at most, and by those who wait:
//!   a name that is neither published nor waited for leaves nothing behind.
//! - **PU-4** Handles are never dropped under the lock, since that is an input to the protocol, and nobody is woken.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use farref_proto::{Fingerprint, NodeId};
use tokio::sync::Notify;

use crate::support::lock::lock;
use crate::support::mutation::mutated;

/// So many names a worker may have published at a time.
pub(crate) const MAX_NAMES: usize = 65_536;

/// So many bytes a name may have.
pub(crate) const MAX_NAME: usize = 255;

/// The names of one worker, with handles of some type.
pub(crate) struct Published<H>(Mutex<AllNames<H>>);

struct AllNames<H> {
    names: BTreeMap<Arc<str>, Name<H>>,
    published: usize,
    /// The version that was given last.
    version: u64,
    /// Whether nothing is published any more, and nobody is to wait.
    is_closed: bool,
}

struct Name<H> {
    entry: Option<Entry<H>>,
    waiting: usize,
    changed: Arc<Notify>,
}

/// What a name stands for.
#[derive(Clone)]
pub(crate) struct Entry<H> {
    pub(crate) handle: H,
    pub(crate) version: u64,
    pub(crate) owner: NodeId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) type_name: &'static str,
}

/// Why nothing was published.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotPublished {
    /// There are [`MAX_NAMES`] names already.
    Names,
    /// It is too late: the names are [closed](Published::close).
    Late,
}

impl<H> Default for Published<H> {
    fn default() -> Self {
        Self(Mutex::new(AllNames {
            names: BTreeMap::new(),
            published: 0,
            version: 0,
            is_closed: false,
        }))
    }
}

impl<H: Clone> Published<H> {
    fn lock(&self) -> MutexGuard<'_, AllNames<H>> {
        lock(&self.0)
    }

    /// Publishes what `entry` makes of its version. Returns the version, and what the name stood for before.
    pub(crate) fn publish(
        &self,
        name: &str,
        entry: impl FnOnce(u64) -> Entry<H>,
    ) -> Result<(u64, Option<Entry<H>>), NotPublished> {
        let mut all = self.lock();
        let known = all.names.get(name);
        let is_new = known.is_none_or(|name| name.entry.is_none());
        if all.is_closed {
            return Err(NotPublished::Late);
        }
        if is_new && all.published >= MAX_NAMES {
            return Err(NotPublished::Names);
        }
        all.published += usize::from(is_new);
        // PU-1
        if !mutated!(SameVersion) {
            all.version += 1;
        }
        let version = all.version;
        let slot = all.slot(name);
        let before = slot.entry.replace(entry(version));
        let changed = Arc::clone(&slot.changed);
        drop(all);
        changed.notify_waiters();
        Ok((version, before))
    }

    /// The name stands for nothing any more. Returns what it stood for.
    pub(crate) fn unpublish(&self, name: &str) -> Option<Entry<H>> {
        let taken = self.lock().take(name);
        taken.map(Taken::tell)
    }

    /// The values of a worker that is gone have no names any more. Returns what they stood for.
    pub(crate) fn owner_gone(&self, owner: NodeId) -> Vec<Entry<H>> {
        let mut all = self.lock();
        if all.published == 0 {
            return Vec::new();
        }
        let is_theirs = |entry: &Entry<H>| entry.owner == owner;
        let theirs = all
            .names
            .iter()
            .filter(|(_, slot)| slot.entry.as_ref().is_some_and(is_theirs));
        let theirs: Vec<Arc<str>> = theirs.map(|(name, _)| Arc::clone(name)).collect();
        let taken: Vec<_> = theirs.iter().filter_map(|name| all.take(name)).collect();
        drop(all);
        taken.into_iter().map(Taken::tell).collect()
    }

    /// Takes all names back. Others may be published, and be waited for. Returns what they stood for.
    pub(crate) fn withdraw(&self) -> Vec<Entry<H>> {
        let mut all = self.lock();
        if all.published == 0 {
            return Vec::new();
        }
        let taken = all.take_all();
        drop(all);
        taken.into_iter().map(Taken::tell).collect()
    }

    /// Takes all names back, for good, and lets nobody wait any longer. Returns what they stood for.
    pub(crate) fn close(&self) -> Vec<Entry<H>> {
        let mut all = self.lock();
        all.is_closed = true;
        let waited = all.names.values().filter(|name| name.waiting > 0);
        let waited: Vec<Arc<Notify>> = waited.map(|name| Arc::clone(&name.changed)).collect();
        let taken = all.take_all();
        drop(all);
        for changed in waited {
            changed.notify_waiters();
        }
        taken.into_iter().map(|taken| taken.entry).collect()
    }

    /// What a name stands for.
    pub(crate) fn find(&self, name: &str) -> Option<Entry<H>> {
        self.lock().names.get(name)?.entry.clone()
    }

    /// What `look` says of the first names that are published, in their order, and how many there are.
    pub(crate) fn list<T>(
        &self,
        most: usize,
        mut look: impl FnMut(&Arc<str>, &Entry<H>) -> T,
    ) -> (Vec<T>, usize) {
        let all = self.lock();
        let published = all
            .names
            .iter()
            .filter_map(|(name, slot)| Some((name, slot.entry.as_ref()?)));
        let looked = published.take(most).map(|(name, entry)| look(name, entry));
        (looked.collect(), all.published)
    }

    /// Waits until `found` makes something of what the name stands for, or of nothing. None when the names are closed.
    pub(crate) async fn wait_for<T>(
        &self,
        name: &str,
        mut found: impl FnMut(Option<Entry<H>>) -> Option<T>,
    ) -> Option<T> {
        let waiting = WaitingForName::new(self, name);
        loop {
            let changed = waiting.changed.notified();
            tokio::pin!(changed);
            // PU-2
            changed.as_mut().enable();
            if let Some(result) = found(self.find(name)) {
                return Some(result);
            }
            if self.lock().is_closed {
                return None;
            }
            changed.await;
        }
    }
}

impl<H> AllNames<H> {
    fn slot(&mut self, name: &str) -> &mut Name<H> {
        self.names.entry(Arc::from(name)).or_insert_with(|| Name {
            entry: None,
            waiting: 0,
            changed: Arc::default(),
        })
    }

    fn take(&mut self, name: &str) -> Option<Taken<H>> {
        let slot = self.names.get_mut(name)?;
        let entry = slot.entry.take()?;
        let changed = Arc::clone(&slot.changed);
        self.published -= 1;
        if slot.waiting == 0 {
            self.names.remove(name);
        }
        Some(Taken { entry, changed })
    }

    fn take_all(&mut self) -> Vec<Taken<H>> {
        let names: Vec<Arc<str>> = self.names.keys().cloned().collect();
        names.iter().filter_map(|name| self.take(name)).collect()
    }
}

/// What a name stood for, and those who are to be told that it does no more.
struct Taken<H> {
    entry: Entry<H>,
    changed: Arc<Notify>,
}

impl<H> Taken<H> {
    /// Not under the lock (PU-4).
    fn tell(self) -> Entry<H> {
        self.changed.notify_waiters();
        self.entry
    }
}

/// Somebody who waits for a name.
struct WaitingForName<'a, H> {
    all: &'a Published<H>,
    name: &'a str,
    changed: Arc<Notify>,
}

impl<'a, H> WaitingForName<'a, H> {
    fn new(all: &'a Published<H>, name: &'a str) -> Self {
        let mut names = lock(&all.0);
        let slot = names.slot(name);
        slot.waiting += 1;
        let changed = Arc::clone(&slot.changed);
        drop(names);
        Self { all, name, changed }
    }
}

/// PU-3
impl<H> Drop for WaitingForName<'_, H> {
    fn drop(&mut self) {
        let mut all = lock(&self.all.0);
        if let Some(slot) = all.names.get_mut(self.name) {
            slot.waiting -= 1;
            if slot.waiting == 0 && slot.entry.is_none() {
                all.names.remove(self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Names = Published<Arc<()>>;

    fn publish(names: &Names, name: &str) -> u64 {
        publish_of(names, name, NodeId::new(0, 1))
    }

    fn publish_of(names: &Names, name: &str, owner: NodeId) -> u64 {
        let entry = |version| Entry {
            handle: Arc::new(()),
            version,
            owner,
            fingerprint: Fingerprint(0),
            type_name: "()",
        };
        let (version, before) = names.publish(name, entry).expect("there is room");
        drop(before);
        version
    }

    fn is_empty(names: &Names) -> bool {
        let all = names.lock();
        all.names.is_empty() && all.published == 0
    }

    #[test]
    fn pu_1_versions_grow_also_over_the_time_in_which_a_name_was_not_there() {
        let names = Names::default();
        let first = publish(&names, "a");
        let second = publish(&names, "a");
        assert!(
            names
                .unpublish("a")
                .is_some_and(|entry| entry.version == second)
        );
        assert!(names.unpublish("a").is_none());
        assert!(first < second && second < publish(&names, "a"));
        assert_eq!(names.close().len(), 1);
        assert!(is_empty(&names));
    }

    #[test]
    fn pu_2_pu_3_who_waits_sees_what_is_published_and_leaves_nothing_behind() {
        let names = Names::default();
        let mut context = Context::from_waker(Waker::noop());
        let newer = |than: u64| {
            move |entry: Option<Entry<Arc<()>>>| {
                let version = entry?.version;
                (version > than).then_some(version)
            }
        };
        {
            let mut any = pin!(names.wait_for("a", newer(0)));
            let mut third = pin!(names.wait_for("a", newer(2)));
            assert!(any.as_mut().poll(&mut context).is_pending());
            assert!(third.as_mut().poll(&mut context).is_pending());
            publish(&names, "b");
            assert!(any.as_mut().poll(&mut context).is_pending());
            assert_eq!(publish(&names, "a"), 2);
            assert_eq!(any.as_mut().poll(&mut context), Poll::Ready(Some(2)));
            assert!(third.as_mut().poll(&mut context).is_pending());
            let while_there = |entry: Option<_>| entry.is_none().then_some(());
            let mut gone = pin!(names.wait_for("a", while_there));
            assert!(gone.as_mut().poll(&mut context).is_pending());
            drop(names.unpublish("a"));
            assert!(gone.as_mut().poll(&mut context).is_ready());
            assert_eq!(publish(&names, "a"), 3);
            assert_eq!(third.as_mut().poll(&mut context), Poll::Ready(Some(3)));
        }
        {
            let mut never = pin!(names.wait_for("never", newer(0)));
            assert!(never.as_mut().poll(&mut context).is_pending());
            assert_eq!(names.lock().names.len(), 3);
        }
        drop(names.close());
        assert!(is_empty(&names));
    }

    #[test]
    fn pu_2_what_changes_while_somebody_looks_is_not_missed() {
        let names = Names::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut looked = 0;
        let found = |entry: Option<Entry<Arc<()>>>| {
            looked += 1;
            if looked == 1 {
                publish(&names, "a");
            }
            Some(entry?.version)
        };
        let waiting = pin!(names.wait_for("a", found));
        assert_eq!(waiting.poll(&mut context), Poll::Ready(Some(1)));
    }

    #[test]
    fn what_is_withdrawn_can_be_published_again_and_is_still_waited_for() {
        let names = Names::default();
        let mut context = Context::from_waker(Waker::noop());
        let any = |entry: Option<Entry<Arc<()>>>| Some(entry?.version);
        publish(&names, "a");
        let mut waiting = pin!(names.wait_for("b", any));
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(names.withdraw().len(), 1);
        assert!(names.find("a").is_none() && names.withdraw().is_empty());
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        assert_eq!(publish(&names, "b"), 2);
        assert_eq!(waiting.as_mut().poll(&mut context), Poll::Ready(Some(2)));
    }

    #[test]
    fn at_the_end_nobody_waits_and_nothing_is_published() {
        let names = Names::default();
        let mut context = Context::from_waker(Waker::noop());
        let any = |entry: Option<Entry<Arc<()>>>| Some(entry?.version);
        publish(&names, "b");
        let mut before = pin!(names.wait_for("a", any));
        assert!(before.as_mut().poll(&mut context).is_pending());
        assert_eq!(names.close().len(), 1);
        assert_eq!(before.as_mut().poll(&mut context), Poll::Ready(None));
        let after = pin!(names.wait_for("b", any)).poll(&mut context);
        assert_eq!(after, Poll::Ready(None));
        let late = names.publish("c", |_| unreachable!("it is too late"));
        assert_eq!(late.map(drop), Err(NotPublished::Late));
    }

    #[test]
    fn names_go_with_the_owner_of_their_value() {
        let names = Names::default();
        let [here, there] = [NodeId::new(0, 1), NodeId::new(1, 1)];
        publish_of(&names, "here", here);
        publish_of(&names, "there", there);
        assert!(names.owner_gone(NodeId::new(1, 2)).is_empty());
        assert_eq!(names.owner_gone(there).len(), 1);
        assert!(names.find("there").is_none() && names.find("here").is_some());
    }

    #[test]
    fn pu_3_there_are_not_more_names_than_that() {
        let names = Names::default();
        for number in 0..MAX_NAMES {
            publish(&names, &number.to_string());
        }
        let one_more = names.publish("one more", |_| unreachable!("there is no room"));
        assert_eq!(one_more.map(drop), Err(NotPublished::Names));
        publish(&names, "0");
        drop(names.unpublish("1"));
        publish(&names, "one more");
    }
}
