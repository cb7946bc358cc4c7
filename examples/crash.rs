//! A worker is killed in the middle of its work, and the group goes on.
//!
//! The caller gets an error that says what happened, what the dead worker held is released, another one
//! does the work, and the dead one comes back under its name.
//! `cargo run -p farref-examples --example crash` prints:
//!
//! ```text
//! `worker` holds the numbers and is at work: it is killed
//! the call: worker `worker` was lost before it answered `..
//! the reference: worker `worker`, which had the value, is gone: make the value anew
//! what it held here is released
//! `spare` does the work: 500500
//! `worker` is back, in a new life, and does it too: 500500
//! all have ended together
//! ```

// A program, not a library.
#![allow(missing_docs)]

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use farref::{Error, RRef, Worker};
use farref_examples::{Process, TIMEOUT, until};

/// Adds up numbers that another worker has.
#[farref::remote]
async fn sum(numbers: RRef<Vec<u64>>, pause: Duration) -> farref::Result<u64> {
    tokio::time::sleep(pause).await;
    Ok(numbers.to_here().await?.iter().sum())
}

#[farref::remote]
async fn greeting() -> String {
    "hello from a process that is not long for this world".to_owned()
}

/// Starts a process that joins the group.
fn start(name: &str, rendezvous: &str) -> Result<Process> {
    Process::start(name, &[("FARREF_RENDEZVOUS", rendezvous.to_owned())])
}

/// Whether others hold values of this worker.
fn lent(me: &Worker) -> bool {
    let references = me.snapshot().references;
    let mut holders = references.iter().flat_map(|reference| &reference.holders);
    holders.any(|holder| holder != me.name())
}

async fn coordinator() -> Result<()> {
    let rendezvous = farref_examples::free_rendezvous()?;
    let builder = Worker::builder("coordinator").rendezvous(&rendezvous);
    let me = builder.fail_on_leaks(true).join().await?;
    let doomed = start("worker", &rendezvous)?;
    let other = start("spare", &rendezvous)?;
    let worker = me.wait_for_peer("worker", TIMEOUT).await?;
    let spare = me.wait_for_peer("spare", TIMEOUT).await?;
    let first_life = worker.snapshot().await?.incarnation;

    // It has a value of ours, we have one of its, and it is busy.
    let numbers = me.rref((1..=1000).collect::<Vec<u64>>())?;
    let far_value = greeting::on(&worker).remote();
    far_value.to_here().await?;
    let pending = sum::on(&worker, numbers.clone(), Duration::from_secs(60)).start();
    until("the call has arrived", async || Ok(lent(&me))).await?;
    println!("`worker` holds the numbers and is at work: it is killed");
    doomed.kill()?;

    // Nothing is run a second time behind our back: we are told, and decide.
    match pending.await {
        Err(error @ Error::PeerLost { .. }) => println!("the call: {error}"),
        other => bail!("the call has to fail with `PeerLost`: {other:?}"),
    }
    match far_value.to_here().await {
        Err(error @ Error::OwnerLost { .. }) => println!("the reference: {error}"),
        other => bail!("the reference has to lead nowhere: {other:?}"),
    }
    drop(far_value);
    until("it is released", async || Ok(!lent(&me))).await?;
    println!("what it held here is released");

    let result = sum::on(&spare, numbers.clone(), Duration::ZERO).await?;
    println!("`spare` does the work: {result}");
    ensure!(result == 500_500, "wrong sum");

    // The same name in another process. A `Peer` stands for the name: it reaches the new life.
    let reborn = start("worker", &rendezvous)?;
    me.wait_for_peer("worker", TIMEOUT).await?;
    let second_life = worker.snapshot().await?.incarnation;
    ensure!(second_life > first_life, "it is taken for its former life");
    let result = sum::on(&worker, numbers, Duration::ZERO).await?;
    println!("`worker` is back, in a new life, and does it too: {result}");
    ensure!(result == 500_500, "wrong sum");

    me.shutdown().await?;
    other.wait()?;
    reborn.wait()?;
    println!("all have ended together");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::was_started() {
        let me = Worker::from_env().fail_on_leaks(true).join().await?;
        me.serve().await?;
        return Ok(());
    }
    coordinator().await
}
