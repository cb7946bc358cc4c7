//! What an input leads to and must not be done while the lock is held (PR-2), and of that, what must not
//! be done by whoever brought the input (UC-1).

use std::cell::Cell;
use std::sync::{Arc, Weak};

use farref_proto::{Departure, NodeId};

use crate::agent::Message;
use crate::runtime::core::{Core, Reply};
use crate::runtime::handle::Handle;
use crate::runtime::job::Job;
use crate::runtime::reply::ReplySender;
use crate::support::clock::Instant;
use crate::support::signal::Cancellable;
use crate::support::spare;
use crate::values::Value;

/// Tells somebody who waits.
type Wake = Box<dyn FnOnce(&Core) + Send>;

/// Work that is deferred until the lock is given back.
#[derive(Default)]
pub(super) struct Work {
    /// When the input came, if somebody has asked.
    now: Option<Instant>,
    /// Peers that something was queued for. Nearly always one.
    pub(super) first: Option<NodeId>,
    pub(super) others: Vec<NodeId>,
    pub(super) replies: Vec<(ReplySender, Reply)>,
    pub(super) jobs: Vec<Job>,
    /// Messages of this worker to itself.
    pub(super) loopback: Vec<Message>,
    pub(super) cancelled: Vec<Weak<dyn Cancellable>>,
    pub(super) forgotten: Vec<(NodeId, Departure)>,
    pub(super) joined: Vec<NodeId>,
    /// Whoever waits here for something that is not a reply.
    pub(super) woken: Vec<Wake>,
    /// Holds on references. Letting go of one is an input in turn.
    pub(super) handles: Vec<Arc<Handle>>,
    /// Code of the program.
    pub(super) callbacks: Vec<Box<dyn FnOnce() + Send>>,
    /// Anything with destructors that are the program's.
    pub(super) freed: Vec<Value>,
    pub(super) dropped: Vec<Box<dyn Send>>,
}

thread_local! {
    /// What the next input of this thread uses: empty, but with room.
    static SPARE: Cell<Option<Box<Work>>> = const { Cell::new(None) };
}

/// Lists with more room than this are not kept.
const KEPT: usize = 128;

impl Work {
    /// Nothing yet.
    pub(super) fn new() -> Box<Self> {
        spare::take(&SPARE).unwrap_or_default()
    }

    /// When the input came: the clock is read once for all of its messages.
    pub(super) fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    /// Whether there is nothing to do but to flush.
    pub(super) fn only_flushes(&self) -> bool {
        self.replies.is_empty()
            && self.jobs.is_empty()
            && self.loopback.is_empty()
            && self.cancelled.is_empty()
            && self.forgotten.is_empty()
            && self.joined.is_empty()
            && self.woken.is_empty()
            && self.handles.is_empty()
            && self.callbacks.is_empty()
            && self.freed.is_empty()
            && self.dropped.is_empty()
    }

    /// Nothing had to be done: the lists are as they were.
    pub(super) fn keep(mut self: Box<Self>) {
        debug_assert!(self.only_flushes() && self.first.is_none() && self.others.is_empty());
        self.now = None;
        spare::keep(&SPARE, Some(self));
    }

    /// All is done: the lists can be used again.
    pub(super) fn recycle(mut self: Box<Self>) {
        debug_assert!(self.only_flushes() && self.first.is_none() && self.others.is_empty());
        self.now = None;
        let room = [
            self.others.capacity(),
            self.replies.capacity(),
            self.jobs.capacity(),
            self.loopback.capacity(),
            self.cancelled.capacity(),
            self.forgotten.capacity(),
            self.joined.capacity(),
            self.woken.capacity(),
            self.handles.capacity(),
            self.callbacks.capacity(),
            self.dropped.capacity(),
        ];
        if room.into_iter().all(|room| room <= KEPT) {
            spare::keep(&SPARE, Some(self));
        }
    }

    /// Something was queued for `peer`.
    pub(super) fn flush(&mut self, peer: NodeId) {
        match self.first {
            None => self.first = Some(peer),
            Some(first) if first == peer || self.others.contains(&peer) => {}
            Some(_) => self.others.push(peer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of an input is its own: limits of calls count from it.
    #[test]
    fn what_is_used_again_has_forgotten_when_it_was_used_before() {
        for put_by in [Work::keep, Work::recycle] {
            let mut work = Work::new();
            let _ = work.now();
            put_by(work);
            let mut again = Work::new();
            assert_eq!(again.now, None);
            again.jobs.reserve(1);
            put_by(again);
            assert!(Work::new().jobs.capacity() > 0, "it is used again");
        }
    }
}
