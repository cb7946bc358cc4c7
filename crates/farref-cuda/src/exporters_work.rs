//! Waits of this process's streams for the work of another process.
//!
//! Of a process that was killed the work is never done, and a stream that waits for it would wait for ever, with all that it was given since. So as
//! long as streams wait, a thread looks whether the other process lives. If it does not, the number that they wait for is written here
//! ([`Progress::raise`]): they go on, and it is known that elements may be missing.
//!
//! # Invariants
//!
//! - **PW-1** No stream is given a wait for a number that was reached, nor twice for the same one.
//! - **PW-2** A stream that was given a wait goes on when the number is reached, or when the other process has died.
//! - **PW-3** Work counts as done only if its number was seen to be reached while the other process lived.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::after_work::AfterWork;
use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::other_process::OtherProcess;
use crate::progress::{Progress, is_before};
use crate::sys::StreamHandle;
use crate::watch::{Watch, Watched};

/// The work of the process that a pool is of.
#[derive(Debug)]
pub(crate) struct ExportersWork {
    device: Device,
    progress: Progress,
    exporter: OtherProcess,
    after: AfterWork,
    watch: Arc<Watch>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Which number each stream was given a wait for last, until it has done that.
    streams: HashMap<StreamHandle, u32>,
    /// The last of all of these.
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
            progress,
            exporter,
            after: after.clone(),
            watch: Arc::clone(watch),
            state: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What `stream` is given from now on waits for what the exporter has said so far that others are to wait for.
    pub(crate) fn wait(self: &Arc<Self>, stream: StreamHandle) -> Result<()> {
        let number = self.progress.given();
        // Most often it is done by now. To wait for it all the same would be work for the GPU, which is switched from one process to
        // the other for that, hundreds of microseconds each time.
        if self.look(number)? {
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
        // Before the stream waits: somebody looks whatever happens from now on.
        state.last = later(state.last, number);
        if !std::mem::replace(&mut state.is_watched, true) {
            self.watch.add(Box::new(Arc::clone(self)));
        }
        self.progress.wait(stream, number)?;
        state.streams.insert(stream, number);
        state.unseen = later(state.unseen, number);
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
        unseen.map_or(Ok(()), |number| self.look(number).map(drop))
    }

    /// Whether a number was reached. Fails if the exporter has died.
    fn look(&self, number: u32) -> Result<bool> {
        let is_reached = self.progress.has_reached(number);
        // PW-3: after that, since the number of one that has died may be written by anybody.
        if !self.exporter.is_alive() {
            return Err(CudaError::ExporterGone);
        }
        if is_reached {
            let mut state = self.lock();
            state.unseen = state.unseen.filter(|&unseen| is_before(number, unseen));
        }
        Ok(is_reached)
    }

    #[cfg(test)]
    pub(crate) fn exporter(&self) -> &OtherProcess {
        &self.exporter
    }

    #[cfg(test)]
    pub(crate) fn is_watched(&self) -> bool {
        self.lock().is_watched
    }
}

/// PW-2
impl Watched for Arc<ExportersWork> {
    fn is_over(&self) -> bool {
        // Nobody is given a wait meanwhile.
        let mut state = self.lock();
        let number = state.last.unwrap_or_default();
        let is_reached = self.progress.has_reached(number);
        let is_over = if self.exporter.is_alive() {
            is_reached
        } else {
            if !is_reached {
                tracing::warn!(
                    "a process died before its work was done: elements of what it has shared may be missing"
                );
            }
            // Before it is written, so that nobody else writes after that (PG-2).
            let has_ended = self.exporter.has_ended();
            self.progress.raise(number);
            has_ended
        };
        state.is_watched = !is_over;
        is_over
    }
}
