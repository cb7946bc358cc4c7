//! The device memory that is behind a tensor, and tensors over device memory: all unsafe code of this folder.

use std::sync::{Arc, Weak};

use candle_core::backend::BackendDevice;
use candle_core::cuda::CudaStorageSlice;
use candle_core::cuda::cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, DeviceLocation, Layout, Shape, Storage, Tensor};
use farref_cuda::{
    CudaError, DeviceMemory, Download, Held, ImportedMemory, PinnedPool, StreamHandle,
};

use crate::view::View;

/// The allocation that a tensor's elements are in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Allocation {
    pub(super) pointer: u64,
    /// How many elements it has.
    pub(super) elements: usize,
    pub(super) bytes: usize,
}

/// The number of the CUDA device that a tensor is on.
pub(super) fn ordinal(tensor: &Tensor) -> Option<u32> {
    match tensor.device().location() {
        DeviceLocation::Cuda { gpu_id } => u32::try_from(gpu_id).ok(),
        _ => None,
    }
}

/// Whether a tensor was made on this device of candle's: there may be others for the same GPU.
pub(super) fn is_of(tensor: &Tensor, device: &CudaDevice) -> bool {
    let of = tensor.device().as_cuda_device();
    of.is_ok_and(|of| of.same_device(device))
}

/// Waits for all work on a tensor's GPU, on whichever streams of this process.
pub(super) fn wait_for_all(tensor: &Tensor) -> Result<(), String> {
    let device = tensor.device().as_cuda_device();
    let device = device.map_err(|error| error.to_string())?;
    let waited = device.cuda_stream().context().synchronize();
    waited.map_err(|error| error.to_string())
}

/// Looks at the allocation behind a tensor, and how the tensor looks at it.
pub(super) fn with_allocation<T>(
    tensor: &Tensor,
    look: impl FnOnce(Allocation, &Layout) -> T,
) -> Option<T> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        return None;
    };
    Some(look(allocation(storage), layout))
}

/// The allocation behind a tensor, and how the tensor looks at it, if that can be said.
pub(super) fn look_at(tensor: &Tensor) -> Option<(Allocation, Option<View>)> {
    with_allocation(tensor, |allocation, layout| {
        (allocation, View::of(layout, allocation.elements))
    })
}

macro_rules! each_type {
    ($slice:expr, $data:ident => $do:expr) => {
        match $slice {
            CudaStorageSlice::U8($data)
            | CudaStorageSlice::F6E2M3($data)
            | CudaStorageSlice::F6E3M2($data)
            | CudaStorageSlice::F4($data)
            | CudaStorageSlice::F8E8M0($data) => $do,
            CudaStorageSlice::U32($data) => $do,
            CudaStorageSlice::I16($data) => $do,
            CudaStorageSlice::I32($data) => $do,
            CudaStorageSlice::I64($data) => $do,
            CudaStorageSlice::BF16($data) => $do,
            CudaStorageSlice::F16($data) => $do,
            CudaStorageSlice::F32($data) => $do,
            CudaStorageSlice::F64($data) => $do,
            CudaStorageSlice::F8E4M3($data) => $do,
        }
    };
}

fn allocation(storage: &CudaStorage) -> Allocation {
    each_type!(&storage.slice, data => of_slice(data))
}

fn of_slice<T>(slice: &CudaSlice<T>) -> Allocation {
    // Its stream waits for whatever other stream writes to it.
    let (pointer, _use) = slice.device_ptr(slice.stream());
    Allocation {
        pointer,
        elements: slice.len(),
        bytes: slice.len() * size_of::<T>(),
    }
}

/// Begins to copy the elements of a contiguous tensor to the host.
#[allow(unsafe_code)]
pub(super) fn download(
    tensor: &Tensor,
    pinned: &PinnedPool,
) -> Option<Result<Download, CudaError>> {
    let stream = stream_of(tensor.device().as_cuda_device().ok()?);
    let size = tensor.dtype().size_in_bytes();
    let bytes = tensor.elem_count() * size;
    with_allocation(tensor, |allocation, layout| {
        let from = allocation.pointer + (layout.start_offset() * size) as u64;
        // SAFETY: the elements are there, and are not given back before the copy: that is in the order of the stream.
        unsafe { pinned.download(from, bytes, stream) }
    })
}

