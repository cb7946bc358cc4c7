//! The GPU that is measured on, and the order of it all.

use std::sync::Once;

use anyhow::{Context as _, Result};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::{Tensor, cuda};

use super::{copied, shared, torch};
use crate::bench::form::quantity;
use crate::bench::plan::Plan;
use crate::bench::report::Recorder;
use crate::bench::transport::Transport;

/// How many of the largest tensors there is room for without taking more of the GPU: one that is new each time is made while
/// those before it are still being given back.
const AT_ONCE: u64 = 6;

/// The GPU, and tensors on it.
pub(super) struct Gpu(Device);

impl Gpu {
    /// The first time with room for tensors of so many bytes.
    fn open(largest: usize) -> Result<Self> {
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

pub(in super::super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let (mut sizes, mut copies) = plan.gpu_sizes();
    // Less than that is for this process and the other one, and for PyTorch's two.
    let free = farref_cuda::Cuda::open()?.memory(0)?.free;
    let most = usize::try_from(free / (4 * AT_ONCE))?;
    for sizes in [&mut sizes, &mut copies] {
        for bytes in sizes.extract_if(.., |bytes| *bytes > most) {
            let bytes = quantity(bytes);
            recorder.note(&format!(
                "tensors of {bytes} are left out: the GPU has too little free memory"
            ));
        }
    }
    let largest = sizes.iter().chain(&copies).max();
    let largest = *largest.context("the GPU has too little free memory")?;

    // Before this process has anything on the GPU.
    let theirs = match &plan.python {
        Some(python) => {
            recorder.say("PyTorch");
            torch::tensors(python, &sizes, plan, recorder).await
        }
        None => Ok(&[][..]),
    };
    let beside = theirs.as_ref().copied().unwrap_or_default();
    let gpu = Gpu::open(largest)?;
    shared::measure(&gpu, transport, &sizes, plan, beside, recorder).await?;
    copied::measure(&gpu, transport, &copies, plan, recorder).await?;
    // Whoever names a Python wants it measured.
    theirs.map(drop).context("PyTorch was not measured")
}
