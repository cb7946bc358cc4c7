//! A thread that looks at things again and again until they are over. It is there only as long as there is something to look at.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something that is looked at until it is over.
pub(crate) trait Watched: Send + Sync + fmt::Debug {
    /// Does what can be done, and says whether there is nothing left to do.
    fn is_over(&self) -> bool;
}

/// All things of one kind.
#[derive(Debug)]
pub(crate) struct Watch {
    /// The thread's.
    name: &'static str,
    /// How long it takes from one look to the next.
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<Box<dyn Watched>>,
    has_thread: bool,
    /// How often it was looked at all of them.
    looks: u64,
}

impl Watch {
    pub(crate) fn new(name: &'static str, pause: Duration) -> Arc<Self> {
        Arc::new(Self {
            name,
            pause,
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more.
    pub(crate) fn add(self: &Arc<Self>, watched: Box<dyn Watched>) {
        let mut state = self.lock();
        state.watched.push(watched);
        if !state.has_thread {
            let watch = Arc::clone(self);
            let thread = std::thread::Builder::new().name(self.name.to_owned());
            // Without a thread nobody looks, until the next one has one.
            state.has_thread = thread.spawn(move || watch.look()).is_ok();
        }
    }

    fn look(&self) {
        loop {
            std::thread::sleep(self.pause);
            let mut watched = std::mem::take(&mut self.lock().watched);
            // Without the lock: to do what can be done takes its time.
            watched.retain(|watched| !watched.is_over());
            let mut state = self.lock();
            state.watched.append(&mut watched);
            state.looks += 1;
            if state.watched.is_empty() {
                state.has_thread = false;
                return;
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn looks(&self) -> u64 {
        self.lock().looks
    }
}
