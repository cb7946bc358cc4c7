//! What the engine keeps for one worker: its part in each context, and the way to its passes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use farref::Worker;
use farref::context::{ContextId, ContextScope, Extension, NodeId};

use super::backend::Backend;
use super::carrier::Carrier;
use super::parcel::PassId;
use super::passes::{Input, Passes};
use super::records::{Counts, Records};
use super::timings::Timings;
use crate::failure::{Cause, PassFailure};

/// What the engine keeps for one worker: the contexts that it takes part in.
pub struct Engine<B: Backend> {
    contexts: Mutex<HashMap<ContextId, Arc<Participation<B>>>>,
    /// Set if parcels travel in messages of the wire's own.
    pub(super) carrier: OnceLock<Arc<dyn Carrier<B>>>,
    timings: Arc<Timings>,
}

/// A worker's part in one context.
pub(crate) struct Participation<B: Backend> {
    pub(crate) scope: ContextScope,
    records: Mutex<Records<B>>,
    pub(super) passes: Mutex<Passes<B>>,
    /// Held by the own pass that runs, on a wire that names no passes.
    pub(super) turn: tokio::sync::Mutex<()>,
    /// How long graphs take on this worker, in any context.
    pub(super) timings: Arc<Timings>,
}

impl<B: Backend> Default for Engine<B> {
    fn default() -> Self {
        Self {
            contexts: Mutex::default(),
            carrier: OnceLock::new(),
            timings: Arc::default(),
        }
    }
}

impl<B: Backend> std::fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("counts", &self.counts())
            .finish()
    }
}

impl<B: Backend> Extension for Engine<B> {
    fn context_closed(&self, _: &Worker, context: ContextId) {
        let closed = lock(&self.contexts).remove(&context);
        // EN-5: the passes end with their inboxes. Whatever holds graphs goes on a stack of its own.
        if let Some(closed) = closed {
            let passes = std::mem::take(&mut lock(&closed.passes).running);
            let records = std::mem::take(&mut *lock(&closed.records));
            B::let_go((passes, records));
        }
    }

    /// If there are no graphs.
    fn closes_quickly(&self, context: ContextId) -> bool {
        let place = self.find(context);
        place.is_none_or(|place| {
            lock(&place.records).has_no_graphs() && !lock(&place.passes).has_graphs()
        })
    }

    fn describe(&self, context: ContextId) -> Option<String> {
        let place = self.find(context)?;
        let mut counts = Counts::default();
        lock(&place.records).count(&mut counts);
        counts.passes = lock(&place.passes).running.len();
        let Counts {
            sends,
            recvs,
            passes,
            gradients,
            ..
        } = counts;
        Some(format!(
            "passes: {passes}, sent: {sends}, received: {recvs}, gradients: {gradients}"
        ))
    }

    fn context_failed(&self, worker: &Worker, context: ContextId, lost: NodeId) {
        let Some(place) = self.find(context) else {
            return;
        };
        let failure = PassFailure {
            worker: worker.peer_of(lost).name().to_owned(),
            cause: Cause::WorkerLost,
        };
        let mut passes = lock(&place.passes);
        for running in passes.running.values() {
            drop(running.inbox.send(Input::Fail(failure.clone())));
        }
        passes.lost = Some(failure);
    }
}

impl<B: Backend> Engine<B> {
    /// The engine of a worker.
    pub fn of(worker: &Worker) -> Arc<Self> {
        worker.extension()
    }

    /// How much there is, in all contexts.
    pub fn counts(&self) -> Counts {
        let places: Vec<_> = lock(&self.contexts).values().cloned().collect();
        let mut counts = Counts::default();
        for place in places {
            counts.contexts += 1;
            lock(&place.records).count(&mut counts);
            counts.passes += lock(&place.passes).running.len();
        }
        counts
    }

    fn find(&self, context: ContextId) -> Option<Arc<Participation<B>>> {
        lock(&self.contexts).get(&context).cloned()
    }

    /// The records of a context. None if the context is over on this worker.
    pub(crate) fn enter(&self, scope: &ContextScope) -> Option<Arc<Participation<B>>> {
        let mut contexts = lock(&self.contexts);
        if let Some(place) = contexts.get(&scope.id()) {
            return Some(Arc::clone(place));
        }
        // Asked for with the lock held: a context that closes after this finds the entry (EN-5).
        if matches!(scope.check(), Err(farref::Error::ContextReleased)) {
            return None;
        }
        let place = Arc::new(Participation {
            scope: scope.clone(),
            records: Mutex::default(),
            passes: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            timings: Arc::clone(&self.timings),
        });
        contexts.insert(scope.id(), Arc::clone(&place));
        Some(place)
    }
}

impl<B: Backend> Participation<B> {
    pub(crate) fn records<T>(&self, f: impl FnOnce(&mut Records<B>) -> T) -> T {
        f(&mut lock(&self.records))
    }

    /// An own pass has ended, be it well or badly.
    pub(crate) fn ended(&self, id: PassId) {
        let mut passes = lock(&self.passes);
        passes.own.remove(&id.counter);
        passes.running.remove(&id);
    }

    /// All passes of an origin below this are over, as far as this worker has heard: only the origin knows.
    pub(super) fn ended_below(&self, origin: NodeId) -> u64 {
        let passes = lock(&self.passes);
        if origin == self.scope.worker().node() {
            passes.own.first().copied().unwrap_or(passes.next)
        } else {
            passes.over.get(&origin).copied().unwrap_or(0)
        }
    }

    pub(super) fn failure(&self, cause: Cause) -> PassFailure {
        PassFailure {
            worker: self.scope.worker().name().to_owned(),
            cause,
        }
    }

    /// A worker that this one has drawn in reports that it is getting on.
    pub(crate) fn progressed(&self, id: PassId) {
        if let Some(running) = lock(&self.passes).running.get(&id)
            && running.resting.is_none()
        {
            drop(running.inbox.send(Input::Progress));
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
