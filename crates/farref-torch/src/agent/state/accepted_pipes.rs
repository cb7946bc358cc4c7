//! Pipes that peers have opened, and those of them that are nobody's yet. The rules are in `agent::accepting`.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::Notify;

use super::links::{Link, lock};
use crate::transport::Traffic;

/// A pipe that somebody has opened.
pub(crate) struct AcceptedPipe {
    pub(crate) number: u64,
    /// What the peer says its name is.
    pub(crate) name: String,
    pub(crate) traffic: Arc<Traffic>,
    /// Whose it is, if it is a member's (IN-1).
    pub(crate) member: OnceLock<Arc<Link>>,
    /// It has asked what one asks who joins.
    pub(crate) asked: AtomicBool,
    /// It has to make room (IN-4), or its member is gone.
    pub(crate) stop: Arc<Notify>,
    /// It is a member's from now on.
    pub(crate) claimed: Notify,
}

impl AcceptedPipe {
    fn new(number: u64, name: String, traffic: Arc<Traffic>) -> Arc<Self> {
        Arc::new(Self {
            number,
            name,
            traffic,
            member: OnceLock::new(),
            asked: AtomicBool::new(false),
            stop: Arc::default(),
            claimed: Notify::new(),
        })
    }

    /// The pipe is this member's from now on.
    pub(crate) fn belongs_to(&self, link: &Arc<Link>) {
        link.count(Arc::clone(&self.traffic));
        drop(self.member.set(Arc::clone(link)));
        link.is_read_by(&self.stop);
        self.claimed.notify_one();
    }
}

/// Who opens a pipe, by the name that it says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// A member that has no pipe yet.
    Expected,
    /// One that has.
    Member,
    Stranger,
}

/// Pipes that are nobody's, the oldest first.
#[derive(Default)]
pub(crate) struct Unclaimed {
    pub(crate) pipes: Mutex<BTreeMap<u64, Arc<AcceptedPipe>>>,
    next: AtomicU64,
}

impl Unclaimed {
    /// One more, for which another one may have to go (IN-4).
    pub(crate) fn add(
        &self,
        name: String,
        traffic: Arc<Traffic>,
        most: usize,
        standing: impl Fn(&str) -> Standing,
    ) -> Arc<AcceptedPipe> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let accepted = AcceptedPipe::new(number, name, traffic);
        let mut pipes = lock(&self.pipes);
        pipes.insert(number, Arc::clone(&accepted));
        let (mut firsts, mut others) = (HashSet::new(), 0);
        let (mut stranger, mut second) = (None, None);
        for accepted in pipes.values() {
            let standing = standing(&accepted.name);
            if standing == Standing::Expected && firsts.insert(&accepted.name[..]) {
                continue;
            }
            others += 1;
            match standing {
                Standing::Stranger => stranger.get_or_insert(accepted.number),
                Standing::Expected | Standing::Member => second.get_or_insert(accepted.number),
            };
        }
        if others > most
            && let Some(oldest) = stranger.or(second)
            && let Some(evicted) = pipes.remove(&oldest)
        {
            evicted.stop.notify_one();
        }
        accepted
    }

    /// Says whether it was one of them: it may have had to go.
    pub(crate) fn remove(&self, accepted: &AcceptedPipe) -> bool {
        lock(&self.pipes).remove(&accepted.number).is_some()
    }
}
