//! Memory that is not out any more as far as anybody says, and that another process may use all the same: it stays until none can
//! ([`ledger`](crate::ledger)).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::shared_pool::SharedPool;

/// How long it takes from one look to the next.
const PAUSE: Duration = Duration::from_millis(20);

/// All such memory of a process. One thread looks after it, as long as there is any.
#[derive(Debug, Default)]
pub(crate) struct Lingering(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    memory: Vec<(Arc<SharedPool>, u64)>,
    has_thread: bool,
}

impl Lingering {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub(crate) fn add(self: &Arc<Self>, pool: Arc<SharedPool>, pointer: u64) {
        let mut state = self.lock();
        state.memory.push((pool, pointer));
        if !state.has_thread {
            let lingering = Arc::clone(self);
            let thread = std::thread::Builder::new().name("farref-lingering".to_owned());
            // Without a thread it stays, until the next one has one.
            state.has_thread = thread.spawn(move || lingering.look()).is_ok();
        }
    }

    fn look(&self) {
        loop {
            std::thread::sleep(PAUSE);
            let mut memory = std::mem::take(&mut self.lock().memory);
            // What is kept for it is dropped meanwhile, which takes its time.
            memory.retain(|(pool, pointer)| !pool.let_go_of_unused(*pointer));
            let mut state = self.lock();
            state.memory.append(&mut memory);
            if state.memory.is_empty() {
                state.has_thread = false;
                return;
            }
        }
    }
}
