//! Who watches the members of the group: streams of events, and those who wait for one life to be over.
//!
//! # Invariants
//!
//! - **WA-1** A watcher is told of a life that it joined, then that it is gone, each at most once, and of two lives of a
//!   worker in their order.
//! - **WA-2** Of a life that has gone before the watcher was told that it joined, it is told nothing.
//! - **WA-3** A watcher keeps of each worker at most the life that it has been told of and the latest after it, however
//!   slowly it is read; a life that has been told to be gone is forgotten.
//! - **WA-4** It is told of a life when its name is known here, and that those are complete who were there in the
//!   beginning when each of them has been told or is gone.
//! - **WA-5** Whoever does not watch any more has left nothing behind.
//!
//! Nobody is woken here: what has changed is told by [`Wakers`], for when no lock is held.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

use farref_proto::{Departure, Incarnation, NodeId, WorkerId};
use tokio::sync::watch;

use crate::support::lock::lock;
use crate::support::mutation::mutated;

/// How the worker itself has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WorkerEnd {
    /// Together with all others, by [`shutdown`](crate::Worker::shutdown) or [`serve`](crate::Worker::serve).
    ShutDown,
    /// It has [left](crate::Worker::leave).
    Left,
    /// The others have declared it dead ([`Error::Evicted`](crate::Error::Evicted)).
    Evicted,
    /// Too few of its group were left ([`Error::Minority`](crate::Error::Minority)).
    Minority,
    /// Nobody was told: it was dropped, its shutdown took too long, or its runtime is gone.
    Stopped,
}

/// Something that a watcher is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MemberNews {
    Joined(NodeId, Arc<str>),
    /// Those have been told who were there in the beginning.
    Complete,
    Gone(NodeId, Arc<str>, Departure),
    Ended(WorkerEnd),
}

/// The watchers of one worker.
#[derive(Default)]
pub(crate) struct Watchers(Mutex<AllWatchers>);

#[derive(Default)]
struct AllWatchers {
    next_key: u64,
    watchers: BTreeMap<u64, Arc<Watcher>>,
    lives: HashMap<NodeId, LifeWaiters>,
    end: Option<WorkerEnd>,
}

/// Those who wait for a life to be over.
struct LifeWaiters {
    sender: watch::Sender<Option<Departure>>,
    waiting: usize,
}

/// What one watcher is yet to be told.
#[derive(Debug, Default)]
pub(crate) struct Watcher(Mutex<Unread>);

#[derive(Debug, Default)]
struct Unread {
    workers: BTreeMap<WorkerId, Lives>,
    /// Of whom there is something to tell, each once, in the order in which it came up.
    news: VecDeque<About>,
    /// Those who were there in the beginning and whose names are not known yet (WA-4).
    unnamed: BTreeSet<NodeId>,
    end: Option<WorkerEnd>,
    told_end: bool,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, Debug)]
enum About {
    Worker(WorkerId),
    Complete,
}

/// What is kept of one worker (WA-3).
#[derive(Debug, Default)]
struct Lives {
    /// The life that the watcher knows of, and how it has gone.
    told: Option<(Incarnation, Arc<str>)>,
    gone: Option<Departure>,
    /// The life that it does not know of yet, and what that is called.
    next: Option<(Incarnation, Option<Arc<str>>)>,
    is_queued: bool,
}

/// Whom to wake, without any lock.
#[derive(Default)]
#[must_use]
pub(crate) struct Wakers {
    watchers: Vec<Waker>,
    lives: Vec<(watch::Sender<Option<Departure>>, Option<Departure>)>,
}

impl Wakers {
    pub(crate) fn is_empty(&self) -> bool {
        self.watchers.is_empty() && self.lives.is_empty()
    }

    pub(crate) fn wake(self) {
        for (sender, departure) in self.lives {
            // Without one, they learn from the end of the channel that nobody will tell them.
            if departure.is_some() {
                sender.send_replace(departure);
            }
        }
        // Last, as these are the program's own and may panic.
        self.watchers.into_iter().for_each(Waker::wake);
    }
}