/// A tensor of these bytes, which have the length of its elements.
#[allow(unsafe_code)]
pub(super) fn upload(
    bytes: &[u8],
    dtype: DType,
    shape: Shape,
    (device, pinned): (&CudaDevice, &PinnedPool),
    is_leaf: bool,
) -> Result<Tensor, String> {
    let text = |error: candle_core::Error| error.to_string();
    // SAFETY: all of it is written before anything reads it, in the order of the stream.
    let storage = unsafe { device.alloc_uninit(&shape, dtype) }.map_err(text)?;
    let allocation = allocation(&storage);
    if allocation.bytes != bytes.len() {
        return Err(format!(
            "{} bytes for a tensor of {}",
            bytes.len(),
            allocation.bytes
        ));
    }
    // SAFETY: so many bytes are there, and nobody else has them yet.
    let copied = unsafe { pinned.upload(bytes, allocation.pointer, stream_of(device)) };
    copied.map_err(|error| error.to_string())?;
    Ok(Tensor::from_storage(
        Storage::Cuda(storage),
        shape,
        BackpropOp::none(),
        is_leaf,
    ))
}

/// Whether tensors of this type can be made over memory that is there: their elements have whole bytes.
pub(super) fn has_whole_bytes(dtype: DType) -> bool {
    !matches!(
        dtype,
        DType::F6E2M3 | DType::F6E3M2 | DType::F4 | DType::F8E8M0
    )
}

/// Memory that a tensor is to be made over.
pub(super) enum Memory {
    /// Of another process.
    Imported(ImportedMemory),
    /// Of this one.
    Copied(DeviceMemory),
}

impl Memory {
    fn bytes(&self) -> u64 {
        match self {
            Self::Imported(memory) => memory.bytes(),
            Self::Copied(memory) => memory.bytes(),
        }
    }

    fn into_raw(self) -> (u64, Option<Held>) {
        match self {
            Self::Imported(memory) => {
                let (pointer, held) = memory.into_raw();
                (pointer, Some(held))
            }
            Self::Copied(memory) => (memory.into_raw(), None),
        }
    }
}

/// A tensor over memory, which has as many elements of that type. When the last tensor over it is dropped, the memory is
/// given back, and then the stream that is returned beside it is gone. What its owner keeps it by is to be dropped after that.
#[allow(unsafe_code)]
pub(super) fn over(
    memory: Memory,
    dtype: DType,
    shape: Shape,
    device: &CudaDevice,
    is_leaf: bool,
) -> Result<(Tensor, Weak<CudaStream>, Option<Held>), String> {
    let elements = shape.elem_count();
    let needed = (elements as u64).checked_mul(dtype.size_in_bytes() as u64);
    if needed.is_none_or(|needed| needed > memory.bytes()) {
        return Err(format!(
            "{elements} elements of {dtype:?} are not in {} bytes",
            memory.bytes()
        ));
    }
    let candles = device.cuda_stream();
    // SAFETY: candle's stream of this device, which the process keeps for good.
    let stream = unsafe { candles.context().wrap_borrowed_stream(candles.cu_stream()) };
    macro_rules! wrapped {
        ($($name:ident: $type:ty),*) => {
            match dtype {
                $(DType::$name => {
                    let (pointer, held) = memory.into_raw();
                    // SAFETY: so many elements are there, as was seen above, and candle frees them as the driver wants it.
                    let slice = unsafe { stream.upgrade_device_ptr::<$type>(pointer, elements) };
                    (CudaStorageSlice::$name(slice), held)
                })*
                other => return Err(format!("tensors of {other:?} are not shared")),
            }
        };
    }
    let (slice, held) = wrapped!(
        U8: u8, U32: u32, I16: i16, I32: i32, I64: i64, BF16: half::bf16, F16: half::f16, F32: f32, F64: f64,
        F8E4M3: float8::F8E4M3
    );
    let watched = Arc::downgrade(&stream);
    let storage = Storage::Cuda(CudaStorage {
        slice,
        device: device.clone(),
    });
    let tensor = Tensor::from_storage(storage, shape, BackpropOp::none(), is_leaf);
    Ok((tensor, watched, held))
}

/// cudarc need not note which stream used what last, which takes longer than many an operation.
#[allow(unsafe_code)]
pub(super) fn without_event_tracking(device: &CudaDevice) {
    // SAFETY: there is one stream, and it was made with the device: whatever is done is done in its order (CT-6).
    unsafe { device.disable_event_tracking() };
}

/// What `source` is given from now on waits for what `other` was given so far: a copy between two devices is done by the one that it goes
/// to, and the memory that it reads is given back by the one that it comes from.
pub(super) fn wait_for_other(source: &Tensor, other: &CudaDevice) -> Result<(), String> {
    let source = source.device().as_cuda_device();
    let source = source.map_err(|error| error.to_string())?.cuda_stream();
    let waits = source.join(&other.cuda_stream());
    waits.map_err(|error| error.to_string())
}

/// The stream that candle works on.
#[allow(unsafe_code)]
pub(super) fn stream_of(device: &CudaDevice) -> StreamHandle {
    let stream = device.cuda_stream().cu_stream();
    // SAFETY: candle's stream of this device, which is never closed: the device is kept by the process.
    unsafe { StreamHandle::from_raw(stream.addr() as u64) }
}
