//! Waits of this process's streams for the work of another process.
//!
//! Of a process that was killed the work is never done, and a stream that waits for it would wait for ever, with all that it was given since. So as
//! long as streams wait, a thread looks whether the other process lives. If it does not, the number that they wait for is written here
//! ([`Progress::raise`]): they go on, and it is known that elements may be missing.
//!
//! # Invariants
//!
//! - **PW-1** No stream is given a wait for a number that was reached, nor, by one thread after another, twice for the same one.
//! - **PW-2** A stream that was given a wait goes on when the number is reached, or when the other process has died. So the thread that looks calls no
//!   driver, and no lock that it needs is held while one is called: a driver may wait for that very stream.
//! - **PW-3** Work counts as done only if its number was seen to be reached while the other process lived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::after_work::AfterWork;
use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::other_process::OtherProcess;
use crate::progress::{Numbers, Progress, is_before};
use crate::sys::StreamHandle;
use crate::watch::{Watch, Watched};

/// The work of the process that a pool is of.
#[derive(Debug)]
pub(crate) struct ExportersWork {
    device: Device,
    progress: Progress,
    after: AfterWork,
    watch: Arc<Watch>,
    waits: Arc<Waits>,
}

/// What the thread needs that looks.
#[derive(Debug)]
struct Waits {
    numbers: Numbers,
    exporter: OtherProcess,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which number each stream was given a wait for last, until it has done that.
    streams: HashMap<StreamHandle, u32>,
    /// The last one that a stream may wait for. None if all were reached: of numbers that are too far apart it is not known which is the later one.
    last: Option<u32>,
    /// The last of those that were not seen to be reached.
    unseen: Option<u32>,
    is_watched: bool,
}

/// The later one.
fn later(one: Option<u32>, other: u32) -> Option<u32> {
    Some(one.filter(|&one| is_before(other, one)).unwrap_or(other))
}

impl ExportersWork {
    pub(crate) fn new(
        device: &Device,
        progress: Progress,
        exporter: OtherProcess,
        after: &AfterWork,
        watch: &Arc<Watch>,
    ) -> Arc<Self> {
        Arc::new(Self {
            device: device.clone(),
            waits: Arc::new(Waits {
                numbers: progress.numbers(),
                exporter,
                state: Mutex::default(),
            }),
            progress,
            after: after.clone(),
            watch: Arc::clone(watch),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.waits.lock()
    }

    /// What `stream` is given from now on waits for what the exporter has said so far that others are to wait for.
    pub(crate) fn wait(self: &Arc<Self>, stream: StreamHandle) -> Result<()> {
        let number = self.waits.numbers.given();
        // Most often it is done by now. To wait for it all the same would be work for the GPU, which is switched from one process to
        // the other for that, hundreds of microseconds each time.
        if self.waits.look(number)? {
            return Ok(());
        }
        let Device { driver, ordinal } = &self.device;
        // The graph would wait for it whenever it is run, also when nothing is left here of the other process.
        if driver.is_capturing(*ordinal, stream)? {
            return Err(CudaError::Captured);
        }
        let mut state = self.lock();
        let waits_for = state.streams.get(&stream);
        // PW-1
        if waits_for.is_some_and(|&waits_for| !is_before(waits_for, number)) {
            return Ok(());
        }
        // Before the stream waits: somebody looks whatever happens from now on, and nobody takes for seen what was not.
        state.last = later(state.last, number);
        state.unseen = later(state.unseen, number);
        if !std::mem::replace(&mut state.is_watched, true) {
            self.watch.add(Box::new(Arc::clone(&self.waits)));
        }
        drop(state);
        self.watch.start()?;
        // It blocks if the stream has been given too much, until that goes on.
        self.progress.wait(stream, number)?;
        let mut state = self.lock();
        let waits_for = later(state.streams.get(&stream).copied(), number);
        state
            .streams
            .extend(waits_for.map(|number| (stream, number)));
        drop(state);
        // PG-3: what the job has stays until it is run.
        let work = Arc::clone(self);
        let job = Box::new(move || work.has_waited(stream, number));
        self.after.run(*ordinal, stream, job)
    }

    /// A stream has done its wait.
    fn has_waited(&self, stream: StreamHandle, number: u32) {
        let mut state = self.lock();
        if state.streams.get(&stream) == Some(&number) {
            state.streams.remove(&stream);
        }
        drop(state);
        // Whoever uses what is missing is told.
        let _ = self.check();
    }

    /// Whether streams may still wait, as far as was looked.
    pub(crate) fn is_behind(&self) -> bool {
        self.lock().unseen.is_some()
    }

    /// Fails if the exporter has died before it was seen that all is done that was waited for.
    pub(crate) fn check(&self) -> Result<()> {
        let unseen = self.lock().unseen;
        unseen.map_or(Ok(()), |number| self.waits.look(number).map(drop))
    }

    #[cfg(test)]
    pub(crate) fn exporter(&self) -> &OtherProcess {
        &self.waits.exporter
    }

    #[cfg(test)]
    pub(crate) fn numbers(&self) -> &Numbers {
        &self.waits.numbers
    }

    #[cfg(test)]
    pub(crate) fn is_watched(&self) -> bool {
        self.lock().is_watched
    }
}

impl State {
    /// A number was seen to be reached while the exporter lived (PW-3).
    fn saw(&mut self, number: u32) {
        self.unseen = self.unseen.filter(|&unseen| is_before(number, unseen));
    }
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a number was reached. Fails if the exporter has died.
    fn look(&self, number: u32) -> Result<bool> {
        let is_reached = self.numbers.has_reached(number);
        // PW-3: after that, since the number of one that has died may be written by anybody.
        if !self.exporter.is_alive() {
            return Err(CudaError::ExporterGone);
        }
        if is_reached {
            self.lock().saw(number);
        }
        Ok(is_reached)
    }
}

/// PW-2
impl Watched for Arc<Waits> {
    fn is_over(&self) -> bool {
        // Nobody begins to wait meanwhile.
        let mut state = self.lock();
        let Some(number) = state.last else {
            state.is_watched = false;
            return true;
        };
        let is_reached = self.numbers.has_reached(number);
        // After that: PW-3.
        let is_alive = self.exporter.is_alive();
        let is_over = if is_alive {
            is_reached
        } else {
            // Before it is written, so that nobody else writes after that (PG-2).
            let has_ended = self.exporter.has_ended();
            self.numbers.raise(number);
            has_ended
        };
        if is_alive && is_reached {
            state.saw(number);
        }
        if is_over {
            (state.is_watched, state.last) = (false, None);
        }
        drop(state);
        if !is_alive && !is_reached {
            tracing::warn!(
                "a process died before its work was done: elements of what it has shared may be missing"
            );
        }
        is_over
    }
}
