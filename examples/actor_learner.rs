//! Reinforcement learning: actors walk through a room, a learner finds out which way is short.
//!
//! The learner has the policy. Actors hold a reference to it, ask it about every step, and report what
//! they saw. The room is 5 by 5, the exit is in the far corner, every step costs 1: the shortest way
//! earns -8. `cargo run -p farref-examples --example actor_learner` prints:
//!
//! ```text
//! episodes   1 to  50: mean reward -..
//! episodes  51 to 100: mean reward -..
//! episodes 101 to 150: mean reward -..
//! episodes 151 to 200: mean reward -..
//! the actors find the exit, all workers have ended
//! ```
//!
//! PyTorch's tutorial: "Getting Started with Distributed RPC Framework", the part on reinforcement learning.

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]

use anyhow::{Result, ensure};
use farref::{RRef, Worker};
use serde::{Deserialize, Serialize};

const SIDE: usize = 5;
const PLACES: usize = SIDE * SIDE;
const EXIT: usize = PLACES - 1;
const MOVES: [(isize, isize); 4] = [(0, 1), (1, 0), (0, -1), (-1, 0)];
const PATIENCE: usize = 100;

/// Where a move leads. Walls hold.
fn step(place: usize, action: usize) -> usize {
    let limit = |coordinate: usize, by: isize| coordinate.saturating_add_signed(by).min(SIDE - 1);
    let (dx, dy) = MOVES[action];
    limit(place % SIDE, dx) + SIDE * limit(place / SIDE, dy)
}

#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Experience {
    from: usize,
    action: usize,
    to: usize,
}

/// A table of what to do where (the actor) and one of what to expect where (the critic).
#[derive(Default)]
pub struct Learner {
    preferences: [[f64; MOVES.len()]; PLACES],
    values: [f64; PLACES],
}

#[farref::remote]
impl Learner {
    /// How likely each action is to be chosen.
    pub async fn policy(&self, place: usize) -> [f64; MOVES.len()] {
        let weights = self.preferences[place].map(f64::exp);
        let sum: f64 = weights.iter().sum();
        weights.map(|weight| weight / sum)
    }

    async fn learn(&mut self, seen: Experience) {
        let Experience { from, action, to } = seen;
        let surprise = self.values[to] - 1.0 - self.values[from];
        self.values[from] += 0.2 * surprise;
        let policy = self.policy(from).await;
        for (other, likelihood) in policy.into_iter().enumerate() {
            let chosen = f64::from(u8::from(other == action));
            self.preferences[from][other] += 0.2 * surprise * (chosen - likelihood);
        }
    }
}

/// Walks from the entrance to the exit, unless it takes too long.
#[farref::remote]
async fn walk(learner: RRef<Learner>, seed: u64) -> farref::Result<Vec<Experience>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut episode = Vec::new();
    let mut place = 0;
    while place != EXIT && episode.len() < PATIENCE {
        let policy = learner.policy(place).await?;
        let mut left = random.f64();
        let chosen = policy.iter().position(|likelihood| {
            left -= likelihood;
            left < 0.0
        });
        let action = chosen.unwrap_or(MOVES.len() - 1);
        let from = place;
        place = step(from, action);
        let to = place;
        episode.push(Experience { from, action, to });
    }
    Ok(episode)
}

async fn learn(me: &Worker) -> Result<()> {
    let actors = [me.peer("actor0")?, me.peer("actor1")?];
    let learner = me.rref_to_object(Learner::default())?;
    let mut rewards: Vec<f64> = Vec::new();
    for round in 0..100 {
        let walking: Vec<_> = (0..)
            .zip(&actors)
            .map(|(number, actor)| walk::on(actor, learner.clone(), 2 * round + number).start())
            .collect();
        // Nothing is learned before both are done, so that every run is the same.
        let mut seen = Vec::new();
        for episode in walking {
            let episode = episode.await?;
            rewards.push(-(episode.len() as f64));
            seen.extend(episode);
        }
        let mut learner = learner.local_mut().await?; // it is on this worker: no call is needed
        for experience in seen {
            learner.learn(experience).await;
        }
    }
    let means = rewards
        .chunks(50)
        .map(|part| part.iter().sum::<f64>() / 50.0);
    let means: Vec<f64> = means.collect();
    for (number, mean) in means.iter().enumerate() {
        let (first, last) = (50 * number + 1, 50 * number + 50);
        println!("episodes {first:3} to {last:3}: mean reward {mean:.1}");
    }
    ensure!(means[0] < -12.0, "there was nothing to learn: {means:?}");
    ensure!(
        means[means.len() - 1] > -9.0,
        "they do not learn: {means:?}"
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["learner", "actor0", "actor1"])? {
        println!("the actors find the exit, all workers have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "learner" {
        learn(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `learner` works
    }
    Ok(())
}
