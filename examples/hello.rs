//! Two workers, a parameter table on one of them, and every way of using it.
//!
//! `cargo run -p farref-examples --example hello` starts both processes on this machine and prints:
//!
//! ```text
//! 1 + 2 = 3, 3 + 4 = 7
//! row 3 is Some(0.5), and again Some(0.5)
//! dropping the table frees it on `ps`
//! both workers have ended, nothing is left
//! ```
//!
//! A launcher that sets `FARREF_NAME`, `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` does as well.

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use std::time::Duration;

use anyhow::{Result, ensure};
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

async fn trainer(me: &Worker) -> Result<()> {
    let ps = me.peer("ps")?; // a handle to another worker, or to oneself

    let three = add::on(&ps, 1, 2).await?; // the value comes back
    let pending = add::on(&ps, 3, 4).start(); // runs now, is awaited later
    let seven = pending.await?;
    println!("1 + 2 = {three}, 3 + 4 = {seven}");
    ensure!((three, seven) == (3, 7), "wrong sums");

    let table: RRef<Table> = Table::new_on(&ps, 1024).remote(); // the value stays there
    table.push(3, 0.5).await?; // methods on the far value
    let row = table.get(3).timeout(Duration::from_secs(5)).await?;
    let there = table.get(3).remote(); // the result stays with the owner
    let again = there.to_here().await?; // copied over
    println!("row 3 is {row:?}, and again {again:?}");
    ensure!((row, again) == (Some(0.5), Some(0.5)), "wrong rows");

    println!("dropping the table frees it on `{}`", table.owner()?.name());
    drop((table, there));
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["trainer", "ps"])? {
        println!("both workers have ended, nothing is left");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "trainer" {
        trainer(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `trainer` works
    }
    Ok(())
}
