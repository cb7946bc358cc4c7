//! A program for any launcher: as many workers as there are ranks, which share the work.
//!
//! `cargo run -p farref-examples --example ranks` starts four of itself and prints:
//!
//! ```text
//! 4 workers: worker0, worker1, worker2, worker3
//! they count 9592 primes
//! all have ended together
//! ```
//!
//! Under `farref launch`, torchrun, mpirun, srun or Kubernetes it starts none and is one of them: `docs/schedulers.md`.
//! With the argument `survive`, rank 0 says which process every worker is, waits for the death of one, and lets the others
//! do the work once more. With `fail`, all fail then, as they should under a launcher that starts all of them again.

// A program, not a library.
#![allow(missing_docs)]

use anyhow::{Result, bail, ensure};
use farref::{MemberEvent, Members, Peer, Worker};

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

/// The process that this worker is.
#[farref::remote]
async fn process() -> u32 {
    std::process::id()
}

/// Divides the work among all that are there, this worker included.
async fn count_together(peers: &[Peer]) -> Result<()> {
    let names: Vec<_> = peers.iter().map(Peer::name).collect();
    println!("{} workers: {}", peers.len(), names.join(", "));
    let shares = peers.len() as u64;
    let started = (0..).zip(peers);
    let pending: Vec<_> = started
        .map(|(share, peer)| count_primes::on(peer, share, shares).start())
        .collect();
    let mut primes = 0;
    for count in pending {
        primes += count.await?;
    }
    println!("they count {primes} primes");
    ensure!(primes == PRIMES, "there are {PRIMES}");
    Ok(())
}

/// The name of the next one who dies. None when this worker has ended, and nobody died before.
async fn next_death(members: &mut Members) -> Option<String> {
    loop {
        if let MemberEvent::Died(member) = members.next().await? {
            return Some(member.name().to_owned());
        }
    }
}

/// Waits until somebody kills one of the others, and goes on with the rest or fails.
async fn until_one_dies(peers: &[Peer], members: &mut Members, survive: bool) -> Result<()> {
    for peer in peers {
        println!("{} is process {}", peer.name(), process::on(peer).await?);
    }
    println!("waiting for the death of one");
    match next_death(members).await {
        Some(name) if survive => println!("{name} died"),
        Some(name) => bail!("{name} died"),
        None => bail!("ended before anybody died"),
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["worker0", "worker1", "worker2", "worker3"])? {
        println!("all have ended together");
        return Ok(());
    }
    let plan = std::env::args().nth(1);
    let survive = match plan.as_deref() {
        None | Some("survive") => true,
        Some("fail") => false,
        Some(other) => bail!("`{other}` is neither `survive` nor `fail`"),
    };
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    let mut members = me.watch_members();
    if me.rank() == 0 {
        count_together(&me.peers()).await?;
        if plan.is_some() {
            until_one_dies(&me.peers(), &mut members, survive).await?;
            count_together(&me.peers()).await?;
        }
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as others work: those that are left end together, too
        let death = next_death(&mut members).await.filter(|_| !survive);
        if let Some(name) = death {
            bail!("{name} died");
        }
    }
    Ok(())
}
