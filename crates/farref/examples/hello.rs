//! Two workers, a parameter table on one of them, and every way of using it.
//!
//! `cargo run --release -p farref --example hello` starts both processes on this machine. A launcher
//! that sets `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` (torchrun, for instance) does as well.

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use std::time::Duration;

use farref::{RRef, Worker};

/// Still callable as a plain function.
#[farref::remote]
async fn add(a: i64, b: i64) -> i64 {
    a + b
}

pub struct Table {
    rows: Vec<f32>,
}

#[farref::remote]
impl Table {
    pub fn new(n: usize) -> Self {
        Self { rows: vec![0.0; n] }
    }

    pub fn get(&self, i: usize) -> Option<f32> {
        self.rows.get(i).copied()
    }

    pub async fn push(&mut self, i: usize, g: f32) {
        self.rows[i] += g;
    }
}

async fn trainer(me: &Worker) -> farref::Result<()> {
    let ps = me.peer("ps")?; // a handle to another worker, or to oneself

    let three = add::on(&ps, 1, 2).await?; // the value comes back
    let pending = add::on(&ps, 3, 4).start(); // runs now, is awaited later
    println!("1 + 2 = {three}, 3 + 4 = {}", pending.await?);

    let table: RRef<Table> = Table::new_on(&ps, 1024).remote(); // the value stays there
    table.push(3, 0.5).await?; // methods on the far value
    let row = table.get(3).timeout(Duration::from_secs(5)).await?;
    let there = table.get(3).remote(); // the result stays with the owner
    println!("row 3 is {row:?}, and again {:?}", there.to_here().await?);

    println!("dropping the table frees it on `{}`", table.owner()?.name());
    drop((table, there));
    Ok(())
}

#[tokio::main]
async fn main() -> farref::Result<()> {
    if std::env::var_os("RANK").is_none() {
        return start_both();
    }
    let me = Worker::from_env().join().await?;
    if me.name() == "trainer" {
        trainer(&me).await?;
    }
    me.shutdown().await // together: waits for the work of both
}

/// Does what a launcher would: starts this program twice, as ranks 0 and 1.
fn start_both() -> farref::Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .map_or(29_500, |address| address.port());
    let started: std::io::Result<Vec<_>> = ["trainer", "ps"]
        .iter()
        .enumerate()
        .map(|(rank, name)| {
            std::process::Command::new(std::env::current_exe()?)
                .env("FARREF_NAME", name)
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", "2")
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string())
                .spawn()
        })
        .collect();
    let failed = |what: String| Err(farref::Error::Config(what));
    match started {
        Err(error) => return failed(format!("cannot start a process: {error}")),
        Ok(mut workers) => {
            for worker in &mut workers {
                match worker.wait() {
                    Ok(status) if status.success() => {}
                    other => return failed(format!("a worker ended with {other:?}")),
                }
            }
        }
    }
    println!("both workers have ended, nothing is left");
    Ok(())
}