impl Watchers {
    /// Begins to watch. Nothing may change among the members meanwhile.
    pub(crate) fn watch(
        &self,
        members: impl Iterator<Item = NodeId>,
        name_of: impl Fn(NodeId) -> Option<Arc<str>>,
    ) -> (u64, Arc<Watcher>) {
        let mut all = lock(&self.0);
        let mut unread = Unread::default();
        for node in members.filter(|_| !mutated!(WatchFromNow)) {
            let name = name_of(node);
            if name.is_none() {
                unread.unnamed.insert(node);
            }
            unread.joined(node, name);
        }
        if unread.unnamed.is_empty() {
            unread.news.push_back(About::Complete);
        }
        unread.end = all.end;
        let watcher = Arc::new(Watcher(Mutex::new(unread)));
        let key = all.next_key;
        all.next_key += 1;
        if all.end.is_none() {
            all.watchers.insert(key, Arc::clone(&watcher));
        }
        (key, watcher)
    }

    /// Whether somebody watches all members.
    pub(crate) fn watch_all(&self) -> bool {
        !lock(&self.0).watchers.is_empty()
    }

    /// Whether nobody watches, or waits for somebody's end.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        let all = lock(&self.0);
        all.watchers.is_empty() && all.lives.is_empty()
    }

    /// As long as this is kept, nobody begins to watch or to wait.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        lock(&self.0)
    }

    /// WA-5
    pub(crate) fn unwatch(&self, key: u64) {
        let watcher = lock(&self.0).watchers.remove(&key);
        drop(watcher);
    }

    /// A life is a member.
    pub(crate) fn joined(
        &self,
        node: NodeId,
        name_of: impl FnOnce(NodeId) -> Option<Arc<str>>,
    ) -> Wakers {
        let all = lock(&self.0);
        if all.watchers.is_empty() {
            return Wakers::default();
        }
        // With the lock: if the name comes a moment later, `named` finds that it was missing.
        let name = name_of(node);
        all.tell(|unread| unread.joined(node, name.clone()))
    }

    /// It is known what a life is called (WA-4).
    pub(crate) fn named(&self, node: NodeId, name: &Arc<str>) -> Wakers {
        lock(&self.0).tell(|unread| unread.named(node, name))
    }

    /// A life is over.
    pub(crate) fn gone(&self, node: NodeId, departure: Departure) -> Wakers {
        let mut all = lock(&self.0);
        let mut wakers = all.tell(|unread| unread.gone(node, departure));
        if let Some(waiters) = all.lives.remove(&node) {
            wakers.lives.push((waiters.sender, Some(departure)));
        }
        wakers
    }

    /// The worker itself has ended. What was said of that first counts.
    pub(crate) fn end(&self, how: WorkerEnd) -> Wakers {
        let mut all = lock(&self.0);
        let how = *all.end.get_or_insert(how);
        let mut wakers = all.tell(|unread| unread.end = Some(how));
        all.watchers.clear();
        let lives = std::mem::take(&mut all.lives).into_values();
        wakers
            .lives
            .extend(lives.map(|waiters| (waiters.sender, None)));
        wakers
    }

    /// Begins to wait for the end of a life that is not over; it must not end meanwhile.
    pub(crate) fn await_end(&self, node: NodeId) -> Option<watch::Receiver<Option<Departure>>> {
        let mut all = lock(&self.0);
        if all.end.is_some() {
            return None;
        }
        let waiters = all.lives.entry(node).or_insert_with(|| LifeWaiters {
            sender: watch::Sender::new(None),
            waiting: 0,
        });
        waiters.waiting += 1;
        Some(waiters.sender.subscribe())
    }

    /// One of those who waited for a life does so no more (WA-5).
    pub(crate) fn stop_waiting(&self, node: NodeId) {
        let mut all = lock(&self.0);
        let unwatched = all.lives.get_mut(&node).is_some_and(|waiters| {
            waiters.waiting -= 1;
            waiters.waiting == 0
        });
        if unwatched {
            all.lives.remove(&node);
        }
    }
}

impl AllWatchers {
    fn tell(&self, mut change: impl FnMut(&mut Unread)) -> Wakers {
        let wake = |watcher: &Arc<Watcher>| {
            let mut unread = lock(&watcher.0);
            change(&mut unread);
            let is_ready = !unread.news.is_empty() || unread.end.is_some();
            is_ready.then(|| unread.waker.take()).flatten()
        };
        Wakers {
            watchers: self.watchers.values().filter_map(wake).collect(),
            lives: Vec::new(),
        }
    }
}

