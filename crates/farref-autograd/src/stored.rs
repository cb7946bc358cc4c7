//! The storage of a tensor on the CPU, as the wire sees it.

use std::ops::Range;

use candle_core::{CpuStorage, Device, Storage};
use farref::{Source, Width};

/// The storage of a contiguous tensor, as the wire sees it: locked for the length of one write.
pub(crate) struct Stored {
    tensor: candle_core::Tensor,
    width: Width,
    /// Where its bytes are in the storage.
    start: usize,
    len: usize,
    /// And in memory.
    address: Option<usize>,
}

impl Stored {
    pub(crate) fn new(tensor: &candle_core::Tensor) -> candle_core::Result<Self> {
        // Without its graph, which would otherwise live until the bytes have been sent.
        let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?.detach();
        let size = tensor.dtype().size_in_bytes();
        let (start, len, address) = {
            let (storage, layout) = tensor.storage_and_layout();
            let (start, len) = match size {
                // Raw bytes of a type that candle only stores.
                0 => (0, with_bytes(&storage, <[u8]>::len)),
                size => (layout.start_offset() * size, tensor.elem_count() * size),
            };
            let address = with_bytes(&storage, |bytes| {
                bytes.get(start..).map(|bytes| bytes.as_ptr().addr())
            });
            (start, len, address)
        };
        let width = match size {
            8 => Width::Eight,
            4 => Width::Four,
            2 => Width::Two,
            _ => Width::One,
        };
        Ok(Self {
            tensor,
            width,
            start,
            len,
            address,
        })
    }
}

impl Source for Stored {
    fn len(&self) -> usize {
        self.len
    }

    fn width(&self) -> Width {
        self.width
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        let (storage, _) = self.tensor.storage_and_layout();
        let range = self.start + range.start..self.start + range.end;
        with_bytes(&storage, |bytes| look(bytes.get(range).unwrap_or_default()));
    }

    /// candle's own operations in place write where the elements are; the storage that they are in is kept here. Only an
    /// [`InplaceOp`](candle_core::InplaceOp1) of the program's could put another vector there.
    fn address(&self) -> Option<usize> {
        self.address
    }
}

/// Shows the bytes of a storage on the CPU; those of another are not there.
fn with_bytes<T>(storage: &Storage, look: impl FnOnce(&[u8]) -> T) -> T {
    use bytemuck::cast_slice;

    let Storage::Cpu(storage) = storage else {
        return look(&[]);
    };
    match storage {
        CpuStorage::U8(data)
        | CpuStorage::F6E2M3(data)
        | CpuStorage::F6E3M2(data)
        | CpuStorage::F4(data)
        | CpuStorage::F8E8M0(data) => look(data),
        CpuStorage::U32(data) => look(cast_slice(data)),
        CpuStorage::I16(data) => look(cast_slice(data)),
        CpuStorage::I32(data) => look(cast_slice(data)),
        CpuStorage::I64(data) => look(cast_slice(data)),
        CpuStorage::BF16(data) => look(cast_slice(data)),
        CpuStorage::F16(data) => look(cast_slice(data)),
        CpuStorage::F32(data) => look(cast_slice(data)),
        CpuStorage::F64(data) => look(cast_slice(data)),
        CpuStorage::F8E4M3(data) => look(cast_slice(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_says_where_its_elements_are() {
        let whole = candle_core::Tensor::arange(0f32, 60.0, &Device::Cpu).expect("a tensor");
        let part = whole.narrow(0, 7, 20).expect("a part");
        let scattered = whole
            .reshape((6, 10))
            .and_then(|it| it.t())
            .expect("a view");
        for tensor in [whole, part, scattered] {
            let stored = Stored::new(&tensor).expect("it can be sent");
            let mut at = None;
            stored.look(0..stored.len(), &mut |bytes| {
                at = Some(bytes.as_ptr().addr())
            });
            assert!(at.is_some());
            assert_eq!(stored.address(), at);
            // And they stay there, whoever else has the tensor or has not.
            drop(tensor);
            let mut later = None;
            stored.look(0..stored.len(), &mut |bytes| {
                later = Some(bytes.as_ptr().addr())
            });
            assert_eq!(later, at);
        }
    }
}
