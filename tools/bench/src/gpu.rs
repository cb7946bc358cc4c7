//! Whether there is a GPU to measure on. It is asked before anything is measured.

/// An error that says what is missing, if it cannot be measured how tensors on a GPU travel.
#[cfg(feature = "cuda")]
pub(super) fn check() -> anyhow::Result<()> {
    use anyhow::{Context as _, ensure};

    let cuda = farref_cuda::Cuda::open();
    let count = cuda.and_then(|cuda| cuda.device_count());
    let count = count.context("tensors on a GPU cannot be measured here")?;
    ensure!(
        count > 0,
        "tensors on a GPU cannot be measured here: this process sees no CUDA device (does CUDA_VISIBLE_DEVICES hide it?)"
    );
    Ok(())
}

/// There is nothing to ask.
#[cfg(not(feature = "cuda"))]
pub(super) fn check() -> anyhow::Result<()> {
    anyhow::bail!(
        "this `farref-bench` was built without CUDA: \
         `cargo install --locked --path tools/bench --features cuda` has it, where there is CUDA's compiler, nvcc (docs/cuda.md)"
    )
}
