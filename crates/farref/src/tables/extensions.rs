//! What crates above keep for a worker, and how they hear of its contexts.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use farref_proto::{ContextId, NodeId};

use crate::support::lock::lock;

/// Is told what becomes of contexts on the worker `W`.
pub(crate) trait ContextListener<W>: Send + Sync {
    /// The context is over on this worker.
    fn context_closed(&self, worker: &Arc<W>, context: ContextId);

    /// Whether that takes no time, and runs nothing of the program's code.
    fn closes_quickly(&self, context: ContextId) -> bool;

    /// What there is to say of it.
    fn describe(&self, context: ContextId) -> Option<String>;

    /// A worker that took part in the context is gone.
    fn context_failed(&self, worker: &Arc<W>, context: ContextId, lost: NodeId);
}

/// One of each type.
struct Kept<W> {
    extension: Arc<dyn Any + Send + Sync>,
    listener: Arc<dyn ContextListener<W>>,
}

/// The extensions of one worker.
pub(crate) struct Extensions<W>(Mutex<HashMap<TypeId, Kept<W>>>);

impl<W> Default for Extensions<W> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<W> Extensions<W> {
    fn lock(&self) -> MutexGuard<'_, HashMap<TypeId, Kept<W>>> {
        lock(&self.0)
    }

    /// The extension of that type, which is made if there is none.
    pub(crate) fn get<T: Default + Send + Sync + 'static>(
        &self,
        listener: impl FnOnce(&Arc<T>) -> Arc<dyn ContextListener<W>>,
    ) -> Arc<T> {
        let mut all = self.lock();
        let kept = all.entry(TypeId::of::<T>()).or_insert_with(|| {
            let extension = Arc::new(T::default());
            let listener = listener(&extension);
            Kept {
                extension,
                listener,
            }
        });
        // The map's key is the type.
        Arc::clone(&kept.extension).downcast().unwrap_or_default()
    }

    /// Those who are to be told.
    pub(crate) fn listeners(&self) -> Vec<Arc<dyn ContextListener<W>>> {
        let all = self.lock();
        all.values()
            .map(|kept| Arc::clone(&kept.listener))
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn clear(&self) {
        // Their destructors may come back here.
        let extensions = std::mem::take(&mut *self.lock());
        drop(extensions);
    }
}
