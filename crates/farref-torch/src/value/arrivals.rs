//! What has to be known of tensors that came, so that their gradients can be sent back.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

use super::body::{Received, TensorEntry};
use crate::rpc::tensors::Dtype;

/// What is known of the tensors that need gradients and came in messages: the shapes of all of them, and in
/// which order a program read them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<HashMap<Received, Arrival>>);

/// The tensors of one message that need gradients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival {
    /// In the order of the message's list.
    pub(crate) tensors: Vec<(Dtype, Vec<usize>)>,
    /// Which of them were read, one after the other.
    pub(crate) read: Vec<usize>,
}

impl Arrivals {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Received, Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program reads one of the tensors of a message: which one it is in the order of reading. Nothing is known of
    /// messages that nobody reads, so those that are refused need not be forgotten.
    pub(super) fn read(
        &self,
        received: Received,
        place: usize,
        all: &[TensorEntry],
    ) -> Option<u32> {
        let mut arrivals = self.lock();
        let arrival = match arrivals.entry(received) {
            Entry::Occupied(known) => known.into_mut(),
            // Asked for with the lock held: a context that closes after this finds the entry.
            Entry::Vacant(vacant) if is_in_open_context() => {
                let tensors = all.iter().filter(|entry| entry.requires_grad);
                vacant.insert(Arrival {
                    tensors: tensors.map(|it| (it.dtype, it.shape.clone())).collect(),
                    read: Vec::new(),
                })
            }
            Entry::Vacant(_) => return None,
        };
        arrival.read.push(place);
        u32::try_from(arrival.read.len() - 1).ok()
    }

    pub(crate) fn get(&self, received: Received) -> Option<Arrival> {
        self.lock().get(&received).cloned()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The context is over.
    pub(crate) fn forget(&self, context: i64) {
        self.lock()
            .retain(|received, _| received.context != context);
    }
}

/// Whether the message that is being read was sent in a context that is not over.
fn is_in_open_context() -> bool {
    farref::context::incoming().is_some_and(|message| {
        !matches!(message.scope.check(), Err(farref::Error::ContextReleased))
    })
}
