//! The pretended machine's driver: the same functions, on plain memory.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::Write as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use super::shared::{PATIENCE, Shared};
use super::state::{Event, Import, Op, Pool, State, StreamKey};
use crate::cuda::WAITS_THREAD;
use crate::driver::{Abilities, Driver, DriverResult, EventHandle, Opaque, PoolHandle};
use crate::error::DriverError;
use crate::facts::{DeviceUuid, MemoryInfo};
use crate::sys::{HostAddress, HostPart, SharedNumber, StreamHandle};
use crate::ticket::{MOST_BYTES, Secret};

/// What a real driver says of a device that is not there.
const INVALID_DEVICE: u32 = 101;
const INVALID_HANDLE: u32 = 400;
const TIMEOUT: u32 = 702;
const CAPTURE_UNSUPPORTED: u32 = 900;
const CAPTURED_EVENT: u32 = 907;
/// How often it is looked whether streams can go on.
const LOOKS: Duration = Duration::from_millis(1);

thread_local! {
    /// Whether this thread may ask what it likes while another one captures.
    static IS_RELAXED: Cell<bool> = const { Cell::new(false) };
}

/// The driver of one pretended process.
#[derive(Debug)]
pub(super) struct StandIn {
    pub(super) shared: Arc<Shared>,
    pub(super) process: usize,
}

fn error(call: &'static str, code: u32) -> DriverError {
    let name = "of the stand-in".to_owned();
    DriverError { call, code, name }
}

fn invalid(call: &'static str) -> DriverError {
    error(call, DriverError::INVALID_VALUE)
}

impl StandIn {
    /// A stream of this process.
    pub(super) fn key(&self, ordinal: u32, stream: StreamHandle) -> StreamKey {
        let sees = self.shared.lock().processes[self.process].sees.clone();
        let gpu = sees.get(ordinal as usize).copied();
        (self.process, gpu.unwrap_or(usize::MAX), stream.raw())
    }

    /// What each call begins with.
    fn enter(&self, call: &'static str) -> DriverResult<MutexGuard<'_, State>> {
        let mut state = self.shared.lock();
        // Numbers may have been written meanwhile that streams wait for.
        state.go_on();
        // The real one might wait for the very streams that this thread lets go on.
        if std::thread::current().name() == Some(WAITS_THREAD) {
            state.fault(format!("{call} by {WAITS_THREAD}"));
        }
        let process = &mut state.processes[self.process];
        *process.calls.entry(call).or_default() += 1;
        if process.is_dead {
            return Err(error(call, DriverError::DEINITIALIZED));
        }
        match process
            .failures
            .get_mut(call)
            .and_then(VecDeque::pop_front)
            .flatten()
        {
            Some(code) => Err(error(call, code)),
            None => Ok(state),
        }
    }

    /// The GPU that a device is.
    fn gpu(&self, state: &State, call: &'static str, ordinal: u32) -> DriverResult<usize> {
        let sees = &state.processes[self.process].sees;
        let gpu = sees.get(ordinal as usize).copied();
        gpu.ok_or_else(|| error(call, INVALID_DEVICE))
    }

    /// Gives work to a stream, and does what can be done.
    pub(super) fn give(&self, ordinal: u32, stream: StreamHandle, op: Op) {
        let key = self.key(ordinal, stream);
        let mut state = self.shared.lock();
        // A stream that was destroyed does its work all the same.
        state.streams.entry(key).or_default().push_back(op);
        state.go_on();
        drop(state);
        self.shared.changed.notify_all();
    }

    /// The same, of something that is not to be captured.
    fn give_number(
        &self,
        call: &'static str,
        ordinal: u32,
        stream: StreamHandle,
        op: Op,
    ) -> DriverResult<()> {
        drop(self.enter(call)?);
        let key = self.key(ordinal, stream);
        self.until(call, |state| {
            let most = state.processes[self.process].most_given;
            let given = state.streams.get(&key).map_or(0, VecDeque::len);
            most.is_none_or(|most| given < most)
        })?;
        let mut state = self.shared.lock();
        if state.captures.contains(&key) {
            state.fault(format!("{call} was captured"));
        }
        drop(state);
        self.give(ordinal, stream, op);
        Ok(())
    }

    /// The event that a handle is of, and how often it was recorded.
    fn event(
        &self,
        state: &State,
        call: &'static str,
        handle: EventHandle,
    ) -> DriverResult<(u64, u64)> {
        let known = state.event_handles.get(&handle.0);
        let event = known
            .filter(|(owner, _)| *owner == self.process)
            .map(|(_, event)| *event);
        let event = event.ok_or_else(|| error(call, INVALID_HANDLE))?;
        Ok((
            event,
            state.events.get(&event).map_or(0, |event| event.records),
        ))
    }

    /// Blocks until something is so.
    fn until(&self, call: &'static str, is_so: impl Fn(&State) -> bool) -> DriverResult<()> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.lock();
        while !is_so(&state) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(error(call, TIMEOUT));
            }
            // Nobody tells when a number is written that a stream waits for.
            let waited = (self.shared.changed).wait_timeout(state, left.min(LOOKS));
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            state.go_on();
        }
        Ok(())
    }

    /// The pool that a handle is of, if it is this process's own.
    fn own_pool(&self, state: &State, call: &'static str, pool: PoolHandle) -> DriverResult<u64> {
        let known = state.pools.get(&pool.0);
        let own = known.is_some_and(|known| known.owner == self.process && !known.is_destroyed);
        own.then_some(pool.0).ok_or_else(|| invalid(call))
    }
}

