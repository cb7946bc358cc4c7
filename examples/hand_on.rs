//! A reference is handed to a third worker, which keeps the value alive when the first lets go.
//!
//! `first` makes a notebook on `owner`, hands it on to `third` and drops it. `third` goes on writing.
//! When it lets go too, the notebook is freed. `cargo run -p farref-examples --example hand_on` prints:
//!
//! ```text
//! the notebook is on `owner`, held by first
//! handed on: held by first, third
//! dropped by `first`: held by third
//! `third` goes on and writes line 2
//! dropped by `third`: held by nobody, the owner has freed it
//! all three have ended
//! ```
//!
//! PyTorch explains the same in its note "Remote Reference Protocol".

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, RRef, Worker};
use farref_examples::until;

#[derive(Default)]
pub struct Notebook {
    lines: Vec<String>,
}

#[farref::remote]
impl Notebook {
    pub async fn open() -> Self {
        Self::default()
    }

    pub async fn write(&mut self, line: String) -> usize {
        self.lines.push(line);
        self.lines.len()
    }
}

fn this_worker() -> Result<Worker> {
    Worker::current().context("not called from afar")
}

/// Keeps what this worker was handed, under a name.
#[farref::remote]
async fn keep(notebook: RRef<Notebook>) -> Result<()> {
    this_worker()?.publish("kept", &notebook)?;
    Ok(())
}

#[farref::remote]
async fn write_to_kept(line: String) -> Result<usize> {
    let notebook = this_worker()?.me().lookup::<Notebook>("kept").await?;
    Ok(notebook.write(line).await?)
}

#[farref::remote]
async fn let_go() -> Result<bool> {
    Ok(this_worker()?.unpublish("kept"))
}

/// Waits until the owner knows these holders of its values, and no others.
async fn held_by(owner: &Peer, expected: &[&str]) -> Result<()> {
    until("the owner knows the holders", async || {
        let references = owner.snapshot().await?.references;
        let holders = references
            .into_iter()
            .flat_map(|reference| reference.holders);
        let mut holders: Vec<_> = holders.collect();
        holders.sort();
        Ok(holders == expected)
    })
    .await
}

async fn first(me: &Worker) -> Result<()> {
    let (owner, third) = (me.peer("owner")?, me.peer("third")?);

    let notebook: RRef<Notebook> = Notebook::open_on(&owner).remote();
    ensure!(notebook.write("by the first".to_owned()).await? == 1);
    held_by(&owner, &["first"]).await?;
    println!("the notebook is on `owner`, held by first");

    // References go into arguments and results like any other value, anywhere inside of them.
    keep::on(&third, notebook.clone()).await?;
    held_by(&owner, &["first", "third"]).await?;
    println!("handed on: held by first, third");

    drop(notebook);
    held_by(&owner, &["third"]).await?;
    println!("dropped by `first`: held by third");

    let lines = write_to_kept::on(&third, "by the third".to_owned()).await?;
    println!("`third` goes on and writes line {lines}");
    ensure!(lines == 2, "it is another notebook");

    ensure!(let_go::on(&third).await?);
    held_by(&owner, &[]).await?;
    println!("dropped by `third`: held by nobody, the owner has freed it");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["first", "owner", "third"])? {
        println!("all three have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "first" {
        first(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `first` works
    }
    Ok(())
}
