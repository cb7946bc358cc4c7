//! The limit on connections whose other end has not proved anything yet.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::task::AbortHandle;

use crate::support::lock::lock;

/// The connections whose other end has not proved anything yet. Of too many the oldest goes: a good
/// peer is done in no time, so it is hardly ever the oldest.
#[derive(Debug)]
pub(super) struct PendingHandshakes {
    most: usize,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    /// The oldest first. A task that is being started has no handle yet.
    tasks: VecDeque<(u64, Option<AbortHandle>)>,
}

impl PendingHandshakes {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            strangers: Mutex::default(),
        })
    }

    /// Takes a place. If there are too many, somebody else's, which is returned.
    pub(super) fn enter(self: &Arc<Self>) -> (Ticket, Option<AbortHandle>) {
        let mut strangers = lock(&self.strangers);
        let oldest = (strangers.tasks.len() >= self.most)
            .then(|| strangers.tasks.pop_front())
            .flatten();
        let number = strangers.next;
        strangers.next += 1;
        strangers.tasks.push_back((number, None));
        let ticket = Ticket {
            pending: Arc::clone(self),
            number,
        };
        (ticket, oldest.and_then(|(_, task)| task))
    }

    /// The place with this number is that of a task, which ends when somebody else takes it.
    pub(super) fn set_task(&self, number: u64, task: AbortHandle) {
        let mut strangers = lock(&self.strangers);
        let mut places = strangers.tasks.iter_mut();
        match places.find(|(other, _)| *other == number) {
            Some((_, place)) => *place = Some(task),
            // It is done, or has been the oldest meanwhile.
            None => {
                drop(strangers);
                task.abort();
            }
        }
    }
}

/// A place among them.
#[derive(Debug)]
pub(super) struct Ticket {
    pending: Arc<PendingHandshakes>,
    pub(super) number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut strangers = lock(&self.pending.strangers);
        strangers.tasks.retain(|(number, _)| *number != self.number);
    }
}
