//! A1, A4: random programs over several workers have the gradients that they have in one place, also when
//! several passes of one context run side by side.

use crate::common::{Group, in_parallel, random_programs, spread};
use anyhow::Result;

#[tokio::test(flavor = "multi_thread")]
async fn a1_random_programs_have_the_gradients_they_have_in_one_place() -> Result<()> {
    in_parallel(0..random_programs(), |seed| async move {
        let workers = 3 + seed as usize % 3;
        let group = Group::start(workers as u32).await?;
        spread::check(seed, group.worker(0), workers).await?;
        group.finish(workers).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_random_programs_side_by_side_in_one_context_add_up() -> Result<()> {
    in_parallel(0..random_programs(), |seed| async move {
        let workers = 3 + seed as usize % 3;
        let group = Group::start(workers as u32).await?;
        spread::check_micro_batches(seed, group.worker(0), workers).await?;
        group.finish(workers).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_passes_side_by_side_over_shared_graphs_add_up_or_say_what_was_freed() -> Result<()> {
    in_parallel(0..random_programs(), |seed| async move {
        let workers = 3 + seed as usize % 3;
        let group = Group::start(workers as u32).await?;
        spread::check_shared(seed, group.worker(0), workers).await?;
        group.finish(workers).await
    })
    .await
}
