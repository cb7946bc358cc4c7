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
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    /// The oldest first. A task that is being started has no handle yet.
    tasks: VecDeque<(u64, Option<AbortHandle>)>,
}

impl PendingHandshakes {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            slots: Mutex::default(),
        })
    }

    /// Takes a slot. If there are too many, that of the oldest, whose task is returned.
    pub(super) fn enter(self: &Arc<Self>) -> (HandshakeSlot, Option<AbortHandle>) {
        let mut slots = lock(&self.slots);
        let oldest = (slots.tasks.len() >= self.most)
            .then(|| slots.tasks.pop_front())
            .flatten();
        let number = slots.next;
        slots.next += 1;
        slots.tasks.push_back((number, None));
        let slot = HandshakeSlot {
            pending: Arc::clone(self),
            number,
        };
        (slot, oldest.and_then(|(_, task)| task))
    }

    /// The slot with this number is that of a task, which ends when somebody else takes the slot.
    pub(super) fn set_task(&self, number: u64, task: AbortHandle) {
        let mut slots = lock(&self.slots);
        let mut tasks = slots.tasks.iter_mut();
        match tasks.find(|(other, _)| *other == number) {
            Some((_, slot)) => *slot = Some(task),
            // It is done, or has been the oldest meanwhile.
            None => {
                drop(slots);
                task.abort();
            }
        }
    }
}

/// One of the handshakes that may be under way.
#[derive(Debug)]
pub(super) struct HandshakeSlot {
    pending: Arc<PendingHandshakes>,
    pub(super) number: u64,
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        let mut slots = lock(&self.pending.slots);
        slots.tasks.retain(|(number, _)| *number != self.number);
    }
}
