//! What becomes of memory, and of work, when somebody goes: out of the group, or for good.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, Worker};
use farref_autograd::candle::{self, DType};
use farref_autograd::{Tensor, cuda};
use farref_cuda::{Cuda, StreamHandle};
use farref_testkit::eventually;

use crate::common::Failed;
use crate::group::{filled, finish, start, sum};

/// Of a tensor in these tests.
const ELEMENTS: usize = 16 << 20;

/// Whether this process goes on when its worker has ended.
static STAYS: AtomicBool = AtomicBool::new(false);
/// What it has then.
static HAS: Mutex<Vec<Tensor>> = Mutex::new(Vec::new());

/// The worker of this process has ended. Most processes do then, too.
pub(crate) async fn when_the_worker_has_ended() {
    while STAYS.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn all_of(tensor: &candle::Tensor) -> Result<f64> {
    Ok(tensor.to_dtype(DType::F64)?.sum_all()?.to_scalar()?)
}

/// Takes a tensor, leaves the group, and from then on writes to the tensor again and again.
#[farref::remote]
fn leave_and_write(tensor: Tensor) -> Result<(), Failed> {
    let me = Worker::current().ok_or_else(|| anyhow::anyhow!("no worker"))?;
    STAYS.store(true, Ordering::Relaxed);
    let runtime = me.runtime().clone();
    runtime.spawn(async move {
        let _ = me.leave().await;
        let Ok(nines) = filled(9.0, ELEMENTS) else {
            return;
        };
        loop {
            let _ = tensor.slice_set(&nines, 0, 0);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    Ok(())
}

/// CT-1: the group has taken the reference away; the process goes on.
pub(crate) async fn ct1_memory_stays_as_long_as_a_process_uses_it_that_has_left() -> Result<()> {
    let mut group = start(2).await?;
    let gone = group.peer(1)?.gone();
    leave_and_write::on(&group.peer(1)?, filled(1.0, ELEMENTS)?).await?;
    gone.await?;
    // Where the tensor was, if it was given back.
    let zeros: Vec<Tensor> = (0..8)
        .map(|_| filled(0.0, ELEMENTS))
        .collect::<Result<_>>()?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for zeros in &zeros {
        ensure!(all_of(zeros)? == 0.0, "somebody else writes here");
    }
    ensure!(cuda::usage().exported == 4 * ELEMENTS as u64);
    group.kill(1)?;
    eventually("its memory is released", || cuda::usage().exported == 0).await?;
    drop(zeros);
    finish(group).await
}

/// Makes a tensor.
#[farref::remote]
fn make_one() -> Result<Tensor, Failed> {
    Ok(filled(3.0, ELEMENTS)?)
}

/// Leaves the group, and goes on computing.
#[farref::remote]
fn leave_and_compute() -> Result<(), Failed> {
    let me = Worker::current().ok_or_else(|| anyhow::anyhow!("no worker"))?;
    STAYS.store(true, Ordering::Relaxed);
    let runtime = me.runtime().clone();
    runtime.spawn(async move {
        let _ = me.leave().await;
        for number in 0..16 {
            let made = filled(number as f32, ELEMENTS);
            HAS.lock()
                .unwrap_or_else(|lock| lock.into_inner())
                .extend(made);
        }
    });
    Ok(())
}

/// CT-1: of an owner that has left, but goes on.
pub(crate) async fn ct1_memory_stays_as_it_is_when_its_owner_has_left() -> Result<()> {
    let mut group = start(2).await?;
    let tensor = make_one::on(&group.peer(1)?).await?;
    let gone = group.peer(1)?.gone();
    leave_and_compute::on(&group.peer(1)?).await?;
    gone.await?;
    for _ in 0..10 {
        ensure!(all_of(&tensor)? == 3.0 * ELEMENTS as f64);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    group.kill(1)?;
    drop(tensor);
    finish(group).await
}

/// A row of 4096 elements of this number, after milliseconds of work.
fn worked_for(number: f32) -> Result<candle::Tensor> {
    let large = candle::Tensor::ones((4096, 4096), DType::F32, &cuda::device(0)?)?;
    let mut product = large.clone();
    for _ in 0..8 {
        product = (product.matmul(&large)? * (1.0 / 4096.0))?;
    }
    Ok((product.get(0)? * f64::from(number))?.contiguous()?)
}

/// Changes a tensor in place, and does not wait for that.
#[farref::remote]
fn change(tensor: Tensor, number: f32) -> Result<Tensor, Failed> {
    let row = worked_for(number)?;
    let changed = tensor.slice_set(&row, 0, 0);
    changed.map_err(anyhow::Error::from)?;
    Ok(tensor)
}

/// The same, and hands it on.
#[farref::remote]
async fn change_and_hand_on(tensor: Tensor, number: f32, to: Peer) -> Result<f64, Failed> {
    let row = worked_for(number)?;
    let changed = tensor.slice_set(&row, 0, 0);
    changed.map_err(anyhow::Error::from)?;
    let summed = sum::on(&to, tensor).await;
    Ok(summed.map_err(anyhow::Error::from)?.1)
}

/// CT-7
pub(crate) async fn ct7_what_a_peer_has_changed_is_changed_when_it_comes_home_or_is_handed_on()
-> Result<()> {
    let group = start(3).await?;
    let (peer, third) = (group.peer(1)?, group.peer(2)?);
    let tensor = filled(0.0, 4096)?;
    for round in 1..20 {
        let number = round as f32;
        let expected = 4096.0 * f64::from(round);
        let all = match round % 2 {
            0 => all_of(&*change::on(&peer, tensor.clone(), number).await?)?,
            _ => change_and_hand_on::on(&peer, tensor.clone(), number, third.clone()).await?,
        };
        ensure!(all == expected, "round {round}: {all}, not {expected}");
        // It is the same memory.
        ensure!(all_of(&tensor)? == expected);
    }
    drop(tensor);
    finish(group).await
}

/// A tensor that will be there in seconds, the same for everybody.
#[farref::remote]
fn make_late() -> Result<Tensor, Failed> {
    let late = || -> Result<Tensor> {
        let mut has = HAS.lock().unwrap_or_else(|lock| lock.into_inner());
        if let Some(made) = has.first() {
            return Ok(made.clone());
        }
        let large = candle::Tensor::ones((8192, 8192), DType::F32, &cuda::device(0)?)?;
        let mut product = large.clone();
        for _ in 0..200 {
            product = (product.matmul(&large)? * (1.0 / 8192.0))?;
        }
        has.push(product.into());
        Ok(has[0].clone())
    };
    Ok(late()?)
}

/// Has a tensor made by another worker, begins to compute with it, and keeps it.
async fn begin_with(by: &Peer) -> Result<()> {
    // A kernel that is used for the first time is loaded, which waits for all that the device was given.
    all_of(&*filled(1.0, 1024)?)?;
    filled(1.0, 1024)?.sum_all()?;
    let began = Instant::now();
    let made = make_late::on(by).await?;
    ensure!(cuda::usage().imported == 1, "it is shared");
    let computed = made.sum_all()?;
    println!("in the middle of it after {:?}", began.elapsed());
    let mut has = HAS.lock().unwrap_or_else(|lock| lock.into_inner());
    has.extend([made, computed.into()]);
    Ok(())
}

/// After the worker that was to make it has died: the device works on, and what was not made is sent to nobody.
async fn go_on_without(to: &Peer) -> Result<()> {
    // On the stream that waited for the other one's work.
    ensure!(all_of(&*filled(1.0, 1024)?)? == 1024.0);
    let has = std::mem::take(&mut *HAS.lock().unwrap_or_else(|lock| lock.into_inner()));
    let made = has.first().context("it is not kept")?;
    let sent = sum::on(to, made.clone()).await;
    let said = sent.map_or_else(|error| error.to_string(), |_| "it was sent".to_owned());
    ensure!(said.contains("died before its work"), "{said:?}");
    drop(has);
    ensure!(sum::on(to, filled(2.0, 1024)?).await? == (true, 2048.0));
    Ok(())
}

#[farref::remote]
async fn begin_with_what_is_late(by: Peer) -> Result<(), Failed> {
    Ok(begin_with(&by).await?)
}

#[farref::remote]
async fn go_on_without_what_was_late(to: Peer) -> Result<(), Failed> {
    Ok(go_on_without(&to).await?)
}

/// CT-7: this process and another one are in the middle of it, and both go on, and end well.
pub(crate) async fn ct7_a_tensor_whose_owner_died_before_it_was_done_stops_nobody_and_is_not_sent_on()
-> Result<()> {
    let mut group = start(3).await?;
    let (owner, user) = (group.peer(1)?, group.peer(2)?);
    begin_with(&owner).await?;
    begin_with_what_is_late::on(&user, owner).await?;
    group.kill(1)?;
    let began = Instant::now();
    go_on_without(&user).await?;
    go_on_without_what_was_late::on(&user, group.me.me()).await?;
    println!("went on after {:?}", began.elapsed());
    finish(group).await
}

/// What is taken for the same memory because of its address would be another one.
pub(crate) async fn an_address_that_is_used_again_has_another_id() -> Result<()> {
    cuda::device(0)?;
    let cuda = Cuda::open()?;
    let allocate = || cuda.allocate(0, 32 << 20, StreamHandle::DEFAULT);
    let first = allocate()?;
    let (pointer, id) = (first.pointer(), cuda.allocation_id(0, first.pointer())?);
    drop(first);
    cuda.synchronize(0, StreamHandle::DEFAULT)?;
    let mut others = Vec::new();
    for _ in 0..64 {
        others.push(allocate()?);
    }
    let again = others.iter().find(|other| other.pointer() == pointer);
    let again = again.map(|again| cuda.allocation_id(0, again.pointer()));
    println!("{pointer:#x} had the id {id}, and has {again:?}");
    ensure!(again.is_some_and(|again| again.is_ok_and(|again| again != id)));
    Ok(())
}
