//! The driver's functions, as they are found when the library is opened.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::error::{CudaError, Result};

/// The library's name: that of the driver's interface, which comes with the driver and not with a toolkit.
const LIBRARY: &str = "libcuda.so.1";

/// `CUresult`.
pub(super) type Code = c_uint;
/// `CUcontext`, `CUstream`, `CUevent`, `CUmemoryPool`.
pub(super) type Handle = *mut c_void;

/// `CUmemPoolPtrExportData`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Opaque64(pub(super) [u8; 64]);

/// `CUmemPoolProps`. The driver's newer fields are at the beginning of `reserved` and zero.
#[repr(C)]
pub(super) struct PoolProperties {
    pub(super) allocation_type: c_uint,
    pub(super) handle_types: c_uint,
    pub(super) location_type: c_uint,
    pub(super) location_id: c_int,
    pub(super) win32_security: *mut c_void,
    pub(super) reserved: [u8; 64],
}

macro_rules! table {
    ($($name:ident: fn($($argument:ty),* $(,)?)),* $(,)?) => {
        /// One field for each function, by the name that it has in the library.
        #[allow(non_snake_case)]
        pub(super) struct Table {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
            // The functions are there as long as this is.
            _library: libloading::Library,
        }

        impl Table {
            /// Opens the library and finds all of them.
            #[allow(non_snake_case)]
            pub(super) fn open() -> Result<Self> {
                // SAFETY: what this library does when it is loaded is the driver's own business, and sound; it is never
                // unloaded, since the table is kept for good.
                let library = unsafe { libloading::Library::new(LIBRARY) }
                    .map_err(|error| CudaError::NoDriver(why(&error)))?;
                $(
                    // SAFETY: this is that function's type in the driver's documentation (`cuda.h`).
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0")) }
                        .map_err(|_| CudaError::NoDriver(
                            format!("{LIBRARY} has no {}: it is too old", stringify!($name))
                        ))?;
                )*
                Ok(Self { $($name,)* _library: library })
            }
        }
    };
}

table! {
    cuInit: fn(c_uint),
    cuGetErrorName: fn(Code, *mut *const c_char),
    cuDeviceGetCount: fn(*mut c_int),
    cuDeviceGet: fn(*mut c_int, c_int),
    cuDeviceGetUuid_v2: fn(*mut [u8; 16], c_int),
    cuDeviceGetAttribute: fn(*mut c_int, c_uint, c_int),
    cuDevicePrimaryCtxRetain: fn(*mut Handle, c_int),
    cuCtxGetCurrent: fn(*mut Handle),
    cuCtxPushCurrent_v2: fn(Handle),
    cuCtxPopCurrent_v2: fn(*mut Handle),
    cuMemGetInfo_v2: fn(*mut usize, *mut usize),
    cuMemPoolCreate: fn(*mut Handle, *const PoolProperties),
    cuMemPoolSetAttribute: fn(Handle, c_uint, *mut c_void),
    cuMemPoolDestroy: fn(Handle),
    cuDeviceSetMemPool: fn(c_int, Handle),
    cuMemPoolExportToShareableHandle: fn(*mut c_void, Handle, c_uint, u64),
    cuMemPoolImportFromShareableHandle: fn(*mut Handle, *mut c_void, c_uint, u64),
    cuMemPoolExportPointer: fn(*mut Opaque64, u64),
    cuMemPoolImportPointer: fn(*mut u64, Handle, *mut Opaque64),
    cuMemAllocAsync: fn(*mut u64, usize, Handle),
    cuMemAllocFromPoolAsync: fn(*mut u64, usize, Handle, Handle),
    cuMemFreeAsync: fn(u64, Handle),
    cuPointerGetAttribute: fn(*mut c_void, c_uint, u64),
    cuMemGetAddressRange_v2: fn(*mut u64, *mut usize, u64),
    cuStreamCreate: fn(*mut Handle, c_uint),
    cuStreamDestroy_v2: fn(Handle),
    cuStreamSynchronize: fn(Handle),
    cuStreamQuery: fn(Handle),
    cuStreamWaitEvent: fn(Handle, Handle, c_uint),
    cuStreamIsCapturing: fn(Handle, *mut c_uint),
    cuThreadExchangeStreamCaptureMode: fn(*mut c_uint),
    cuEventCreate: fn(*mut Handle, c_uint),
    cuEventDestroy_v2: fn(Handle),
    cuEventRecord: fn(Handle, Handle),
    cuEventQuery: fn(Handle),
    cuEventSynchronize: fn(Handle),
    cuMemHostRegister_v2: fn(*mut c_void, usize, c_uint),
    cuMemHostUnregister: fn(*mut c_void),
    cuMemHostGetDevicePointer_v2: fn(*mut u64, *mut c_void, c_uint),
    cuStreamWriteValue32_v2: fn(Handle, u64, u32, c_uint),
    cuStreamWaitValue32_v2: fn(Handle, u64, u32, c_uint),
    cuMemcpyDtoHAsync_v2: fn(*mut c_void, u64, usize, Handle),
    cuMemcpyDtoDAsync_v2: fn(u64, u64, usize, Handle),
    cuMemcpyHtoDAsync_v2: fn(u64, *const c_void, usize, Handle),
}

/// What the loader says, which is behind what went wrong.
fn why(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

impl Table {
    /// The driver's name for a code.
    pub(super) fn name(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: it writes the address of a text that is never freed, or leaves it.
        let known = unsafe { (self.cuGetErrorName)(code, &mut name) };
        if known != 0 || name.is_null() {
            return "CUDA_ERROR_UNKNOWN".to_owned();
        }
        // SAFETY: the driver's texts end with a zero.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(LIBRARY)
    }
}
