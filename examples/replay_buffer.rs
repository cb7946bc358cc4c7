//! A replay buffer that many workers hold: actors write, learners read, all at the same time.
//!
//! It belongs to nobody in particular and is freed when the last of them lets go, in whatever order they
//! do. `cargo run -p farref-examples --example replay_buffer` prints:
//!
//! ```text
//! the buffer is held by actor0, actor1, learner0, learner1
//! 3000 transitions were written and read, by all at the same time
//! `actor0` lets go: 3 hold it
//! `actor1` lets go: 2 hold it
//! `learner0` lets go: 1 hold it
//! `learner1` lets go: 0 hold it
//! the buffer is freed, all workers have ended
//! ```

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use std::collections::VecDeque;

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, RRef, Worker};
use farref_examples::until;
use serde::{Deserialize, Serialize};

const OTHERS: [&str; 4] = ["actor0", "actor1", "learner0", "learner1"];
const CAPACITY: usize = 800;

/// What an actor has seen.
#[derive(Clone, Serialize, Deserialize)]
pub struct Transition {
    state: usize,
    reward: f64,
}

#[derive(Default)]
pub struct ReplayBuffer(VecDeque<Transition>);

#[farref::remote]
impl ReplayBuffer {
    // `&mut self`: one at a time.
    pub async fn push(&mut self, transition: Transition) {
        if self.0.len() == CAPACITY {
            self.0.pop_front();
        }
        self.0.push_back(transition);
    }

    // `&self`: as many at once as there are readers.
    pub async fn sample(&self, count: usize) -> Vec<Transition> {
        let choose = || fastrand::choice(&self.0).cloned();
        (0..count).map_while(|_| choose()).collect()
    }
}

fn this_worker() -> Result<Worker> {
    Worker::current().context("not called from afar")
}

/// Holds the buffer on this worker, under a name.
#[farref::remote]
async fn take(buffer: RRef<ReplayBuffer>) -> Result<()> {
    this_worker()?.publish("buffer", &buffer)?;
    Ok(())
}

#[farref::remote]
async fn let_go() -> Result<bool> {
    Ok(this_worker()?.unpublish("buffer"))
}

async fn buffer() -> Result<RRef<ReplayBuffer>> {
    Ok(this_worker()?.me().lookup("buffer").await?)
}

#[farref::remote]
async fn write(count: usize) -> Result<usize> {
    let buffer = buffer().await?;
    for state in 0..count {
        let reward = state as f64 / 2.0;
        buffer.push(Transition { state, reward }).await?;
    }
    Ok(count)
}

#[farref::remote]
async fn read(count: usize) -> Result<usize> {
    let buffer = buffer().await?;
    let mut seen = 0;
    while seen < count {
        let batch = buffer.sample(20).await?;
        let intact = |it: &Transition| it.reward == it.state as f64 / 2.0;
        ensure!(batch.iter().all(intact), "a transition has changed");
        seen += batch.len();
    }
    Ok(seen)
}

/// Who holds the buffer, as its owner sees it.
fn holders(me: &Worker) -> Vec<String> {
    let references = me.snapshot().references.into_iter();
    let mut holders: Vec<_> = references.flat_map(|reference| reference.holders).collect();
    holders.sort();
    holders
}

async fn host(me: &Worker) -> Result<()> {
    let others = OTHERS.iter().map(|name| me.peer(name));
    let others: Vec<Peer> = others.collect::<farref::Result<_>>()?;
    let shared = me.rref_to_object(ReplayBuffer::default())?;
    for other in &others {
        take::on(other, shared.clone()).await?;
    }
    drop(shared); // from here on, the others keep it alive
    until("only they hold it", async || Ok(holders(me) == OTHERS)).await?;
    println!("the buffer is held by {}", holders(me).join(", "));

    let (actors, learners) = others.split_at(2);
    let writing = actors.iter().map(|actor| write::on(actor, 500).start());
    let reading = learners.iter().map(|one| read::on(one, 1000).start());
    let working: Vec<_> = writing.chain(reading).collect(); // all at the same time
    let mut handled = 0;
    for pending in working {
        handled += pending.await?;
    }
    println!("{handled} transitions were written and read, by all at the same time");
    ensure!(handled == 3000, "something was lost");

    for (other, left) in others.iter().zip((0..others.len()).rev()) {
        ensure!(let_go::on(other).await?);
        until("the owner knows", async || Ok(holders(me).len() == left)).await?;
        println!("`{}` lets go: {left} hold it", other.name());
    }
    ensure!(me.references().is_empty(), "the buffer is still there");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["host", "actor0", "actor1", "learner0", "learner1"])? {
        println!("the buffer is freed, all workers have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "host" {
        host(&me).await?;
        return Ok(me.shutdown().await?);
    }
    Ok(me.serve().await?) // for as long as `host` works
}
