//! How long it takes, to be compared with another system on the same machine.
//!
//! - `cuda times`: calls with tensors that are shared. `--shared-from BYTES` shares smaller ones, too, or fewer.
//! - `cuda times --copied`: calls with tensors that are copied although they could be shared ([`copied`](crate::copied_times)).

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use farref::Peer;
use farref_autograd::{Tensor, cuda};

use crate::common::processes::in_runtime;
use crate::copied_times::copied;
use crate::group::{Setup, echo, filled, finish, start_with};

/// Room for all that is there at once: nothing is to be taken of the GPU meanwhile.
const RESERVE: u64 = 8 << 30;

pub(crate) fn measure(arguments: &[String]) -> Result<()> {
    let mut arguments = arguments.iter().map(String::as_str);
    let mut setup = Setup {
        reserve: RESERVE,
        ..Setup::USUAL
    };
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

pub(crate) fn median(mut times: Vec<Duration>) -> Duration {
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
