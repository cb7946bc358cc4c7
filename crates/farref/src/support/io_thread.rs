//! A thread for what no program may keep from running: signs of life, and all that a group needs of a
//! worker whose program is busy.
//!
//! The program's runtime is the program's: a function that computes where it should await holds up
//! whatever else runs there. So connections are made and accepted, time is kept, and streams that nobody
//! reads are read on a thread of this crate's own. All workers of a process share it; it ends with the
//! last of them. No code of the program runs on it (UC-1).

use std::io;
use std::sync::{Arc, Mutex, Weak};

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

#[cfg(feature = "simulation")]
use crate::support::barred::Barred;
use crate::support::lock::lock;
use crate::support::simulation;
use crate::support::user_code;
use crate::support::waiting_threads::WaitingThreads;

/// The thread, for as long as somebody has this.
#[derive(Debug)]
pub(crate) struct IoThread {
    handle: Handle,
    waiting: WaitingThreads,
    /// Dropping it ends the thread.
    _alive: oneshot::Sender<()>,
}

static SHARED: Mutex<Weak<IoThread>> = Mutex::new(Weak::new());

impl IoThread {
    /// The thread of this process, started if there is none.
    pub(crate) fn get() -> io::Result<Arc<Self>> {
        #[cfg(feature = "simulation")]
        if simulation::is_on() {
            return Ok(Arc::new(Self::simulated()));
        }
        let mut shared = lock(&SHARED);
        if let Some(thread) = shared.upgrade() {
            return Ok(thread);
        }
        let thread = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&thread);
        Ok(thread)
    }

    /// A thread that nobody else uses.
    #[cfg(test)]
    pub(crate) fn alone() -> Arc<Self> {
        Arc::new(Self::start().expect("a thread"))
    }

    /// One that nobody else uses, and beside which no other can be had.
    #[cfg(test)]
    pub(crate) fn without_threads() -> Arc<Self> {
        let thread = Self::alone();
        thread.waiting.exhaust();
        thread
    }

    /// No thread, but the runtime that this is called in (SM-1).
    #[cfg(feature = "simulation")]
    fn simulated() -> Self {
        Self {
            handle: Handle::current(),
            waiting: WaitingThreads::none(),
            _alive: oneshot::channel().0,
        }
    }

    fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, over) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("farref-io".to_owned())
            .spawn(move || {
                user_code::reserve_thread();
                // An error is what is waited for: the sender is gone.
                let _ = runtime.block_on(over);
                // What still resolves a name on a thread of the runtime's may take its time.
                runtime.shutdown_background();
            })?;
        Ok(Self {
            handle,
            waiting: WaitingThreads::new(),
            _alive: alive,
        })
    }

    /// The runtime that the thread drives.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Starts a task on the thread.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.handle.spawn(Self::as_task(task))
    }

    /// What a task of the thread is, wherever it is started.
    pub(crate) fn as_task<F: Future>(task: F) -> impl Future<Output = F::Output> + use<F> {
        #[cfg(feature = "simulation")]
        let task = Barred {
            task,
            is_barred: simulation::is_on(),
        };
        simulation::unsteady(task)
    }

    /// Threads for what must not hold this one up.
    pub(crate) fn waiting_threads(&self) -> &WaitingThreads {
        &self.waiting
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farref_testkit::TEST_TIMEOUT;

    use super::*;

    #[tokio::test]
    async fn it_runs_while_all_other_threads_are_busy_and_nothing_of_the_program() {
        let thread = IoThread::get().expect("a thread");
        let (said, heard) = std::sync::mpsc::channel();
        thread.handle().spawn(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            let name = std::thread::current().name().map(str::to_owned);
            said.send((name, user_code::is_barred())).unwrap();
        });
        // This blocks the only thread of this test's runtime.
        let heard = heard.recv_timeout(TEST_TIMEOUT);
        assert_eq!(heard, Ok((Some("farref-io".to_owned()), true)));
    }
}
