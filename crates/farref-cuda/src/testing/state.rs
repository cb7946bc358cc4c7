//! What a pretended machine has, and how its streams go on.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::Ordering;

use crate::driver::{Abilities, Opaque};
use crate::facts::DeviceUuid;
use crate::sys::{HostAddress, HostPart, SharedNumber};

/// What allocations begin at a multiple of, as with the real driver.
pub(super) const ALIGNMENT: u64 = 512;
/// How far apart the addresses are at which two processes see the same memory.
const APART: u64 = 1 << 44;

/// How much there is of what has to be given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Allocations that were not freed.
    pub allocations: usize,
    /// Allocations of other processes that were imported and not freed.
    pub imports: usize,
    /// Pools, other than the devices' own.
    pub pools: usize,
    /// Pools of other processes.
    pub imported_pools: usize,
    /// Events, those of other processes included.
    pub events: usize,
    /// Streams, other than the default ones.
    pub streams: usize,
    /// Pieces of page-locked memory of the host.
    pub host_blocks: usize,
}

/// A stream: which process's, on which GPU, and its number.
pub(super) type StreamKey = (usize, usize, u64);

#[derive(Debug)]
pub(super) struct Gpu {
    pub(super) uuid: DeviceUuid,
    pub(super) memory: u64,
    pub(super) abilities: Abilities,
}

#[derive(Debug, Default)]
pub(super) struct ProcessState {
    pub(super) is_dead: bool,
    /// Which GPUs it sees, in which order.
    pub(super) sees: Vec<usize>,
    /// The current pool of each GPU.
    pub(super) current: HashMap<usize, u64>,
    /// Which of the next calls of a function fail.
    pub(super) failures: HashMap<String, VecDeque<Option<u32>>>,
    pub(super) calls: HashMap<&'static str, usize>,
    /// How much its streams can be given before whoever gives them numbers has to wait.
    pub(super) most_given: Option<usize>,
    /// Where the next memory is that it imports.
    pub(super) next_import: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Pool {
    pub(super) owner: usize,
    pub(super) gpu: usize,
    /// A device's own one, which is always there.
    pub(super) is_default: bool,
    pub(super) is_destroyed: bool,
    /// What was freed and is kept: where it begins, and how long it is.
    pub(super) free: BTreeMap<u64, u64>,
    /// What it has of the GPU's memory.
    pub(super) physical: u64,
}

#[derive(Debug)]
pub(super) struct Allocation {
    pub(super) pool: u64,
    /// Where its owner sees it.
    pub(super) address: u64,
    pub(super) bytes: Vec<u8>,
    pub(super) is_freed: bool,
    /// Which processes have imported it: a driver does not count how often.
    pub(super) imports: HashMap<usize, Import>,
    /// Streams that were given work that will write to it.
    pub(super) to_be_written: Vec<StreamKey>,
}

/// An allocation, as another process has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Import {
    pub(super) address: u64,
    /// No other one has the same.
    pub(super) id: u64,
}

#[derive(Debug, Default)]
pub(super) struct Event {
    /// How often it was recorded.
    pub(super) records: u64,
    /// Which of these have been reached.
    pub(super) done: HashSet<u64>,
    /// Whether it was recorded last by a stream that was captured.
    pub(super) is_captured: bool,
}

/// What a stream is given.
#[derive(Debug)]
pub(super) enum Op {
    /// Held up until the test lets it go on.
    Held(u64),
    Write {
        address: u64,
        bytes: Vec<u8>,
    },
    Read {
        address: u64,
        bytes: u64,
        into: u64,
    },
    Record {
        event: u64,
        number: u64,
    },
    Wait {
        event: u64,
        number: u64,
    },
    WriteNumber {
        number: SharedNumber,
        value: u32,
    },
    WaitNumber {
        number: SharedNumber,
        value: u32,
    },
    Free {
        address: u64,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: u64,
    },
    Up {
        from: HostPart,
        to: u64,
    },
    Down {
        from: u64,
        to: HostPart,
    },
}

