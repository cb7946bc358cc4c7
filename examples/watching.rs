//! A worker that keeps a task on each of the others, whoever they are: it watches the group.
//!
//! `overseer` gives every member something to do as soon as it joins, and learns from events alone who left and who
//! died. `cargo run -p farref-examples --example watching` prints:
//!
//! ```text
//! present: overseer
//! worker-1 joined, and guards gate 1
//! worker-2 joined, and guards gate 2
//! worker-1 died: gate 1 is free
//! worker-1 joined, and guards gate 1
//! worker-2 left: gate 2 is free
//! gate 1 is guarded
//! ended: ShutDown
//! ```

// A program, not a library.
#![allow(missing_docs)]

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use farref::context::NodeId;
use farref::{Departure, Member, MemberEvent, Members, RRef, Worker};
use farref_examples::{Process, TIMEOUT};

/// Something that lives on another worker, for as long as it does.
#[derive(Debug)]
pub struct Guard {
    gate: usize,
}

#[farref::remote]
impl Guard {
    pub fn new(gate: usize) -> Self {
        Self { gate }
    }

    pub async fn gate(&self) -> usize {
        self.gate
    }
}

#[farref::remote]
async fn please_leave() {
    if let Some(me) = Worker::current() {
        tokio::spawn(async move { me.leave().await });
    }
}

/// Who guards which gate. Keys are lives: the next life of a worker has another one.
#[derive(Default)]
struct Watch(BTreeMap<NodeId, (usize, RRef<Guard>)>);

impl Watch {
    /// The lowest gate that nobody guards.
    fn free_gate(&self) -> usize {
        let guarded: Vec<usize> = self.0.values().map(|(gate, _)| *gate).collect();
        (1..).find(|gate| !guarded.contains(gate)).unwrap_or(0)
    }

    fn joined(&mut self, member: &Member) {
        let gate = self.free_gate();
        let guard = Guard::new_on(member.peer(), gate).remote();
        self.0.insert(member.node(), (gate, guard));
        println!("{} joined, and guards gate {gate}", member.name());
    }

    fn gone(&mut self, member: &Member, how: &str) -> Result<()> {
        let (gate, _) = self.0.remove(&member.node()).context("an unknown life")?;
        println!("{} {how}: gate {gate} is free", member.name());
        Ok(())
    }

    /// Acts on the next event.
    async fn step(&mut self, members: &mut Members) -> Result<()> {
        match tokio::time::timeout(TIMEOUT, members.next()).await? {
            Some(MemberEvent::Joined(member)) => self.joined(&member),
            Some(MemberEvent::Left(member)) => self.gone(&member, "left")?,
            Some(MemberEvent::Died(member)) => self.gone(&member, "died")?,
            other => bail!("unexpected: {other:?}"),
        }
        Ok(())
    }
}

async fn overseer() -> Result<()> {
    let rendezvous = farref_examples::free_rendezvous()?;
    let start = |name| Process::start(name, &[("FARREF_RENDEZVOUS", rendezvous.clone())]);
    let builder = Worker::builder("overseer").rendezvous(&rendezvous);
    let me = builder.fail_on_leaks(true).join().await?;

    // First those who are there, then that it is all of them.
    let mut members = me.watch_members();
    while let Some(MemberEvent::Joined(member)) = members.next().await {
        println!("present: {}", member.name());
    }

    let mut watch = Watch::default();
    let first = start("worker-1")?;
    watch.step(&mut members).await?;
    let second = start("worker-2")?;
    watch.step(&mut members).await?;

    // The end of one life, for who waits for nothing else.
    let gone = me.peer("worker-1")?.gone();
    first.kill()?;
    ensure!(gone.await? == Departure::Died);
    watch.step(&mut members).await?;
    let reborn = start("worker-1")?;
    watch.step(&mut members).await?;

    please_leave::on(&me.peer("worker-2")?).await?;
    watch.step(&mut members).await?;
    second.wait()?;

    for (_, guard) in watch.0.values() {
        println!("gate {} is guarded", guard.gate().await?);
    }
    drop(watch);
    me.shutdown().await?;
    reborn.wait()?;
    while let Some(event) = members.next().await {
        if let MemberEvent::Ended(how) = event {
            println!("ended: {how:?}");
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::was_started() {
        let me = Worker::from_env().fail_on_leaks(true).join().await?;
        me.serve().await?;
        return Ok(());
    }
    overseer().await
}
