//! What is measured on a GPU, and in which order.

use anyhow::{Context as _, Result};

use super::gpu::{AT_ONCE, Gpu};
use super::{copied, shared, torch};
use crate::form::quantity;
use crate::plan::Plan;
use crate::report::Recorder;
use crate::transport::Transport;

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
