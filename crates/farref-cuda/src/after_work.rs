//! Calls back when a stream has done what it was given (CU-3).
//!
//! One thread looks, for all streams of all devices, by asking events of the driver's, and sleeps in between, the longer the less there is
//! to do. It is started when something is to be waited for, and ends when there was nothing for a while. A stream that has nothing to do is given
//! no event: that would be work for it, and whoever looks whether it has any would find some.
//!
//! An error says that the work is over only if the device does not work any more. Other errors are of the event (one that was recorded
//! while the stream was captured for a graph is never done): then another one is recorded, which stands for more.

use std::collections::HashSet;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::driver::{Device, Driver};
use crate::error::Result;
use crate::owned::OwnedEvent;
use crate::sys::StreamHandle;

/// How long it sleeps while things go on.
const SHORTEST: Duration = Duration::from_micros(20);
/// How long it sleeps when nothing has been done for long.
const LONGEST: Duration = Duration::from_millis(2);
/// How long it stays when there is nothing to wait for.
const IDLE: Duration = Duration::from_millis(500);
/// How many events are kept for the next ones.
const SPARE: usize = 64;

type Job = Box<dyn FnOnce() + Send>;

/// Calls back when the work is done that was given to a stream so far. Cheap to clone.
///
/// It is for giving memory back: that must not happen before the last kernel has read it, and nobody is to wait for that.
/// Jobs run one after the other on one thread, so they must be short. When the last clone is dropped, those that are left are
/// still waited for.
#[derive(Clone)]
pub struct AfterWork(Arc<Shared>);

struct Shared {
    driver: Arc<dyn Driver>,
    queue: Mutex<Queue>,
    wake: Condvar,
}

#[derive(Default)]
struct Queue {
    new: Vec<Waiting>,
    spare: Vec<(u32, OwnedEvent)>,
    /// How many jobs have not been begun.
    open: usize,
    has_thread: bool,
}

struct Waiting {
    device: Device,
    stream: StreamHandle,
    mark: Mark,
    job: Job,
}

/// Up to where a stream has to get.
enum Mark {
    /// It could not be said yet.
    Missing,
    /// Nowhere: it had nothing to do.
    Reached,
    At(OwnedEvent),
}

impl fmt::Debug for AfterWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterWork")
            .field("open", &self.open())
            .finish_non_exhaustive()
    }
}

impl AfterWork {
    /// One for all devices of a driver.
    pub(crate) fn with(driver: &Arc<dyn Driver>) -> Self {
        Self(Arc::new(Shared {
            driver: Arc::clone(driver),
            queue: Mutex::default(),
            wake: Condvar::new(),
        }))
    }

    /// How many jobs have not been begun.
    pub fn open(&self) -> usize {
        self.0.lock().open
    }