/// 64 bytes that nobody can guess.
fn random() -> Opaque {
    let mut bytes = [0; 64];
    for half in bytes.chunks_mut(32) {
        half.copy_from_slice(&Secret::random().expect("the system has random numbers").0);
    }
    bytes
}

impl Driver for StandIn {
    fn device_count(&self) -> DriverResult<u32> {
        let state = self.enter("cuDeviceGetCount")?;
        Ok(state.processes[self.process].sees.len() as u32)
    }

    fn uuid(&self, ordinal: u32) -> DriverResult<DeviceUuid> {
        let call = "cuDeviceGetUuid_v2";
        let state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        Ok(state.gpus[gpu].uuid)
    }

    fn abilities(&self, ordinal: u32) -> DriverResult<Abilities> {
        let call = "cuDeviceGetAttribute";
        let state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        Ok(state.gpus[gpu].abilities)
    }

    fn memory(&self, ordinal: u32) -> DriverResult<MemoryInfo> {
        let call = "cuMemGetInfo_v2";
        let state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let total = state.gpus[gpu].memory;
        let free = total.saturating_sub(state.physical(gpu));
        Ok(MemoryInfo { free, total })
    }

    fn create_pool(&self, ordinal: u32) -> DriverResult<PoolHandle> {
        let call = "cuMemPoolCreate";
        let mut state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let number = state.number();
        let pool = Pool {
            owner: self.process,
            gpu,
            is_default: false,
            is_destroyed: false,
            free: Default::default(),
            physical: 0,
        };
        state.pools.insert(number, pool);
        Ok(PoolHandle(number))
    }

