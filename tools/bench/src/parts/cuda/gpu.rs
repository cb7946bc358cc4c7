//! The GPU that is measured on.

use std::sync::Once;

use anyhow::Result;
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::{Tensor, cuda};

/// How many of the largest tensors there is room for without taking more of the GPU: one that is new each time is made while
/// those before it are still being given back.
pub(super) const AT_ONCE: u64 = 6;

/// The GPU, and tensors on it.
pub(super) struct Gpu(Device);

impl Gpu {
    /// The first time with room for tensors of so many bytes.
    pub(super) fn open(largest: usize) -> Result<Self> {
        static OPTIONS: Once = Once::new();
        let mut set = Ok(());
        OPTIONS.call_once(|| {
            let room = AT_ONCE * largest as u64;
            set = cuda::Options::new().reserve(room).set();
        });
        set?;
        Ok(Self(cuda::device(0)?))
    }

    pub(super) fn ones(&self, bytes: usize) -> Result<Tensor> {
        let numbers = candle::Tensor::ones(bytes / 4, DType::F32, &self.0)?;
        Ok(numbers.into())
    }

    pub(super) fn device(&self) -> &Device {
        &self.0
    }

    /// Waits until it has done what it was given.
    pub(super) fn wait(&self) -> Result<()> {
        Ok(self.0.synchronize()?)
    }
}
