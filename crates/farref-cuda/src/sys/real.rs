//! The CUDA driver of this machine.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::address::{HostAddress, HostPart, SharedNumber};
use super::stream::StreamHandle;
use super::table::{Code, Handle, Opaque64, PoolProperties, Table};
use crate::driver::{Abilities, Driver, DriverResult, EventHandle, Opaque, PoolHandle};
use crate::error::{DriverError, Result};
use crate::facts::{DeviceUuid, MemoryInfo};

// `cuda.h`'s numbers.
const ATTRIBUTE_MEMORY_POOLS: c_uint = 115;
const ATTRIBUTE_POOL_HANDLES: c_uint = 119;
const POOL_RELEASE_THRESHOLD: c_uint = 4;
const POINTER_BUFFER_ID: c_uint = 7;
const POINTER_POOL: c_uint = 17;
const ALLOCATION_PINNED: c_uint = 1;
const LOCATION_DEVICE: c_uint = 1;
const HANDLE_DESCRIPTOR: c_uint = 1;
const EVENT_BLOCKING_SYNC: c_uint = 1;
const EVENT_DISABLE_TIMING: c_uint = 2;
const STREAM_NON_BLOCKING: c_uint = 1;
const CAPTURE_NONE: c_uint = 0;
const CAPTURE_RELAXED: c_uint = 2;
const HOST_PORTABLE: c_uint = 1;
const HOST_DEVICE_MAP: c_uint = 2;
const WRITE_DEFAULT: c_uint = 0;
const WAIT_GREATER_OR_EQUAL: c_uint = 0;
const NOT_READY: Code = 600;

/// So long an event is asked again and again: to be woken takes longer than most copies.
const ASKED_FOR: Duration = Duration::from_micros(300);

/// The driver, and the devices' primary contexts, which are kept for good: whoever computes on a device has them, too.
pub(crate) struct Real {
    table: Table,
    contexts: Mutex<Vec<Option<Context>>>,
}

#[derive(Clone, Copy)]
struct Context(Handle);

// SAFETY: a context may be made current on any thread.
unsafe impl Send for Context {}

impl std::fmt::Debug for Real {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.table.fmt(f)
    }
}

/// Calls a function of the table. What it is given must be what `cuda.h` says.
macro_rules! call {
    ($real:expr, $name:ident($($argument:expr),*)) => {{
        let code = ($real.table.$name)($($argument),*);
        $real.check(stringify!($name), code)
    }};
}

/// Makes another context the thread's own again.
struct Entered<'a>(Option<&'a Table>);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        if let Some(table) = self.0 {
            let mut entered = ptr::null_mut();
            // SAFETY: what was pushed is popped; it writes one handle.
            unsafe { (table.cuCtxPopCurrent_v2)(&mut entered) };
        }
    }
}

impl Real {
    /// Opens the library, and starts the driver.
    pub(crate) fn open() -> Result<Self> {
        let real = Self {
            table: Table::open()?,
            contexts: Mutex::default(),
        };
        // SAFETY: zero is the only flag there is.
        unsafe { call!(real, cuInit(0)) }
            .map_err(|error| crate::CudaError::NoDriver(error.to_string()))?;
        Ok(real)
    }

    fn check(&self, call: &'static str, code: Code) -> DriverResult<()> {
        if code == 0 {
            return Ok(());
        }
        let name = self.table.name(code);
        Err(DriverError { call, code, name })
    }

    fn device(&self, ordinal: u32) -> DriverResult<c_int> {
        let mut device = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: it writes one number.
        unsafe { call!(self, cuDeviceGet(&mut device, ordinal)) }?;
        Ok(device)
    }

    fn context(&self, ordinal: u32) -> DriverResult<Context> {
        let known = |contexts: &Vec<Option<Context>>| contexts.get(ordinal as usize).copied();
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(context)) = known(&contexts) {
            return Ok(context);
        }
        let device = self.device(ordinal)?;
        let mut context = Context(ptr::null_mut());
        // SAFETY: it writes one handle.
        unsafe { call!(self, cuDevicePrimaryCtxRetain(&mut context.0, device)) }?;
        // The driver knows the device, so its number is small.
        let needed = ordinal as usize + 1;
        if contexts.len() < needed {
            contexts.resize(needed, None);
        }
        contexts[ordinal as usize] = Some(context);
        Ok(context)
    }

    /// Makes the device's context current until the guard is dropped.
    fn enter(&self, ordinal: u32) -> DriverResult<Entered<'_>> {
        let context = self.context(ordinal)?;
        let mut current = ptr::null_mut();
        // SAFETY: it writes one handle.
        unsafe { call!(self, cuCtxGetCurrent(&mut current)) }?;
        if current == context.0 {
            return Ok(Entered(None));
        }
        // SAFETY: the context is retained for good.
        unsafe { call!(self, cuCtxPushCurrent_v2(context.0)) }?;
        Ok(Entered(Some(&self.table)))
    }

    fn attribute(&self, ordinal: u32, attribute: c_uint) -> DriverResult<c_int> {
        let device = self.device(ordinal)?;
        let mut value = 0;
        // SAFETY: it writes one number. Attributes that the driver does not know are an error.
        unsafe { call!(self, cuDeviceGetAttribute(&mut value, attribute, device)) }?;
        Ok(value)
    }
}

