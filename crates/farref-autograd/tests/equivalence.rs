//! A1: random programs over several workers have the gradients that they have in one place.

mod common;

use std::time::Duration;

use anyhow::{Context as _, Result};
use common::{Group, spread};

const SEEDS: u64 = 300;

#[tokio::test(flavor = "multi_thread")]
async fn a1_random_programs_have_the_gradients_they_have_in_one_place() -> Result<()> {
    for seed in 0..SEEDS {
        let workers = 3 + seed as usize % 3;
        let group = Group::start(workers as u32).await?;
        let checked = spread::check(seed, group.worker(0), workers);
        tokio::time::timeout(Duration::from_secs(60), checked)
            .await
            .with_context(|| format!("seed {seed} hangs"))?
            .with_context(|| format!("seed {seed}"))?;
        group.finish(workers).await?;
    }
    Ok(())
}
