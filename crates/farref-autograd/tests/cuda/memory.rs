//! Memory: who keeps it, and that it is given back.

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, RRef};
use farref_autograd::{Tensor, cuda};
use farref_cuda::Cuda;
use farref_testkit::{eventually, eventually_async};

use crate::common::Failed;
use crate::group::{Setup, counting, filled, finish, start, start_with, sum, usage};

const GIB: usize = 1 << 30;

fn free() -> Result<u64> {
    Ok(Cuda::open()?.memory(0)?.free)
}

/// Keeps a tensor that it is given.
#[farref::remote]
fn keep(tensor: Tensor) -> Tensor {
    tensor
}

pub(crate) async fn shared_tensors_take_no_memory_of_the_receiver() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let quarter = GIB / 4;
    let tensors: Vec<Tensor> = (0..6)
        .map(|number| filled(number as f32, quarter / 4))
        .collect::<Result<_>>()?;
    let first = keep::on(&peer, counting(0.0, 1 << 20)?).remote();
    first.confirmed().await?;
    let before = free()?;
    let mut kept = Vec::new();
    for tensor in &tensors {
        let there = keep::on(&peer, tensor.clone()).remote();
        there.confirmed().await?;
        kept.push(there);
    }
    eventually_async("all are there", async || Ok(usage::on(&peer).await?.1 >= 7)).await?;
    ensure!(cuda::usage().exported == (6 * quarter + (4 << 20)) as u64);
    ensure!(
        before - free()? < quarter as u64,
        "{before}, then {}",
        free()?
    );
    drop((first, kept, tensors));
    finish(group).await
}

pub(crate) async fn ct1_memory_is_kept_until_its_last_user_has_let_go() -> Result<()> {
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let kept = keep::on(&peer, counting(1.0, 1 << 20)?).remote();
    kept.confirmed().await?;
    // This process has dropped it, and allocates where it was.
    ensure!(cuda::usage().exported == 4 << 20);
    let others: Vec<Tensor> = (0..50)
        .map(|_| counting(7.0, 1 << 20))
        .collect::<Result<_>>()?;
    let (_, all) = sum::on(&peer, kept.to_here().await?).await?;
    let elements = (1 << 20) as f64;
    ensure!(all == elements + elements * (elements - 1.0) / 2.0, "{all}");
    drop((kept, others));
    finish(group).await
}

pub(crate) async fn ct1_what_a_killed_peer_used_is_released() -> Result<()> {
    let mut group = start(3).await?;
    let kept = keep::on(&group.peer(1)?, counting(0.0, 1 << 20)?).remote();
    kept.confirmed().await?;
    ensure!(cuda::usage().exported == 4 << 20);
    group.kill(1)?;
    eventually("its memory is released", || cuda::usage().exported == 0).await?;
    drop(kept);
    finish(group).await
}

/// Makes a tensor, and is never asked again.
#[farref::remote]
fn make(first: f32) -> Result<Tensor, Failed> {
    Ok(counting(first, 1 << 20)?)
}