impl StreamHandle {
    fn pointer(self) -> Handle {
        ptr::with_exposed_provenance_mut(self.raw() as usize)
    }
}

impl PoolHandle {
    fn pointer(self) -> Handle {
        ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

impl EventHandle {
    fn pointer(self) -> Handle {
        ptr::with_exposed_provenance_mut(self.0 as usize)
    }
}

fn number(handle: Handle) -> u64 {
    handle.expose_provenance() as u64
}

// In all of these the SAFETY of the calls is: handles are those that the driver gave and nobody has destroyed, which those who call
// this trait see to; addresses of results are those of local variables of the right type; device memory is named by numbers,
// which the driver checks.
impl Driver for Real {
    fn device_count(&self) -> DriverResult<u32> {
        let mut count = 0;
        // SAFETY: see above.
        unsafe { call!(self, cuDeviceGetCount(&mut count)) }?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn uuid(&self, ordinal: u32) -> DriverResult<DeviceUuid> {
        let device = self.device(ordinal)?;
        let mut uuid = [0; 16];
        // SAFETY: see above.
        unsafe { call!(self, cuDeviceGetUuid_v2(&mut uuid, device)) }?;
        Ok(DeviceUuid(uuid))
    }

    fn abilities(&self, ordinal: u32) -> DriverResult<Abilities> {
        // An attribute that the driver does not know is something that it cannot do.
        let has = |attribute| self.attribute(ordinal, attribute).unwrap_or(0);
        self.device(ordinal)?;
        Ok(Abilities {
            pools: has(ATTRIBUTE_MEMORY_POOLS) != 0,
            pool_descriptors: has(ATTRIBUTE_POOL_HANDLES) & HANDLE_DESCRIPTOR as c_int != 0,
        })
    }

    fn memory(&self, ordinal: u32) -> DriverResult<MemoryInfo> {
        let _entered = self.enter(ordinal)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: see above.
        unsafe { call!(self, cuMemGetInfo_v2(&mut free, &mut total)) }?;
        let (free, total) = (free as u64, total as u64);
        Ok(MemoryInfo { free, total })
    }

    fn create_pool(&self, ordinal: u32) -> DriverResult<PoolHandle> {
        let location_id = self.device(ordinal)?;
        let _entered = self.enter(ordinal)?;
        let properties = PoolProperties {
            allocation_type: ALLOCATION_PINNED,
            handle_types: HANDLE_DESCRIPTOR,
            location_type: LOCATION_DEVICE,
            location_id,
            win32_security: ptr::null_mut(),
            reserved: [0; 64],
        };
        let mut pool = ptr::null_mut();
        // SAFETY: see above.
        unsafe { call!(self, cuMemPoolCreate(&mut pool, &properties)) }?;
        let mut all = u64::MAX;
        let threshold = (&raw mut all).cast::<c_void>();
        // SAFETY: see above; this attribute is a `cuuint64_t`.
        let kept = unsafe {
            call!(
                self,
                cuMemPoolSetAttribute(pool, POOL_RELEASE_THRESHOLD, threshold)
            )
        };
        if let Err(error) = kept {
            // SAFETY: nobody else has it.
            unsafe { (self.table.cuMemPoolDestroy)(pool) };
            return Err(error);
        }
        Ok(PoolHandle(number(pool)))
    }

    fn make_current(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<()> {
        let device = self.device(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuDeviceSetMemPool(device, pool.pointer())) }
    }

    fn destroy_pool(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuMemPoolDestroy(pool.pointer())) }
    }

    fn export_pool(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<OwnedFd> {
        let _entered = self.enter(ordinal)?;
        let mut descriptor: RawFd = -1;
        let into = (&raw mut descriptor).cast::<c_void>();
        let pool = pool.pointer();
        // SAFETY: see above; of this type of handle it writes a descriptor.
        unsafe {
            call!(
                self,
                cuMemPoolExportToShareableHandle(into, pool, HANDLE_DESCRIPTOR, 0)
            )
        }?;
        // SAFETY: the driver opened it for whoever asked.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    fn import_pool(&self, ordinal: u32, descriptor: BorrowedFd<'_>) -> DriverResult<PoolHandle> {
        let _entered = self.enter(ordinal)?;
        let mut pool = ptr::null_mut();
        // Of this type of handle the number itself is handed over.
        let descriptor = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        // SAFETY: see above. The driver does not keep the descriptor.
        unsafe {
            call!(
                self,
                cuMemPoolImportFromShareableHandle(&mut pool, descriptor, HANDLE_DESCRIPTOR, 0)
            )
        }?;
        Ok(PoolHandle(number(pool)))
    }

    fn allocate(
        &self,
        ordinal: u32,
        pool: Option<PoolHandle>,
        bytes: u64,
        stream: StreamHandle,
    ) -> DriverResult<u64> {
        let _entered = self.enter(ordinal)?;
        let (mut pointer, bytes, stream) = (0, bytes as usize, stream.pointer());
        // SAFETY: see above.
        unsafe {
            match pool {
                Some(pool) => {
                    let pool = pool.pointer();
                    call!(
                        self,
                        cuMemAllocFromPoolAsync(&mut pointer, bytes, pool, stream)
                    )
                }
                None => call!(self, cuMemAllocAsync(&mut pointer, bytes, stream)),
            }
        }?;
        Ok(pointer)
    }

    fn free(&self, ordinal: u32, pointer: u64, stream: StreamHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuMemFreeAsync(pointer, stream.pointer())) }
    }

