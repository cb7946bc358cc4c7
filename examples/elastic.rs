//! A group without a fixed size: workers join it and leave it while the work goes on.
//!
//! `coordinator` founds the group and divides the work among whoever is there.
//! `cargo run -p farref-examples --example elastic` prints:
//!
//! ```text
//! worker-1 joins
//! worker-1: 9592 primes
//! worker-2 joins
//! worker-3 joins
//! worker-1, worker-2, worker-3: 9592 primes
//! worker-1 leaves
//! worker-2, worker-3: 9592 primes
//! all others have ended together
//! ```

// A program, not a library.
#![allow(missing_docs)]

use anyhow::{Result, ensure};
use farref::Worker;
use farref_examples::{Process, TIMEOUT, until};
use tokio::sync::Notify;

const BELOW: u64 = 100_000;
const PRIMES: usize = 9_592;

/// Not `async`: it computes, and so gets a thread of its own.
#[farref::remote]
fn count_primes(share: u64, shares: u64) -> usize {
    let is_prime = |n: &u64| {
        (2..)
            .take_while(|d| d * d <= *n)
            .all(|d| !n.is_multiple_of(d))
    };
    // Every `shares`-th number, so that all have about the same to do.
    let numbers = (2..BELOW).filter(|n| n % shares == share);
    numbers.filter(is_prime).count()
}

/// Set when this worker is to leave.
static LEAVE: Notify = Notify::const_new();

#[farref::remote]
async fn please_leave() {
    LEAVE.notify_one();
}

/// Divides the work among all that are there at the moment.
async fn count_together(me: &Worker) -> Result<()> {
    let helpers: Vec<_> = me
        .peers()
        .into_iter()
        .filter(|peer| !peer.is_me())
        .collect();
    let shares = helpers.len() as u64;
    let started = (0..).zip(&helpers);
    let pending: Vec<_> = started
        .map(|(share, helper)| count_primes::on(helper, share, shares).start())
        .collect();
    let mut primes = 0;
    for count in pending {
        primes += count.await?;
    }
    let names: Vec<_> = helpers.iter().map(|helper| helper.name()).collect();
    println!("{}: {primes} primes", names.join(", "));
    ensure!(primes == PRIMES, "there are {PRIMES}");
    Ok(())
}

/// Starts a process that joins the group, and waits until it has.
async fn add_worker(me: &Worker, name: &str, rendezvous: &str) -> Result<Process> {
    let process = Process::start(name, &[("FARREF_RENDEZVOUS", rendezvous.to_owned())])?;
    me.wait_for_peer(name, TIMEOUT).await?;
    println!("{name} joins");
    Ok(process)
}

async fn coordinator() -> Result<()> {
    let rendezvous = farref_examples::free_rendezvous()?;
    // No world size: whoever comes first founds the group, and others join when they come.
    let builder = Worker::builder("coordinator").rendezvous(&rendezvous);
    let me = builder.fail_on_leaks(true).join().await?;

    let first = add_worker(&me, "worker-1", &rendezvous).await?;
    count_together(&me).await?;

    let second = add_worker(&me, "worker-2", &rendezvous).await?;
    let third = add_worker(&me, "worker-3", &rendezvous).await?;
    count_together(&me).await?;

    please_leave::on(&me.peer("worker-1")?).await?;
    first.wait()?;
    until("it is known that it left", async || {
        Ok(me.peers().len() == 3)
    })
    .await?;
    println!("worker-1 leaves");
    count_together(&me).await?;

    me.shutdown().await?; // of all who are left
    second.wait()?;
    third.wait()?;
    println!("all others have ended together");
    Ok(())
}

async fn worker() -> Result<()> {
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "worker-1" {
        LEAVE.notified().await;
        me.leave().await?; // alone, when it has answered: the group goes on
    } else {
        me.serve().await?; // until the coordinator shuts the group down
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::was_started() {
        worker().await
    } else {
        coordinator().await
    }
}
