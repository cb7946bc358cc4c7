//! How long it takes, to be compared with another system on the same machine.
//!
//! - `cuda times`: calls with tensors that are shared. `--shared-from BYTES` shares smaller ones, too, or fewer.
//! - `cuda times --copied`: calls with tensors that are copied although they could be shared, as those are that go to another host or
//!   GPU; beside them the same bytes as a blob, and the copy between device and page-locked memory alone.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use farref::{Blob, Peer};
use farref_autograd::{Tensor, cuda};
use farref_cuda::{Cuda, PinnedOptions, PinnedPool, StreamHandle};

use crate::common::processes::{Wire, in_runtime};
use crate::group::{Setup, echo, filled, finish, start_with};

pub(crate) fn measure(arguments: &[String]) -> Result<()> {
    let mut arguments = arguments.iter().map(String::as_str);
    let mut setup = Setup::USUAL;
    match arguments.next() {
        None => {}
        Some("--shared-from") => {
            setup.shared_from = arguments.next().context("--shared-from BYTES")?.parse()?;
        }
        Some("--copied") => return in_runtime(copied()),
        Some(other) => bail!("unknown: {other}"),
    }
    in_runtime(shared(setup))
}

/// Takes a tensor, and says nothing of it.
#[farref::remote]
async fn take(_: Tensor) {}

/// The same, when it is there.
#[farref::remote]
fn arrive(tensor: Tensor) -> Result<(), farref_autograd::Error> {
    Ok(tensor.device().synchronize()?)
}

#[farref::remote]
async fn take_blob(_: Blob) {}

