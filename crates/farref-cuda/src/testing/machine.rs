//! A pretended machine and its processes, as a test sees them.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::driver::StandIn;
use super::shared::{PATIENCE, Shared};
use super::state::{Counts, Gpu, Op, Pool, ProcessState, State};
use crate::cuda::Cuda;
use crate::driver::{Abilities, Driver};
use crate::facts::DeviceUuid;
use crate::sys::StreamHandle;

/// A machine with GPUs that there is not.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Shared>);

impl Machine {
    /// One with so many GPUs of 1 GiB each. Call [`finish`](Self::finish) at the end, or use [`run`](Self::run).
    pub fn new(gpus: usize) -> Self {
        let machine = Self(Arc::default());
        for gpu in 0..gpus {
            let mut uuid = [0xCC; 16];
            uuid[15] = gpu as u8;
            machine.0.lock().gpus.push(Gpu {
                uuid: DeviceUuid(uuid),
                memory: 1 << 30,
                abilities: Abilities {
                    pools: true,
                    pool_descriptors: true,
                },
            });
        }
        machine
    }

    /// Runs a test on a machine with so many GPUs, after which [nothing is left](Self::finish).
    pub fn run(gpus: usize, test: impl FnOnce(&Self)) {
        let machine = Self::new(gpus);
        test(&machine);
        machine.finish();
    }

    /// How much memory a GPU has.
    pub fn set_memory(&self, gpu: usize, bytes: u64) {
        self.0.lock().gpus[gpu].memory = bytes;
    }

    /// GPUs that cannot share their memory.
    pub fn take_abilities_away(&self, gpu: usize) {
        self.0.lock().gpus[gpu].abilities.pool_descriptors = false;
    }

    /// Another process, which sees all GPUs.
    pub fn process(&self) -> Process {
        let all: Vec<usize> = (0..self.0.lock().gpus.len()).collect();
        self.process_that_sees(&all)
    }

    /// Another process, which sees these GPUs, in this order.
    pub fn process_that_sees(&self, gpus: &[usize]) -> Process {
        let mut state = self.0.lock();
        let process = state.processes.len();
        let mut current = HashMap::new();
        for &gpu in gpus {
            let number = state.number();
            let pool = Pool {
                owner: process,
                gpu,
                is_default: true,
                is_destroyed: false,
                free: Default::default(),
                physical: 0,
            };
            state.pools.insert(number, pool);
            current.insert(gpu, number);
        }
        state.processes.push(ProcessState {
            sees: gpus.to_vec(),
            current,
            ..ProcessState::default()
        });
        drop(state);
        let driver = Arc::new(StandIn {
            shared: Arc::clone(&self.0),
            process,
        });
        Process {
            cuda: Cuda::new(driver.clone()),
            driver,
        }
    }

    /// How much there is that has to be given back.
    pub fn counts(&self) -> Counts {
        self.0.lock().counts()
    }

    /// What went wrong so far without anybody noticing. It is forgotten then.
    pub fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().faults)
    }

    /// Checks that there were no faults, and that everything was given back: threads that do that have a while.
    ///
    /// # Panics
    ///
    /// If not.
    pub fn finish(self) {
        let deadline = Instant::now() + PATIENCE;
        while self.counts() != Counts::default() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(self.counts(), Counts::default(), "not given back");
        assert_eq!(self.take_faults(), Vec::<String>::new(), "faults");
    }
}

/// A pretended process of a [`Machine`].
#[derive(Clone, Debug)]
pub struct Process {
    cuda: Cuda,
    driver: Arc<StandIn>,
}

impl Process {
    /// Its driver.
    pub fn cuda(&self) -> &Cuda {
        &self.cuda
    }

    /// Makes the next call of a function of the driver's fail with a code: `fail_next("cuMemPoolImportPointer", 2)`. Several wait
    /// for their turn.
    pub fn fail_next(&self, call: &str, code: u32) {
        self.fail_after(call, 0, code);
    }

    /// The same, after so many calls that do not fail.
    pub fn fail_after(&self, call: &str, calls: usize, code: u32) {
        let mut state = self.lock();
        let process = &mut state.processes[self.driver.process];
        let turns = process.failures.entry(call.to_owned()).or_default();
        turns.extend(std::iter::repeat_n(None, calls));
        turns.push_back(Some(code));
    }

    /// How often a function of the driver's was called.
    pub fn calls(&self, call: &str) -> usize {
        let state = self.lock();
        let process = &state.processes[self.driver.process];
        process.calls.get(call).copied().unwrap_or(0)
    }

    /// As with the real driver, whose queues are longer: whoever gives a number to a stream that has so much to do blocks until it has less.
    pub fn limit_streams(&self, most: usize) {
        self.lock().processes[self.driver.process].most_given = Some(most);
    }

    /// A new stream. [`destroy_stream`](Self::destroy_stream) takes it back.
    pub fn stream(&self, ordinal: u32) -> StreamHandle {
        let created = self.driver.create_stream(ordinal);
        created.expect("there is nothing that could fail")
    }