    /// Runs `job` when the work is done that `stream` was given so far. Does not wait for it.
    ///
    /// If the device fails, nothing works on it any more, and the job is run. There is an error only for a device that does not
    /// exist; then the job is dropped.
    pub fn run(&self, ordinal: u32, stream: StreamHandle, job: Job) -> Result<()> {
        let device = Device::of(&self.0.driver, ordinal)?;
        let spare = || {
            let mut queue = self.0.lock();
            let at = queue.spare.iter().position(|(of, _)| *of == ordinal);
            at.map(|at| queue.spare.swap_remove(at).1)
        };
        let mark = mark(&device, stream, spare);
        let waiting = Waiting {
            device,
            stream,
            mark,
            job,
        };
        let mut queue = self.0.lock();
        queue.open += 1;
        queue.new.push(waiting);
        if queue.has_thread {
            drop(queue);
            self.0.wake.notify_one();
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("farref-after-work".to_owned());
        queue.has_thread = thread.spawn(move || shared.look()).is_ok();
        if !queue.has_thread {
            // Somebody has to.
            let alone = std::mem::take(&mut queue.new);
            drop(queue);
            alone
                .into_iter()
                .for_each(|waiting| self.0.wait_for(waiting));
        }
        Ok(())
    }
}

/// Records an event, with one that is there if there is one, unless the stream has nothing to do.
fn mark(device: &Device, stream: StreamHandle, spare: impl FnOnce() -> Option<OwnedEvent>) -> Mark {
    let Device { driver, ordinal } = device;
    // Into a capture nothing is put that is not the program's.
    if driver.is_capturing(*ordinal, stream) != Ok(false) {
        return Mark::Missing;
    }
    if driver.is_idle(*ordinal, stream) == Ok(true) {
        return Mark::Reached;
    }
    let event = spare().map_or_else(|| OwnedEvent::new(device), Ok);
    let recorded = |event: &OwnedEvent| driver.record(*ordinal, event.handle, stream);
    let event = event.ok().filter(|event| recorded(event).is_ok());
    event.map_or(Mark::Missing, Mark::At)
}

impl Waiting {
    /// Whether its work is done, or will never be.
    fn is_done(&mut self) -> bool {
        let Device { driver, ordinal } = &self.device;
        if let Mark::Missing = self.mark {
            self.mark = mark(&self.device, self.stream, || None);
        }
        let is_done = match &self.mark {
            Mark::Missing => None,
            Mark::Reached => Some(true),
            Mark::At(event) => driver.is_done(*ordinal, event.handle).ok(),
        };
        is_done.unwrap_or_else(|| {
            // What was recorded says nothing any more.
            self.mark = Mark::Missing;
            // Every call fails on a device that has failed.
            driver.memory(*ordinal).is_err()
        })
    }

    fn is_of(&self) -> (u32, StreamHandle) {
        (self.device.ordinal, self.stream)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until there is nothing left to wait for.
    fn look(&self) {
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut pause = SHORTEST;
        // One that cannot do it has no captures. (From now on what this thread asks spoils none.)
        let _ = self.driver.relax_captures();
        loop {
            let mut queue = self.lock();
            if waiting.is_empty() && queue.new.is_empty() {
                let idle = |queue: &mut Queue| queue.new.is_empty();
                let woken = self.wake.wait_timeout_while(queue, IDLE, idle);
                queue = woken.unwrap_or_else(PoisonError::into_inner).0;
                if queue.new.is_empty() {
                    queue.has_thread = false;
                    queue.spare.clear();
                    return;
                }
            }
            waiting.append(&mut queue.new);
            drop(queue);
            let before = waiting.len();
            // A stream does what it was given in order: what came after something that is not done need not be asked for.
            let mut busy = HashSet::new();
            let done = waiting.extract_if(.., |waiting| {
                let is_done = !busy.contains(&waiting.is_of()) && waiting.is_done();
                if !is_done {
                    busy.insert(waiting.is_of());
                }
                is_done
            });
            let done: Vec<_> = done.collect();
            done.into_iter().for_each(|done| self.finish(done));
            if waiting.len() < before {
                pause = SHORTEST;
            } else {
                std::thread::sleep(pause);
                pause = (pause * 5 / 4).min(LONGEST);
            }
        }
    }

    /// Blocks until its work is done.
    fn wait_for(&self, mut waiting: Waiting) {
        while !waiting.is_done() {
            std::thread::sleep(LONGEST);
        }
        self.finish(waiting);
    }

    fn finish(&self, waiting: Waiting) {
        let Waiting {
            device, mark, job, ..
        } = waiting;
        let mut queue = self.lock();
        queue.open -= 1;
        let event = match mark {
            Mark::At(event) => Some((device.ordinal, event)),
            Mark::Missing | Mark::Reached => None,
        };
        // One that is too many is given back after the lock is.
        let mut too_many = None;
        match event {
            Some(event) if queue.spare.len() < SPARE => queue.spare.push(event),
            event => too_many = event,
        }
        drop(queue);
        drop(too_many);
        // A job that panics has said so; others are not its fault.
        let _ = catch_unwind(AssertUnwindSafe(job));
    }
}
