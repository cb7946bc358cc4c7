//! Tensors that another process takes, or sends back, on the GPU that both use.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farref::Peer;
use farref_autograd::cuda;

use super::figures::{Theirs, Which, shared};
use super::gpu::Gpu;
use crate::form::{Direction, quantity};
use crate::functions::{done, nothing, return_tensor, take_tensor};
use crate::group::Group;
use crate::plan::Plan;
use crate::report::{Measurement, Recorder};
use crate::samples::{Stopwatch, Times, repeat};
use crate::transport::Transport;

/// What comes first compiles kernels and maps memory.
const WARM_UP: usize = 5;

pub(super) async fn measure(
    gpu: &Gpu,
    transport: Transport,
    sizes: &[usize],
    plan: &Plan,
    theirs: &[Theirs],
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let group = Group::start(transport, 2).await?;
    let peer = &group.peers[0];
    recorder.say("meeting");
    if cuda::meet(&group.me, peer).await? != cuda::Path::Shared {
        recorder
            .note("this GPU's memory cannot be shared between processes: all tensors are copied");
    }
    recorder.say("an empty call");
    let empty = repeat(plan.time, || done(nothing::on(peer))).await?;
    recorder.add(Measurement::times("empty_call", empty));
    for &bytes in sizes {
        for direction in Direction::ALL {
            for which in Which::ALL {
                let (size, way) = (quantity(bytes), direction.name());
                recorder.say(&format!("{size} {way}, {}", which.name()));
                let times = sent(gpu, peer, bytes, direction, which, plan).await?;
                recorder.add(shared(which, bytes, direction, times, empty.p50, theirs));
            }
        }
    }
    group.end().await
}

async fn sent(
    gpu: &Gpu,
    peer: &Peer,
    bytes: usize,
    direction: Direction,
    which: Which,
    plan: &Plan,
) -> Result<Times> {
    let same = gpu.ones(bytes)?;
    let once = async || -> Result<Duration> {
        let tensor = match which {
            Which::Same => same.clone(),
            Which::New => gpu.ones(bytes)?,
        };
        gpu.wait()?;
        let began = Instant::now();
        let (came, back) = match direction {
            Direction::OneWay => (take_tensor::on(peer, tensor).await?, None),
            Direction::Echo => {
                let back = return_tensor::on(peer, tensor).await?;
                (4 * back.elem_count(), Some(back))
            }
        };
        gpu.wait()?;
        let elapsed = began.elapsed();
        ensure!(came == bytes, "{bytes} bytes were sent, and {came} came");
        if let Some(back) = back {
            ensure!(back.device().is_cuda(), "a tensor came back to the CPU");
        }
        Ok(elapsed)
    };
    for _ in 0..WARM_UP {
        once().await?;
    }
    let mut watch = Stopwatch::start(plan.time, 10);
    while watch.goes_on() {
        watch.record(once().await?);
    }
    Ok(watch.finish())
}