pub(crate) async fn a_peer_goes_on_with_memory_whose_owner_was_killed() -> Result<()> {
    let mut group = start(3).await?;
    let tensor = make::on(&group.peer(1)?, 3.0).await?;
    ensure!(cuda::usage().imported == 1);
    // CT-7: it is seen that its owner has finished it, soon after this has been able to read it.
    let first: f32 = tensor.get(0)?.to_scalar()?;
    ensure!(first == 3.0);
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let gone = group.peer(1)?.gone();
    group.kill(1)?;
    gone.await?;
    let elements = (1 << 20) as f64;
    let expected = 3.0 * elements + elements * (elements - 1.0) / 2.0;
    for _ in 0..10 {
        let all: f64 = tensor
            .to_dtype(farref_autograd::candle::DType::F64)?
            .sum_all()?
            .to_scalar()?;
        ensure!(all == expected, "{all}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // Nobody keeps it for a third one, which gets a copy.
    let (_, all) = sum::on(&group.peer(2)?, tensor.clone()).await?;
    ensure!(all == expected, "{all}");
    ensure!(usage::on(&group.peer(2)?).await? == (0, 0));
    drop(tensor);
    finish(group).await
}

/// Has another worker keep a tensor of this one's caller.
#[farref::remote]
async fn hand_on(tensor: Tensor, to: Peer) -> farref::Result<RRef<Tensor>> {
    let kept = keep::on(&to, tensor).remote();
    kept.confirmed().await?;
    Ok(kept)
}

pub(crate) async fn what_is_handed_on_outlives_who_handed_it_on() -> Result<()> {
    let mut group = start(3).await?;
    let last = group.peer(2)?;
    let kept = hand_on::on(&group.peer(1)?, counting(2.0, 1 << 20)?, last.clone()).await?;
    kept.confirmed().await?;
    ensure!(
        usage::on(&last).await? == (0, 1),
        "handed on without a copy"
    );
    let gone = group.peer(1)?.gone();
    group.kill(1)?;
    gone.await?;
    let elements = (1 << 20) as f64;
    let back = kept.to_here().await?;
    let all: f64 = back
        .to_dtype(farref_autograd::candle::DType::F64)?
        .sum_all()?
        .to_scalar()?;
    ensure!(
        all == 2.0 * elements + elements * (elements - 1.0) / 2.0,
        "{all}"
    );
    ensure!(cuda::usage().exported == 4 << 20);
    drop((kept, back));
    finish(group).await
}

pub(crate) async fn ct3_beyond_the_limit_tensors_are_copied() -> Result<()> {
    // The child exports no more than three of these at a time.
    let small = Setup {
        exported: 12 << 20,
        ..Setup::USUAL
    };
    let group = start_with(2, Setup::USUAL, small).await?;
    let peer = group.peer(1)?;
    let mut tensors = Vec::new();
    for number in 0..10 {
        tensors.push(make::on(&peer, number as f32).await?);
    }
    ensure!(cuda::usage().imported == 3, "{:?}", cuda::usage());
    for (number, tensor) in tensors.iter().enumerate() {
        let first: f32 = tensor.get(0)?.to_scalar()?;
        ensure!(tensor.device().is_cuda() && first == number as f32);
    }
    drop(tensors);
    finish(group).await
}

/// Makes one that is long enough for several threads to copy it.
#[farref::remote]
fn make_large(first: f32) -> Result<Tensor, Failed> {
    Ok(counting(first, LARGE)?)
}

const LARGE: usize = 7 << 20;

pub(crate) async fn large_tensors_that_are_copied_arrive_whole() -> Result<()> {
    // The child exports nothing.
    let nothing = Setup {
        exported: 0,
        ..Setup::USUAL
    };
    let group = start_with(2, Setup::USUAL, nothing).await?;
    let peer = group.peer(1)?;
    let elements = LARGE as f64;
    for round in 0..20 {
        let tensor = make_large::on(&peer, round as f32).await?;
        let all: f64 = tensor
            .to_dtype(farref_autograd::candle::DType::F64)?
            .sum_all()?
            .to_scalar()?;
        let expected = f64::from(round) * elements + elements * (elements - 1.0) / 2.0;
        ensure!(all == expected, "round {round}: {all}, not {expected}");
        ensure!(cuda::usage().imported == 0, "it was copied");
    }
    finish(group).await
}

/// A model of many tensors that is sent again and again: each is mapped once, and what is kept at hand for the next time is given back
/// before the group, which ends at once, looks for references that are still held.
pub(crate) async fn a_group_ends_well_right_after_many_tensors_came_again_and_again() -> Result<()>
{
    let group = start(2).await?;
    let peer = group.peer(1)?;
    let tensors: Vec<Tensor> = (0..100)
        .map(|number| filled(number as f32, 256))
        .collect::<Result<_>>()?;
    for _ in 0..3 {
        let all = sum_of_all::on(&peer, tensors.clone()).await?;
        ensure!(all == f64::from(99 * 100 / 2 * 256), "{all}");
    }
    ensure!(usage::on(&peer).await?.1 >= 100, "they are kept at hand");
    drop(tensors);
    group.shutdown().await
}

#[farref::remote]
fn sum_of_all(tensors: Vec<Tensor>) -> Result<f64, farref_autograd::Error> {
    let mut all = 0.0;
    for tensor in tensors {
        all += f64::from(tensor.sum_all()?.to_scalar::<f32>()?);
    }
    Ok(all)
}

pub(crate) async fn a_thousand_rounds_leave_no_memory_behind() -> Result<()> {
    let group = start(3).await?;
    let (first, last) = (group.peer(1)?, group.peer(2)?);
    let mut before = 0;
    for round in 0..1100 {
        // What is taken once, by whoever, is taken by now.
        if round == 100 {
            eventually("nothing is shared", || cuda::usage().exported == 0).await?;
            before = free()?;
        }
        let kept = hand_on::on(&first, counting(round as f32, 1 << 20)?, last.clone()).await?;
        let (_, all) = sum::on(&last, kept.to_here().await?).await?;
        let elements = (1 << 20) as f64;
        let expected = round as f64 * elements + elements * (elements - 1.0) / 2.0;
        ensure!(
            (all - expected).abs() <= expected * 1e-9,
            "round {round}: {all}"
        );
    }
    eventually("nothing is shared", || cuda::usage().exported == 0).await?;
    let after = free().context("how much is free")?;
    println!("free before {before}, after a thousand rounds {after}");
    ensure!(after >= before, "{before} bytes were free, and {after} are");
    finish(group).await
}