#[farref::remote]
async fn echo_blob(blob: Blob) -> Blob {
    blob
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Prints medians, for the same tensor again and again and for a new one each time.
async fn shared(setup: Setup) -> Result<()> {
    let group = start_with(2, setup, setup).await?;
    let peer = group.peer(1)?;
    let gpu = cuda::device(0)?;
    println!("shared from {} bytes on", setup.shared_from);
    for bytes in [1024, 1 << 20, 64 << 20, 1 << 30] {
        for is_new in [false, true] {
            let same = filled(1.0, bytes / 4)?;
            for is_echo in [false, true] {
                let mut times = Vec::new();
                for _ in 0..33 {
                    let tensor = match is_new {
                        true => filled(1.0, bytes / 4)?,
                        false => same.clone(),
                    };
                    gpu.synchronize()?;
                    let began = Instant::now();
                    match is_echo {
                        true => drop(echo::on(&peer, tensor).await?),
                        false => take::on(&peer, tensor).await?,
                    }
                    gpu.synchronize()?;
                    times.push(began.elapsed());
                }
                let what = if is_echo { "echo" } else { "take" };
                let which = if is_new {
                    "a new one each time"
                } else {
                    "the same one"
                };
                println!(
                    "{what} {bytes} bytes, {which}: {:?}",
                    median(times.split_off(3))
                );
            }
        }
    }
    back_to_back(&peer).await?;
    small_ones_at_once(&peer).await?;
    finish(group).await
}

/// The same tensor in call after call, without a look at the GPU in between: what is queued there is not to pile up.
async fn back_to_back(peer: &Peer) -> Result<()> {
    let tensor = filled(1.0, 1 << 18)?;
    let mut times = Vec::new();
    for _ in 0..3000 {
        let began = Instant::now();
        take::on(peer, tensor.clone()).await?;
        times.push(began.elapsed());
    }
    println!(
        "take {} bytes, the same one, back to back: {:?}, after 2000 calls {:?}",
        4 << 18,
        median(times[3..1000].to_vec()),
        median(times[2000..].to_vec())
    );
    Ok(())
}

/// Many small tensors that are on their way at the same time.
async fn small_ones_at_once(peer: &Peer) -> Result<()> {
    const CALLS: u32 = 512;
    for is_echo in [false, true] {
        let mut times = Vec::new();
        for _ in 0..9 {
            let tensors: Vec<Tensor> = (0..CALLS)
                .map(|number| filled(number as f32, 256))
                .collect::<Result<_>>()?;
            let began = Instant::now();
            if is_echo {
                let calls: Vec<_> = tensors
                    .into_iter()
                    .map(|x| echo::on(peer, x).start())
                    .collect();
                for call in calls {
                    call.await?;
                }
            } else {
                let calls: Vec<_> = tensors
                    .into_iter()
                    .map(|x| take::on(peer, x).start())
                    .collect();
                for call in calls {
                    call.await?;
                }
            }
            times.push(began.elapsed() / CALLS);
        }
        let what = if is_echo { "echo" } else { "take" };
        println!(
            "{what} 1024 bytes, {CALLS} at once, each: {:?}",
            median(times)
        );
    }
    Ok(())
}

/// GB/s.
fn rate(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

/// Prints rates: of tensors, of blobs, and of copies alone.
async fn copied() -> Result<()> {
    let nothing = Setup {
        exported: 0,
        ..Setup::USUAL
    };
    for bytes in [1 << 20, 64 << 20, 256 << 20] {
        let (down, up) = pinned_rates(bytes)?;
        println!("copy {bytes} bytes, page-locked: down {down:.1} GB/s, up {up:.1} GB/s");
    }
    for wire in [Wire::Usual, Wire::Unix, Wire::Tcp] {
        let setup = Setup { wire, ..nothing };
        let group = start_with(2, setup, setup).await?;
        let peer = group.peer(1)?;
        for (bytes, rounds) in [(1 << 20, 60), (64 << 20, 20), (256 << 20, 10)] {
            copied_rates(&peer, wire, bytes, rounds).await?;
        }
        finish(group).await?;
    }
    Ok(())
}

async fn copied_rates(peer: &Peer, wire: Wire, bytes: usize, rounds: u32) -> Result<()> {
    let gpu = cuda::device(0)?;
    let (down, up) = pinned_rates(bytes)?;
    let blob = Blob::from(vec![7_u8; bytes]);
    for is_echo in [false, true] {
        let [mut tensors, mut blobs] = [Vec::new(), Vec::new()];
        let tensor = filled(1.0, bytes / 4)?;
        for _ in 0..rounds {
            gpu.synchronize()?;
            let began = Instant::now();
            match is_echo {
                true => drop(echo::on(peer, tensor.clone()).await?),
                false => arrive::on(peer, tensor.clone()).await?,
            }
            gpu.synchronize()?;
            tensors.push(began.elapsed());
            let began = Instant::now();
            match is_echo {
                true => drop(echo_blob::on(peer, blob.clone()).await?),
                false => take_blob::on(peer, blob.clone()).await?,
            }
            blobs.push(began.elapsed());
        }
        let moved = if is_echo { 2 * bytes } else { bytes };
        let [tensors, blobs] = [tensors, blobs].map(|mut times| {
            // What is made and locked once.
            rate(moved, median(times.split_off(3)))
        });
        let what = if is_echo { "echo" } else { "take" };
        println!(
            "{what} {bytes} bytes, {wire:?}: tensor {tensors:.2} GB/s, blob {blobs:.2} GB/s, ratio {:.2}",
            tensors / blobs.min(down).min(up)
        );
    }
    Ok(())
}

/// How quickly page-locked memory and the device's are copied to each other, down and up, in GB/s.
#[allow(unsafe_code)]
fn pinned_rates(bytes: usize) -> Result<(f64, f64)> {
    let cuda = Cuda::open()?;
    let pool = PinnedPool::new(&cuda, 0, PinnedOptions::default())?;
    let memory = cuda.allocate(0, bytes as u64, StreamHandle::DEFAULT)?;
    let [mut down, mut up] = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        let began = Instant::now();
        // SAFETY: the memory is there until all is done, and nobody else has it.
        let download = unsafe { pool.download(memory.pointer(), bytes, StreamHandle::DEFAULT)? };
        download.wait_all()?;
        down.push(began.elapsed());
        drop(download);
        let mut buffer = pool.take(bytes)?;
        buffer.fill(3);
        let began = Instant::now();
        // SAFETY: the same.
        unsafe { buffer.upload(memory.pointer(), StreamHandle::DEFAULT)? };
        cuda.synchronize(0, StreamHandle::DEFAULT)?;
        up.push(began.elapsed());
    }
    let [down, up] = [down, up].map(|mut times| rate(bytes, median(times.split_off(2))));
    Ok((down, up))
}
