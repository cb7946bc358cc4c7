//! Tensors that are copied from one process to the other, as they are where memory cannot be shared: out of the device into
//! page-locked memory, through the socket, and up again. The other process shares nothing, and is asked for a tensor that it has.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farref::WorkerBuilder;
use farref_autograd::candle::{self, DType};
use farref_autograd::{Error, Tensor, cuda};
use farref_cuda::{Cuda, PinnedOptions, PinnedPool};

use super::figures::{Steps, copied};
use super::gpu::Gpu;
use crate::bare::Bulk;
use crate::form::quantity;
use crate::group::Group;
use crate::plan::Plan;
use crate::report::{Measurement, Recorder};
use crate::role::Role;
use crate::samples::{Stopwatch, Times};
use crate::transport::Transport;

/// What comes first locks memory.
const WARM_UP: usize = 3;
/// How much memory this process keeps to receive tensors into.
const KEPT: usize = 512 << 20;
/// How often at least.
const LEAST: usize = 10;

/// A tensor on the GPU of the worker that is asked.
#[farref::remote]
fn ones_there(elements: usize) -> Result<Tensor, Error> {
    let numbers = candle::Tensor::ones(elements, DType::F32, &cuda::device(0)?)?;
    Ok(numbers.into())
}

pub(super) async fn measure(
    gpu: &Gpu,
    transport: Transport,
    sizes: &[usize],
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let mut limits = Vec::new();
    let mut bulk = Bulk::start(transport.socket()).await?;
    for &bytes in sizes {
        recorder.say(&format!("page-locked copies of {}", quantity(bytes)));
        let rate = |times: Times| times.gigabytes_per_second(bytes);
        let [down, up] = page_locked(gpu, bytes, plan)?;
        recorder.say(&format!("{} through a bare socket", quantity(bytes)));
        let socket = bulk.messages(bytes, false, plan.time, LEAST)?;
        for (name, times) in [
            ("locked_download", down),
            ("locked_upload", up),
            ("bare_message", socket),
        ] {
            recorder.add(Measurement::speed(name, rate(times), times).bytes(bytes));
        }
        let steps = Steps {
            download: rate(down),
            socket: rate(socket),
            upload: rate(up),
        };
        limits.push((bytes, steps));
    }
    drop(bulk);

    // Whoever gets large tensors again and again says so: fresh memory for each costs more than the copies.
    let keeps = |worker: WorkerBuilder| worker.kept_receive_buffers(KEPT);
    let group = Group::start_with(transport, 2, Role::CopyingWorker, keeps).await?;
    let peer = &group.peers[0];
    // Otherwise they would do so while the first tensors are measured.
    cuda::meet(&group.me, peer).await?;
    for (bytes, steps) in limits {
        recorder.say(&format!("{} copied", quantity(bytes)));
        let there = ones_there::on(peer, bytes / 4).remote();
        there.confirmed().await?;
        let once = async || -> Result<Duration> {
            gpu.wait()?;
            let began = Instant::now();
            let tensor = there.to_here().await?;
            gpu.wait()?;
            let elapsed = began.elapsed();
            ensure!(4 * tensor.elem_count() == bytes && tensor.device().is_cuda());
            ensure!(
                cuda::usage().imported == 0,
                "a tensor was shared that was to be copied"
            );
            Ok(elapsed)
        };
        for _ in 0..WARM_UP {
            once().await?;
        }
        let mut watch = Stopwatch::start(plan.time, LEAST);
        while watch.goes_on() {
            watch.record(once().await?);
        }
        recorder.add(copied(bytes, watch.finish(), steps));
        drop(there);
    }
    group.end().await
}

/// Copies between the device and page-locked memory, down and up, with nothing else beside.
fn page_locked(gpu: &Gpu, bytes: usize, plan: &Plan) -> Result<[Times; 2]> {
    let options = PinnedOptions {
        limit: 2 * bytes as u64,
        ..PinnedOptions::default()
    };
    let pool = PinnedPool::new(&Cuda::open()?, 0, options)?;
    let mut locked = pool.take(bytes)?;
    let device = gpu.device().as_cuda_device()?;
    let stream = device.cuda_stream();
    let mut there = device.alloc_zeros::<u8>(bytes)?;
    let timed = |copy: &mut dyn FnMut() -> Result<()>| -> Result<Times> {
        let mut once = || -> Result<Duration> {
            let began = Instant::now();
            copy()?;
            // The memory is in use until then.
            gpu.wait()?;
            Ok(began.elapsed())
        };
        for _ in 0..WARM_UP {
            once()?;
        }
        let mut watch = Stopwatch::start(plan.time, LEAST);
        while watch.goes_on() {
            watch.record(once()?);
        }
        Ok(watch.finish())
    };
    let down = timed(&mut || Ok(stream.memcpy_dtoh(&there, &mut locked[..])?))?;
    let up = timed(&mut || Ok(stream.memcpy_htod(&locked[..], &mut there)?))?;
    Ok([down, up])
}