    fn pool_of(&self, ordinal: u32, pointer: u64) -> DriverResult<Option<PoolHandle>> {
        let _entered = self.enter(ordinal)?;
        let mut pool: Handle = ptr::null_mut();
        let into = (&raw mut pool).cast::<c_void>();
        // SAFETY: see above; this attribute is a `CUmemoryPool`.
        unsafe { call!(self, cuPointerGetAttribute(into, POINTER_POOL, pointer)) }?;
        Ok((!pool.is_null()).then(|| PoolHandle(number(pool))))
    }

    fn range(&self, ordinal: u32, pointer: u64) -> DriverResult<(u64, u64)> {
        let _entered = self.enter(ordinal)?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: see above.
        unsafe {
            call!(
                self,
                cuMemGetAddressRange_v2(&mut base, &mut bytes, pointer)
            )
        }?;
        Ok((base, bytes as u64))
    }

    fn allocation_id(&self, ordinal: u32, pointer: u64) -> DriverResult<u64> {
        let _entered = self.enter(ordinal)?;
        let mut id = 0_u64;
        let into = (&raw mut id).cast::<c_void>();
        // SAFETY: see above; this attribute is an `unsigned long long`.
        unsafe {
            call!(
                self,
                cuPointerGetAttribute(into, POINTER_BUFFER_ID, pointer)
            )
        }?;
        Ok(id)
    }

    fn export_pointer(&self, ordinal: u32, pointer: u64) -> DriverResult<Opaque> {
        let _entered = self.enter(ordinal)?;
        let mut data = Opaque64([0; 64]);
        // SAFETY: see above.
        unsafe { call!(self, cuMemPoolExportPointer(&mut data, pointer)) }?;
        Ok(data.0)
    }

    fn import_pointer(&self, ordinal: u32, pool: PoolHandle, data: &Opaque) -> DriverResult<u64> {
        let _entered = self.enter(ordinal)?;
        let mut data = Opaque64(*data);
        let mut pointer = 0;
        // SAFETY: see above. The data are a peer's: the driver finds what they name among the pool's allocations, or fails.
        unsafe {
            call!(
                self,
                cuMemPoolImportPointer(&mut pointer, pool.pointer(), &mut data)
            )
        }?;
        Ok(pointer)
    }

    fn copy_within(
        &self,
        ordinal: u32,
        from: u64,
        to: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (bytes, stream) = (bytes as usize, stream.pointer());
        // SAFETY: see above.
        unsafe { call!(self, cuMemcpyDtoDAsync_v2(to, from, bytes, stream)) }
    }

    fn create_stream(&self, ordinal: u32) -> DriverResult<StreamHandle> {
        let _entered = self.enter(ordinal)?;
        let mut stream = ptr::null_mut();
        // SAFETY: see above.
        unsafe { call!(self, cuStreamCreate(&mut stream, STREAM_NON_BLOCKING)) }?;
        Ok(StreamHandle::new(number(stream)))
    }

