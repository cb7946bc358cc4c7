//! How long it takes: `cuda times`, to be compared with another system on the same machine.

use std::time::{Duration, Instant};

use anyhow::Result;
use farref_autograd::{Tensor, cuda};

use crate::group::{Processes, echo, filled};

/// Takes a tensor, and says nothing of it.
#[farref::remote]
async fn take(_: Tensor) {}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Prints medians, for the same tensor again and again and for a new one each time.
pub(crate) async fn measure() -> Result<()> {
    let group = Processes::start(2).await?;
    let peer = group.peer(1)?;
    let gpu = cuda::device(0)?;
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
    group.finish().await
}