    /// Takes a stream back. It must be there.
    pub fn destroy_stream(&self, ordinal: u32, stream: StreamHandle) {
        let destroyed = self.driver.destroy_stream(ordinal, stream);
        destroyed.expect("it is a stream of this process");
    }

    /// From now on what a stream is given is captured and not done, until [`end_capture`](Self::end_capture). (Of what can be given
    /// to a stream only events are.)
    pub fn begin_capture(&self, ordinal: u32, stream: StreamHandle) {
        let key = self.driver.key(ordinal, stream);
        self.lock().captures.insert(key);
    }

    /// The stream is not captured any more.
    pub fn end_capture(&self, ordinal: u32, stream: StreamHandle) {
        let key = self.driver.key(ordinal, stream);
        self.lock().captures.remove(&key);
    }

    /// Frees memory that was allocated or [taken](crate::ImportedMemory::into_raw), when its stream gets there, as candle does.
    pub fn free(&self, ordinal: u32, pointer: u64, stream: StreamHandle) {
        // What is wrong with it is noted.
        let _ = self.driver.free(ordinal, pointer, stream);
    }

    /// Where the driver puts the next memory that is imported: at an address that was free again, say.
    pub fn import_next_at(&self, pointer: u64) {
        self.lock().processes[self.driver.process].next_import = Some(pointer);
    }

    /// Writes to device memory, at once.
    pub fn write(&self, pointer: u64, bytes: &[u8]) {
        self.lock().write(self.driver.process, pointer, bytes);
    }

    /// Reads device memory, at once: a fault if a stream was given work that has not written it yet.
    pub fn read(&self, pointer: u64, bytes: u64) -> Vec<u8> {
        self.lock().read(self.driver.process, None, pointer, bytes)
    }

    /// Gives a stream work that takes until it is [let go on](Work::complete).
    pub fn hold(&self, ordinal: u32, stream: StreamHandle) -> Work {
        let number = self.lock().number();
        self.driver.give(ordinal, stream, Op::Held(number));
        Work {
            driver: Arc::clone(&self.driver),
            number,
        }
    }

    /// Stops a stream after so many further steps, such as a copy or the record of an event, until it is
    /// [let go on](Work::complete).
    pub fn hold_after(&self, ordinal: u32, stream: StreamHandle, steps: usize) -> Work {
        let key = self.driver.key(ordinal, stream);
        let mut state = self.lock();
        let number = state.number();
        state.stops.insert(key, (steps, number));
        Work {
            driver: Arc::clone(&self.driver),
            number,
        }
    }

    /// Gives a stream work that writes to memory when it is [let go on](Work::complete).
    pub fn write_later(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        pointer: u64,
        bytes: &[u8],
    ) -> Work {
        let key = self.driver.key(ordinal, stream);
        let mut state = self.lock();
        if let Some((id, _)) = state.find(self.driver.process, pointer)
            && let Some(allocation) = state.allocations.get_mut(&id)
        {
            allocation.to_be_written.push(key);
        }
        drop(state);
        let work = self.hold(ordinal, stream);
        let bytes = bytes.to_vec();
        let address = pointer;
        self.driver
            .give(ordinal, stream, Op::Write { address, bytes });
        work
    }

    /// Gives a stream work that reads memory when the stream gets there: a fault if it was not written by then.
    pub fn read_later(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        pointer: u64,
        bytes: u64,
    ) -> Reading {
        let into = self.lock().number();
        let address = pointer;
        self.driver.give(
            ordinal,
            stream,
            Op::Read {
                address,
                bytes,
                into,
            },
        );
        Reading {
            driver: Arc::clone(&self.driver),
            into,
        }
    }

    /// SIGKILL: all its calls fail from now on, its streams stop where they are, and what it had is taken back, but for memory that others have
    /// imported. (Its socket goes with its [`SharedPool`](crate::SharedPool)s.)
    pub fn kill(&self) {
        self.lock().kill(self.driver.process);
        self.driver.shared.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.driver.shared.lock()
    }
}

/// Work that a stream is held up by. It goes on when this is dropped, too.
#[derive(Debug)]
pub struct Work {
    driver: Arc<StandIn>,
    number: u64,
}

impl Work {
    /// Lets the stream go on.
    pub fn complete(self) {}
}

impl Drop for Work {
    fn drop(&mut self) {
        let mut state = self.driver.shared.lock();
        state.released.insert(self.number);
        state.go_on();
        drop(state);
        self.driver.shared.changed.notify_all();
    }
}

/// What a stream reads when it gets there.
#[derive(Debug)]
pub struct Reading {
    driver: Arc<StandIn>,
    into: u64,
}

impl Reading {
    /// What was read, if the stream got there.
    pub fn get(&self) -> Option<Vec<u8>> {
        let mut state = self.driver.shared.lock();
        // Numbers may have been written meanwhile that the stream waits for.
        state.go_on();
        state.readings.get(&self.into).cloned()
    }
}