    fn destroy_stream(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuStreamDestroy_v2(stream.pointer())) }
    }

    fn synchronize(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuStreamSynchronize(stream.pointer())) }
    }

    fn is_idle(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        match unsafe { (self.table.cuStreamQuery)(stream.pointer()) } {
            NOT_READY => Ok(false),
            code => self.check("cuStreamQuery", code).map(|()| true),
        }
    }

    fn is_capturing(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool> {
        let _entered = self.enter(ordinal)?;
        let mut status = CAPTURE_NONE;
        // SAFETY: see above.
        unsafe { call!(self, cuStreamIsCapturing(stream.pointer(), &mut status)) }?;
        Ok(status != CAPTURE_NONE)
    }

    fn relax_captures(&self) -> DriverResult<()> {
        let mut mode = CAPTURE_RELAXED;
        // SAFETY: see above; it writes the mode that was before.
        unsafe { call!(self, cuThreadExchangeStreamCaptureMode(&mut mode)) }
    }

    fn create_event(&self, ordinal: u32) -> DriverResult<EventHandle> {
        let _entered = self.enter(ordinal)?;
        let mut event = ptr::null_mut();
        // SAFETY: see above.
        unsafe {
            call!(
                self,
                cuEventCreate(&mut event, EVENT_DISABLE_TIMING | EVENT_BLOCKING_SYNC)
            )
        }?;
        Ok(EventHandle(number(event)))
    }

    fn destroy_event(&self, ordinal: u32, event: EventHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuEventDestroy_v2(event.pointer())) }
    }

    fn record(&self, ordinal: u32, event: EventHandle, stream: StreamHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuEventRecord(event.pointer(), stream.pointer())) }
    }

    fn is_done(&self, ordinal: u32, event: EventHandle) -> DriverResult<bool> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        match unsafe { (self.table.cuEventQuery)(event.pointer()) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn wait(&self, ordinal: u32, event: EventHandle) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let until = Instant::now() + ASKED_FOR;
        while Instant::now() < until {
            if self.is_done(ordinal, event)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        // From here on the thread sleeps.
        // SAFETY: see above.
        unsafe { call!(self, cuEventSynchronize(event.pointer())) }
    }

    fn stream_wait(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        event: EventHandle,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (stream, event) = (stream.pointer(), event.pointer());
        // SAFETY: see above.
        unsafe { call!(self, cuStreamWaitEvent(stream, event, 0)) }
    }

    fn lock_shared(&self, ordinal: u32, address: HostAddress, bytes: usize) -> DriverResult<u64> {
        let _entered = self.enter(ordinal)?;
        let page = address.pointer().cast::<c_void>();
        let flags = HOST_PORTABLE | HOST_DEVICE_MAP;
        // SAFETY: see above.
        unsafe { call!(self, cuMemHostRegister_v2(page, bytes, flags)) }?;
        let mut at_device = 0;
        // SAFETY: see above.
        let found = unsafe { call!(self, cuMemHostGetDevicePointer_v2(&mut at_device, page, 0)) };
        if let Err(error) = found {
            // SAFETY: it was just locked, and nobody else knows of it.
            unsafe { (self.table.cuMemHostUnregister)(page) };
            return Err(error);
        }
        Ok(at_device)
    }

    fn write_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (stream, at) = (stream.pointer(), number.at_device());
        // SAFETY: see above. By default it comes after what was written before, and can be seen after it.
        unsafe {
            call!(
                self,
                cuStreamWriteValue32_v2(stream, at, value, WRITE_DEFAULT)
            )
        }
    }

    fn wait_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (stream, at) = (stream.pointer(), number.at_device());
        // SAFETY: see above.
        unsafe {
            call!(
                self,
                cuStreamWaitValue32_v2(stream, at, value, WAIT_GREATER_OR_EQUAL)
            )
        }
    }

    fn lock_host(&self, ordinal: u32, address: HostAddress, bytes: usize) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let address = address.pointer().cast();
        // SAFETY: see above.
        unsafe { call!(self, cuMemHostRegister_v2(address, bytes, HOST_PORTABLE)) }
    }

    fn unlock_host(&self, ordinal: u32, address: HostAddress) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        // SAFETY: see above.
        unsafe { call!(self, cuMemHostUnregister(address.pointer().cast())) }
    }

    fn copy_down(
        &self,
        ordinal: u32,
        from: u64,
        to: HostPart,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (into, bytes) = (to.pointer().cast::<c_void>(), to.bytes());
        // SAFETY: see above, and the promise of whoever made the part.
        unsafe {
            call!(
                self,
                cuMemcpyDtoHAsync_v2(into, from, bytes, stream.pointer())
            )
        }
    }

    fn copy_up(
        &self,
        ordinal: u32,
        from: HostPart,
        to: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let _entered = self.enter(ordinal)?;
        let (out_of, bytes) = (from.pointer().cast::<c_void>(), from.bytes());
        // SAFETY: see above, and the promise of whoever made the part.
        unsafe {
            call!(
                self,
                cuMemcpyHtoDAsync_v2(to, out_of, bytes, stream.pointer())
            )
        }
    }
}
