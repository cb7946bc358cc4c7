//! A thread that looks at things again and again until they are over. It is there only as long as there is something to look at.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Something that is looked at until it is over.
pub(crate) trait Watched: Send + Sync + fmt::Debug {
    /// Does what can be done, and says whether there is nothing left to do. If it panics, it is looked at again.
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
    /// So often no thread can be started.
    #[cfg(test)]
    failures: usize,
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

    /// One more, which stays whatever happens. Nobody looks at it before there is a thread ([`start`](Self::start)).
    pub(crate) fn add(&self, watched: Box<dyn Watched>) {
        self.lock().watched.push(watched);
    }

    /// Sees to it that there is a thread. Without one nobody looks until this is called again.
    pub(crate) fn start(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.lock();
        if state.has_thread || state.watched.is_empty() {
            return Ok(());
        }
        #[cfg(test)]
        if state.failures > 0 {
            state.failures -= 1;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let watch = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        thread.spawn(move || watch.look())?;
        state.has_thread = true;
        Ok(())
    }

    fn look(&self) {
        loop {
            std::thread::sleep(self.pause);
            let mut watched = std::mem::take(&mut self.lock().watched);
            // Without the lock: to do what can be done takes its time. What panics has said so; others are not its fault.
            let is_over = |watched: &mut Box<dyn Watched>| {
                catch_unwind(AssertUnwindSafe(|| watched.is_over())).unwrap_or(false)
            };
            for over in watched.extract_if(.., is_over) {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(over)));
            }
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

    /// Whether there is nothing to look at.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        !self.lock().has_thread
    }

    /// The next threads cannot be started.
    #[cfg(test)]
    pub(crate) fn fail_next(&self, times: usize) {
        self.lock().failures = times;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::tests::until;

    /// Panics when it is looked at for the first time, and is over the next time.
    #[derive(Debug, Default)]
    struct Panics(Arc<AtomicUsize>);

    impl Watched for Panics {
        fn is_over(&self) -> bool {
            assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "wanted");
            true
        }
    }

    #[test]
    fn what_panics_is_looked_at_again_and_so_is_all_else() {
        let watch = Watch::new("panics", Duration::from_millis(1));
        let looks: Vec<_> = (0..3).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        for looks in &looks {
            watch.add(Box::new(Panics(Arc::clone(looks))));
        }
        watch.start().unwrap();
        until(|| looks.iter().all(|looks| looks.load(Ordering::Relaxed) == 2));
        // And the thread ends, and another one comes.
        until(|| !watch.lock().has_thread);
        let again = Arc::new(AtomicUsize::new(1));
        watch.add(Box::new(Panics(Arc::clone(&again))));
        watch.start().unwrap();
        until(|| again.load(Ordering::Relaxed) == 2);
    }

    #[test]
    fn a_thread_that_could_not_be_started_is_started_later_and_nothing_is_forgotten() {
        let watch = Watch::new("starts", Duration::from_millis(1));
        let looks = Arc::new(AtomicUsize::new(1));
        watch.fail_next(1);
        watch.add(Box::new(Panics(Arc::clone(&looks))));
        assert!(watch.start().is_err());
        assert_eq!(looks.load(Ordering::Relaxed), 1);
        watch.start().unwrap();
        until(|| looks.load(Ordering::Relaxed) == 2);
    }
}