    fn make_current(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<()> {
        let call = "cuDeviceSetMemPool";
        let mut state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let pool = self.own_pool(&state, call, pool)?;
        state.processes[self.process].current.insert(gpu, pool);
        Ok(())
    }

    fn destroy_pool(&self, _: u32, pool: PoolHandle) -> DriverResult<()> {
        let call = "cuMemPoolDestroy";
        let mut state = self.enter(call)?;
        if let Some(&(owner, of)) = state.imported_pools.get(&pool.0)
            && owner == self.process
        {
            let mut allocations = state.allocations.values();
            let is_used = allocations.any(|allocation| {
                allocation.pool == of && allocation.imports.contains_key(&self.process)
            });
            let other = state
                .imported_pools
                .iter()
                .any(|(&handle, &(owner, other))| {
                    handle != pool.0 && owner == self.process && other == of
                });
            if is_used && !other {
                return Err(invalid(call));
            }
            state.imported_pools.remove(&pool.0);
            return Ok(());
        }
        let number = self.own_pool(&state, call, pool)?;
        let gpu = state.pools[&number].gpu;
        let mut defaults = state.pools.iter();
        let default = defaults
            .find(|(_, pool)| pool.is_default && pool.owner == self.process && pool.gpu == gpu);
        let default = default.map(|(&number, _)| number);
        if let Some(pool) = state.pools.get_mut(&number) {
            pool.is_destroyed = true;
        }
        let current = &mut state.processes[self.process].current;
        if current.get(&gpu) == Some(&number)
            && let Some(default) = default
        {
            current.insert(gpu, default);
        }
        state.clean_up();
        Ok(())
    }

    fn export_pool(&self, _: u32, pool: PoolHandle) -> DriverResult<OwnedFd> {
        let call = "cuMemPoolExportToShareableHandle";
        let state = self.enter(call)?;
        let number = self.own_pool(&state, call, pool)?;
        drop(state);
        let file = memfd_create("farref-stand-in-pool", MemfdFlags::empty());
        let mut file = std::fs::File::from(file.map_err(|_| invalid(call))?);
        file.write_all(&number.to_le_bytes())
            .map_err(|_| invalid(call))?;
        Ok(file.into())
    }

    fn import_pool(&self, ordinal: u32, descriptor: BorrowedFd<'_>) -> DriverResult<PoolHandle> {
        let call = "cuMemPoolImportFromShareableHandle";
        let mut state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let mut number = [0; 8];
        let read = rustix::io::pread(descriptor, &mut number, 0);
        let number = u64::from_le_bytes(number);
        let pool = state.pools.get(&number);
        if read != Ok(8) || pool.is_none_or(|pool| pool.gpu != gpu) {
            return Err(invalid(call));
        }
        let handle = state.number();
        state.imported_pools.insert(handle, (self.process, number));
        Ok(PoolHandle(handle))
    }

    fn allocate(
        &self,
        ordinal: u32,
        pool: Option<PoolHandle>,
        bytes: u64,
        _: StreamHandle,
    ) -> DriverResult<u64> {
        let call = match pool {
            Some(_) => "cuMemAllocFromPoolAsync",
            None => "cuMemAllocAsync",
        };
        let mut state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let pool = match pool {
            Some(pool) => self.own_pool(&state, call, pool)?,
            None => state.processes[self.process].current[&gpu],
        };
        if bytes == 0 {
            return Err(invalid(call));
        }
        let allocated = state.allocate(pool, bytes);
        allocated.ok_or_else(|| error(call, DriverError::OUT_OF_MEMORY))
    }

    fn free(&self, ordinal: u32, pointer: u64, stream: StreamHandle) -> DriverResult<()> {
        drop(self.enter("cuMemFreeAsync")?);
        self.give(ordinal, stream, Op::Free { address: pointer });
        Ok(())
    }

    fn pool_of(&self, _: u32, pointer: u64) -> DriverResult<Option<PoolHandle>> {
        let call = "cuPointerGetAttribute";
        let state = self.enter(call)?;
        let found = state.find(self.process, pointer);
        let (id, _) = found.ok_or_else(|| invalid(call))?;
        Ok(Some(PoolHandle(state.allocations[&id].pool)))
    }

    fn range(&self, _: u32, pointer: u64) -> DriverResult<(u64, u64)> {
        let call = "cuMemGetAddressRange_v2";
        let state = self.enter(call)?;
        let found = state.find(self.process, pointer);
        let (id, at) = found.ok_or_else(|| invalid(call))?;
        let bytes = state.allocations[&id].bytes.len() as u64;
        Ok((pointer - at as u64, bytes))
    }

    fn allocation_id(&self, _: u32, pointer: u64) -> DriverResult<u64> {
        let call = "cuPointerGetAttribute";
        let state = self.enter(call)?;
        let found = state.find(self.process, pointer);
        let (id, _) = found.ok_or_else(|| invalid(call))?;
        let import = state.allocations[&id].imports.get(&self.process);
        Ok(import.map_or(id, |import| import.id))
    }

    fn export_pointer(&self, _: u32, pointer: u64) -> DriverResult<Opaque> {
        let call = "cuMemPoolExportPointer";
        let mut state = self.enter(call)?;
        let found = state.find(self.process, pointer);
        let (id, _) = found.ok_or_else(|| invalid(call))?;
        let pool = state.pools.get(&state.allocations[&id].pool);
        if pool.is_none_or(|pool| pool.is_default || pool.owner != self.process) {
            return Err(invalid(call));
        }
        let data = random();
        state.exports.insert(data, id);
        Ok(data)
    }

    fn import_pointer(&self, _: u32, pool: PoolHandle, data: &Opaque) -> DriverResult<u64> {
        let call = "cuMemPoolImportPointer";
        let mut state = self.enter(call)?;
        let imported = state.imported_pools.get(&pool.0).copied();
        let of = imported.filter(|(owner, _)| *owner == self.process);
        let (_, of) = of.ok_or_else(|| invalid(call))?;
        let allocation = state.exports.get(data).copied();
        let number = state.number();
        let at = state.processes[self.process].next_import.take();
        let allocation = allocation.and_then(|id| state.allocations.get_mut(&id));
        let allocation = allocation.filter(|allocation| allocation.pool == of);
        let allocation = allocation.ok_or_else(|| invalid(call))?;
        let crashes = allocation.bytes.len() as u64 > MOST_BYTES;
        let usual = State::seen_by(self.process, allocation.address);
        let import = Import {
            address: at.unwrap_or(usual),
            id: number,
        };
        let address = allocation
            .imports
            .entry(self.process)
            .or_insert(import)
            .address;
        if crashes {
            state.fault("the real driver crashes when it imports so much".to_owned());
        }
        Ok(address)
    }

    fn copy_within(
        &self,
        ordinal: u32,
        from: u64,
        to: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let call = "cuMemcpyDtoDAsync_v2";
        let state = self.enter(call)?;
        for pointer in [from, to] {
            state
                .find(self.process, pointer)
                .ok_or_else(|| invalid(call))?;
        }
        drop(state);
        self.give(ordinal, stream, Op::Copy { from, to, bytes });
        Ok(())
    }

    fn create_stream(&self, ordinal: u32) -> DriverResult<StreamHandle> {
        let call = "cuStreamCreate";
        let mut state = self.enter(call)?;
        let gpu = self.gpu(&state, call, ordinal)?;
        let number = state.number();
        let key = (self.process, gpu, number);
        state.streams.insert(key, Default::default());
        Ok(StreamHandle::new(number))
    }

    fn destroy_stream(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()> {
        let call = "cuStreamDestroy_v2";
        drop(self.enter(call)?);
        let key = self.key(ordinal, stream);
        let mut state = self.shared.lock();
        let left = state.streams.remove(&key);
        let left = left.ok_or_else(|| error(call, INVALID_HANDLE))?;
        if !left.is_empty() {
            // What it was given is still done: by a stream that nobody has and nobody counts.
            let number = state.number();
            state
                .streams
                .insert((key.0, usize::MAX - number as usize, 0), left);
        }
        Ok(())
    }

    fn synchronize(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()> {
        let call = "cuStreamSynchronize";
        drop(self.enter(call)?);
        let key = self.key(ordinal, stream);
        self.until(call, |state| {
            state.streams.get(&key).is_none_or(|queue| queue.is_empty())
        })
    }

    fn is_idle(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool> {
        drop(self.enter("cuStreamQuery")?);
        let key = self.key(ordinal, stream);
        let mut state = self.shared.lock();
        if state.captures.contains(&key) {
            state.fault("a capture was spoiled".to_owned());
            return Err(error("cuStreamQuery", CAPTURE_UNSUPPORTED));
        }
        Ok(state.streams.get(&key).is_none_or(|queue| queue.is_empty()))
    }

    fn is_capturing(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool> {
        drop(self.enter("cuStreamIsCapturing")?);
        let key = self.key(ordinal, stream);
        Ok(self.shared.lock().captures.contains(&key))
    }

    fn relax_captures(&self) -> DriverResult<()> {
        IS_RELAXED.set(true);
        Ok(())
    }

    fn create_event(&self, ordinal: u32) -> DriverResult<EventHandle> {
        let call = "cuEventCreate";
        let mut state = self.enter(call)?;
        self.gpu(&state, call, ordinal)?;
        let (event, handle) = (state.number(), state.number());
        state.events.insert(event, Event::default());
        state.event_handles.insert(handle, (self.process, event));
        Ok(EventHandle(handle))
    }

    fn destroy_event(&self, _: u32, event: EventHandle) -> DriverResult<()> {
        let call = "cuEventDestroy_v2";
        let mut state = self.enter(call)?;
        self.event(&state, call, event)?;
        state.event_handles.remove(&event.0);
        state.clean_up();
        state.go_on();
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    fn record(&self, ordinal: u32, event: EventHandle, stream: StreamHandle) -> DriverResult<()> {
        let call = "cuEventRecord";
        let mut state = self.enter(call)?;
        let (event, records) = self.event(&state, call, event)?;
        let number = records + 1;
        let key = (self.process, self.gpu(&state, call, ordinal)?, stream.raw());
        let is_captured = state.captures.contains(&key);
        if let Some(event) = state.events.get_mut(&event) {
            event.is_captured = is_captured;
            event.records += u64::from(!is_captured);
        }
        drop(state);
        if is_captured {
            return Ok(());
        }
        self.give(ordinal, stream, Op::Record { event, number });
        Ok(())
    }

    fn is_done(&self, _: u32, event: EventHandle) -> DriverResult<bool> {
        let call = "cuEventQuery";
        let mut state = self.enter(call)?;
        let (event, number) = self.event(&state, call, event)?;
        let mut captures = state.captures.iter();
        if captures.any(|(process, ..)| *process == self.process) && !IS_RELAXED.get() {
            state.fault("a capture was spoiled".to_owned());
            return Err(error(call, CAPTURE_UNSUPPORTED));
        }
        if state
            .events
            .get(&event)
            .is_some_and(|event| event.is_captured)
        {
            return Err(error(call, CAPTURED_EVENT));
        }
        Ok(state.is_reached(event, number))
    }

    fn wait(&self, _: u32, event: EventHandle) -> DriverResult<()> {
        let call = "cuEventSynchronize";
        let state = self.enter(call)?;
        let (event, number) = self.event(&state, call, event)?;
        drop(state);
        self.until(call, |state| state.is_reached(event, number))
    }

    fn stream_wait(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        event: EventHandle,
    ) -> DriverResult<()> {
        let call = "cuStreamWaitEvent";
        let state = self.enter(call)?;
        let (event, number) = self.event(&state, call, event)?;
        drop(state);
        self.give(ordinal, stream, Op::Wait { event, number });
        Ok(())
    }

    fn lock_shared(&self, _: u32, address: HostAddress, _: usize) -> DriverResult<u64> {
        drop(self.enter("cuMemHostGetDevicePointer_v2")?);
        let mut state = self.enter("cuMemHostRegister_v2")?;
        state.host.insert(address);
        Ok(0)
    }

    fn write_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()> {
        self.give_number(
            "cuStreamWriteValue32_v2",
            ordinal,
            stream,
            Op::WriteNumber { number, value },
        )
    }

    fn wait_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()> {
        self.give_number(
            "cuStreamWaitValue32_v2",
            ordinal,
            stream,
            Op::WaitNumber { number, value },
        )
    }

    fn lock_host(&self, _: u32, address: HostAddress, _: usize) -> DriverResult<()> {
        let mut state = self.enter("cuMemHostRegister_v2")?;
        state.host.insert(address);
        Ok(())
    }

    fn unlock_host(&self, _: u32, address: HostAddress) -> DriverResult<()> {
        // Also of a process that was killed: it has the memory only in pretence.
        let entered = self.enter("cuMemHostUnregister").map(drop);
        self.shared.lock().host.remove(&address);
        entered
    }

    fn copy_down(
        &self,
        ordinal: u32,
        from: u64,
        to: HostPart,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        drop(self.enter("cuMemcpyDtoHAsync_v2")?);
        self.give(ordinal, stream, Op::Down { from, to });
        Ok(())
    }

    fn copy_up(
        &self,
        ordinal: u32,
        from: HostPart,
        to: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        drop(self.enter("cuMemcpyHtoDAsync_v2")?);
        self.give(ordinal, stream, Op::Up { from, to });
        Ok(())
    }
}