#[derive(Debug, Default)]
pub(super) struct State {
    last_number: u64,
    pub(super) gpus: Vec<Gpu>,
    pub(super) processes: Vec<ProcessState>,
    pub(super) pools: HashMap<u64, Pool>,
    /// Handles of imported pools: whose they are, and of which pool.
    pub(super) imported_pools: HashMap<u64, (usize, u64)>,
    pub(super) allocations: HashMap<u64, Allocation>,
    /// What the data of exports stand for.
    pub(super) exports: HashMap<Opaque, u64>,
    pub(super) events: HashMap<u64, Event>,
    /// Handles of events: whose they are, and of which event.
    pub(super) event_handles: HashMap<u64, (usize, u64)>,
    pub(super) streams: HashMap<StreamKey, VecDeque<Op>>,
    /// Streams that stop after so many further steps, until that work is let go on.
    pub(super) stops: HashMap<StreamKey, (usize, u64)>,
    /// Streams that are captured.
    pub(super) captures: HashSet<StreamKey>,
    pub(super) released: HashSet<u64>,
    pub(super) readings: HashMap<u64, Vec<u8>>,
    /// Memory of the host that is locked.
    pub(super) host: HashSet<HostAddress>,
    pub(super) faults: Vec<String>,
}

impl State {
    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.last_number += 1;
        // Small ones are special streams.
        self.last_number + 0x1000
    }

    pub(super) fn fault(&mut self, what: String) {
        self.faults.push(what);
    }

    pub(super) fn counts(&self) -> Counts {
        let is_alive = |process: &usize| !self.processes[*process].is_dead;
        let owned = |allocation: &&Allocation| {
            let pool = self.pools.get(&allocation.pool);
            !allocation.is_freed && pool.is_none_or(|pool| is_alive(&pool.owner))
        };
        let imports = |allocation: &Allocation| allocation.imports.len();
        let pools = self.pools.values();
        let pools = pools.filter(|pool| !pool.is_default && is_alive(&pool.owner));
        let streams = self
            .streams
            .keys()
            .filter(|(process, _, number)| is_alive(process) && *number > 2);
        Counts {
            allocations: self.allocations.values().filter(owned).count(),
            imports: self.allocations.values().map(imports).sum(),
            pools: pools.count(),
            imported_pools: (self.imported_pools.values())
                .filter(|(process, _)| is_alive(process))
                .count(),
            events: (self.event_handles.values())
                .filter(|(process, _)| is_alive(process))
                .count(),
            streams: streams.count(),
            host_blocks: self.host.len(),
        }
    }

    /// How much of a GPU's memory is taken.
    pub(super) fn physical(&self, gpu: usize) -> u64 {
        let pools = self.pools.values().filter(|pool| pool.gpu == gpu);
        pools.map(|pool| pool.physical).sum()
    }

    /// Where a process sees memory of another one.
    pub(super) fn seen_by(process: usize, address: u64) -> u64 {
        address + (process as u64 + 1) * APART
    }

    /// The allocation that a process has at an address, and where in it that is.
    pub(super) fn find(&self, process: usize, address: u64) -> Option<(u64, usize)> {
        self.allocations.iter().find_map(|(&id, allocation)| {
            let owner = self.pools.get(&allocation.pool)?.owner;
            let begin = if process == owner {
                (!allocation.is_freed).then_some(allocation.address)?
            } else {
                allocation.imports.get(&process)?.address
            };
            let at = address.checked_sub(begin)?;
            (at < allocation.bytes.len().max(1) as u64).then_some((id, at as usize))
        })
    }

    /// Takes memory of a pool: what it has kept, or more of the GPU's.
    pub(super) fn allocate(&mut self, pool_number: u64, bytes: u64) -> Option<u64> {
        let needed = bytes.max(1).next_multiple_of(ALIGNMENT);
        let pool = self.pools.get(&pool_number)?;
        let (gpu, owner) = (pool.gpu, pool.owner);
        let kept = pool.free.iter().find(|&(_, &length)| length >= needed);
        let kept = kept.map(|(&begin, &length)| (begin, length));
        let is_room = self.physical(gpu) + needed <= self.gpus[gpu].memory;
        let number = self.number();
        let pool = self.pools.get_mut(&pool_number)?;
        let address = match kept {
            Some((begin, length)) => {
                pool.free.remove(&begin);
                if length > needed {
                    pool.free.insert(begin + needed, length - needed);
                }
                begin
            }
            None if is_room => {
                pool.physical += needed;
                // Far enough from all others.
                ((owner as u64 + 1) << 40) + number * (1 << 24).max(needed.next_power_of_two())
            }
            None => return None,
        };
        let allocation = Allocation {
            pool: pool_number,
            address,
            bytes: vec![0; bytes as usize],
            is_freed: false,
            imports: HashMap::new(),
            to_be_written: Vec::new(),
        };
        self.allocations.insert(number, allocation);
        Some(address)
    }

    /// What a stream does to free memory, of its own process or imported.
    fn free(&mut self, process: usize, address: u64) {
        let Some((id, 0)) = self.find(process, address) else {
            self.fault(format!("{address:#x} was freed where nothing begins"));
            return;
        };
        let Some(allocation) = self.allocations.get_mut(&id) else {
            return;
        };
        if allocation.imports.remove(&process).is_none() {
            allocation.is_freed = true;
            if !allocation.imports.is_empty() {
                self.fault(format!("{address:#x} was freed while others have it"));
            }
        }
        self.clean_up();
    }

    /// Takes back what nobody has any more.
    pub(super) fn clean_up(&mut self) {
        let gone = |allocation: &Allocation| allocation.is_freed && allocation.imports.is_empty();
        let dead: Vec<u64> = self
            .allocations
            .iter()
            .filter(|(_, a)| gone(a))
            .map(|(&id, _)| id)
            .collect();
        for id in dead {
            if let Some(allocation) = self.allocations.remove(&id)
                && let Some(pool) = self.pools.get_mut(&allocation.pool)
            {
                let length = (allocation.bytes.len().max(1) as u64).next_multiple_of(ALIGNMENT);
                pool.free.insert(allocation.address, length);
                // Neighbours are one piece again.
                let mut joined: BTreeMap<u64, u64> = BTreeMap::new();
                for (&begin, &length) in &pool.free {
                    match joined.last_entry() {
                        Some(mut last) if last.key() + last.get() == begin => {
                            *last.get_mut() += length
                        }
                        _ => {
                            joined.insert(begin, length);
                        }
                    }
                }
                pool.free = joined;
            }
            self.exports.retain(|_, of| *of != id);
        }
        let used: HashSet<u64> = self
            .allocations
            .values()
            .map(|allocation| allocation.pool)
            .collect();
        let is_there = |number: &u64, pool: &mut Pool| !pool.is_destroyed || used.contains(number);
        self.pools.retain(is_there);
        let known: HashSet<u64> = self
            .event_handles
            .values()
            .map(|(_, event)| *event)
            .collect();
        self.events.retain(|event, _| known.contains(event));
    }

    /// Reads device memory, on a stream or at once.
    pub(super) fn read(
        &mut self,
        process: usize,
        stream: Option<StreamKey>,
        address: u64,
        bytes: u64,
    ) -> Vec<u8> {
        let Some((id, at)) = self.find(process, address) else {
            self.fault(format!("{address:#x} was read where nothing is"));
            return vec![0; bytes as usize];
        };
        let allocation = &self.allocations[&id];
        let read = allocation
            .bytes
            .get(at..at + bytes as usize)
            .map(<[u8]>::to_vec);
        if allocation
            .to_be_written
            .iter()
            .any(|&other| Some(other) != stream)
        {
            self.fault(format!("{address:#x} was read before it was written"));
        }
        read.unwrap_or_else(|| {
            self.fault(format!("{address:#x} was read beyond its end"));
            vec![0; bytes as usize]
        })
    }

    pub(super) fn write(&mut self, process: usize, address: u64, bytes: &[u8]) {
        let found = self.find(process, address);
        let there = found.and_then(|(id, at)| {
            let allocation = self.allocations.get_mut(&id)?;
            allocation.bytes.get_mut(at..at + bytes.len())
        });
        match there {
            Some(there) => there.copy_from_slice(bytes),
            None => self.fault(format!("{address:#x} was written where nothing is")),
        }
    }

    /// Whether an event has been reached that was recorded so often.
    pub(super) fn is_reached(&self, event: u64, number: u64) -> bool {
        // One that nobody has any more keeps nobody waiting.
        number == 0
            || self
                .events
                .get(&event)
                .is_none_or(|event| event.done.contains(&number))
    }

    /// What is written in memory of the host, if that is locked.
    fn number_at(&self, number: SharedNumber) -> Option<u32> {
        let is_locked = self.host.contains(&number.page());
        is_locked.then(|| number.with(|number| number.load(Ordering::Acquire)))
    }

    /// Does what streams can do now.
    pub(super) fn go_on(&mut self) {
        let released = &mut self.released;
        self.stops.retain(|_, (_, work)| !released.remove(work));
        loop {
            let can = |op: &Op| match op {
                Op::Held(work) => self.released.contains(work),
                Op::Wait { event, number } => self.is_reached(*event, *number),
                Op::WaitNumber { number, value } => {
                    let there = self.number_at(*number);
                    // As the driver compares them: they go round.
                    there.is_none_or(|there| there.wrapping_sub(*value) as i32 >= 0)
                }
                _ => true,
            };
            let stops = |key: &StreamKey| self.stops.get(key).is_some_and(|(steps, _)| *steps == 0);
            let next = self
                .streams
                .iter()
                .find(|(key, queue)| !stops(key) && queue.front().is_some_and(can));
            let Some(&key) = next.map(|(key, _)| key) else {
                return;
            };
            if let Some((steps, _)) = self.stops.get_mut(&key) {
                *steps -= 1;
            }
            let op = self.streams.get_mut(&key).and_then(VecDeque::pop_front);
            if let Some(op) = op {
                self.perform(key, op);
            }
        }
    }

    fn perform(&mut self, key: StreamKey, op: Op) {
        let process = key.0;
        match op {
            Op::Held(work) => {
                self.released.remove(&work);
            }
            Op::Wait { .. } => {}
            Op::WriteNumber { number, value } => match self.number_at(number) {
                Some(_) => number.with(|number| number.store(value, Ordering::Release)),
                None => self.fault("a number was written where nothing is".to_owned()),
            },
            Op::WaitNumber { number, .. } => {
                if self.number_at(number).is_none() {
                    self.fault("a number was waited for where nothing is".to_owned());
                }
            }
            Op::Record { event, number } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.done.insert(number);
                }
            }
            Op::Write { address, bytes } => {
                self.write(process, address, &bytes);
                if let Some((id, _)) = self.find(process, address)
                    && let Some(allocation) = self.allocations.get_mut(&id)
                {
                    let announced = allocation
                        .to_be_written
                        .iter()
                        .position(|&other| other == key);
                    announced.map(|at| allocation.to_be_written.remove(at));
                }
            }
            Op::Read {
                address,
                bytes,
                into,
            } => {
                let read = self.read(process, Some(key), address, bytes);
                self.readings.insert(into, read);
            }
            Op::Free { address } => self.free(process, address),
            Op::Copy { from, to, bytes } => {
                let read = self.read(process, Some(key), from, bytes);
                self.write(process, to, &read);
            }
            Op::Up { from, to } => self.write(process, to, &from.read()),
            Op::Down { from, to } => {
                let read = self.read(process, Some(key), from, to.bytes() as u64);
                to.write(&read);
            }
        }
    }

    /// SIGKILL: what it had is taken back, but for memory that others have imported.
    pub(super) fn kill(&mut self, process: usize) {
        self.processes[process].is_dead = true;
        // Its streams stop: what they were to write is never written, as with the real driver.
        for ((owner, ..), queue) in &mut self.streams {
            if *owner != process {
                continue;
            }
            queue.clear();
        }
        for allocation in self.allocations.values_mut() {
            allocation.imports.remove(&process);
            allocation
                .to_be_written
                .retain(|(owner, ..)| *owner != process);
            let owner = self.pools.get(&allocation.pool).map(|pool| pool.owner);
            allocation.is_freed |= owner == Some(process);
        }
        for pool in self.pools.values_mut() {
            pool.is_destroyed |= pool.owner == process;
        }
        self.imported_pools
            .retain(|_, (owner, _)| *owner != process);
        self.event_handles.retain(|_, (owner, _)| *owner != process);
        self.clean_up();
        self.go_on();
    }
}