impl Watcher {
    /// The next thing to tell. None at the end.
    pub(crate) fn poll_next(&self, waker: &Waker) -> Poll<Option<MemberNews>> {
        // A waker is the program's code: it is cloned and dropped without the lock.
        let waker = waker.clone();
        let mut unread = lock(&self.0);
        if let Some(news) = unread.take() {
            drop(unread);
            return Poll::Ready(Some(news));
        }
        if let Some(end) = unread.end {
            let first = !std::mem::replace(&mut unread.told_end, true) && !mutated!(NoLastWord);
            drop(unread);
            return Poll::Ready(first.then_some(MemberNews::Ended(end)));
        }
        let before = unread.waker.replace(waker);
        drop(unread);
        drop(before);
        Poll::Pending
    }
}

impl Unread {
    fn joined(&mut self, node: NodeId, name: Option<Arc<str>>) {
        let is_named = name.is_some();
        let lives = self.workers.entry(node.worker).or_default();
        lives.next = Some((node.incarnation, name));
        if is_named {
            self.queue(node.worker);
        }
    }

    fn named(&mut self, node: NodeId, name: &Arc<str>) {
        let next = self.workers.get_mut(&node.worker);
        if let Some((life, unknown @ None)) = next.and_then(|lives| lives.next.as_mut())
            && *life == node.incarnation
        {
            *unknown = Some(Arc::clone(name));
            self.queue(node.worker);
            self.settled(node);
        }
    }

    /// One that was there in the beginning is to be told, or has gone (WA-4).
    fn settled(&mut self, node: NodeId) {
        if self.unnamed.remove(&node) && self.unnamed.is_empty() {
            self.news.push_back(About::Complete);
        }
    }

    fn gone(&mut self, node: NodeId, departure: Departure) {
        self.settled(node);
        let Some(lives) = self.workers.get_mut(&node.worker) else {
            return;
        };
        if matches!(&lives.next, Some((life, _)) if *life == node.incarnation)
            && !mutated!(TellUnmet)
        {
            // WA-2
            lives.next = None;
        } else if matches!(&lives.told, Some((life, _)) if *life == node.incarnation) {
            lives.gone = Some(departure);
            return self.queue(node.worker);
        }
        if lives.told.is_none() && lives.next.is_none() {
            self.workers.remove(&node.worker);
            let other =
                |about: &About| !matches!(about, About::Worker(known) if *known == node.worker);
            self.news.retain(other);
        }
    }

    fn queue(&mut self, worker: WorkerId) {
        if let Some(lives) = self.workers.get_mut(&worker)
            && !std::mem::replace(&mut lives.is_queued, true)
        {
            self.news.push_back(About::Worker(worker));
        }
    }

    fn take(&mut self) -> Option<MemberNews> {
        while let Some(about) = self.news.pop_front() {
            let About::Worker(worker) = about else {
                return Some(MemberNews::Complete);
            };
            let Some(lives) = self.workers.get_mut(&worker) else {
                continue;
            };
            lives.is_queued = false;
            let news = lives.take(worker);
            let (has_more, is_empty) = (lives.has_news(), lives.is_empty());
            if is_empty {
                self.workers.remove(&worker);
            } else if has_more && !mutated!(LoseSecondEvent) {
                lives.is_queued = true;
                self.news.push_front(about);
            }
            if news.is_some() {
                return news;
            }
        }
        None
    }
}

impl Lives {
    /// WA-1
    fn take(&mut self, worker: WorkerId) -> Option<MemberNews> {
        let life = |incarnation| NodeId {
            worker,
            incarnation,
        };
        if let Some(departure) = self.gone.take()
            && let Some((incarnation, name)) = self.told.take()
        {
            return Some(MemberNews::Gone(life(incarnation), name, departure));
        }
        match self.next.take() {
            Some((incarnation, Some(name))) if self.told.is_none() => {
                self.told = Some((incarnation, Arc::clone(&name)));
                Some(MemberNews::Joined(life(incarnation), name))
            }
            unnamed => {
                self.next = unnamed;
                None
            }
        }
    }

    fn has_news(&self) -> bool {
        let is_named = matches!(self.next, Some((_, Some(_))));
        self.gone.is_some() || (is_named && self.told.is_none())
    }

    fn is_empty(&self) -> bool {
        self.told.is_none() && self.next.is_none()
    }
}

#[cfg(test)]
#[path = "watchers_tests.rs"]
mod tests;
