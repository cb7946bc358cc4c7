//! What is in good order worries nobody: no warning is logged, no refused connection is counted.

use anyhow::ensure;
use farref::Worker;
use farref_testkit::{TEST_TIMEOUT, free_port, run_test};

use crate::functions::add;
use crate::launch::{Launch, Launched};
use crate::{Options, Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        ("s1_a_clean_shutdown_alarms_nobody", clean_shutdown),
        ("s3_a_graceful_leave_alarms_nobody", graceful_leave),
    ]
}

/// Logged when a runtime has no processor for seconds, as on a busy machine.
const SLOW_RUNTIME: &str =
    "the program keeps its tokio runtime from running, and no remote function is to blame";

/// How often each is tried: what is looked for are races.
fn rounds() -> u32 {
    amount(2, 6)
}

/// A worker that complains of nothing but what is of at least level `warn`, and of refused connections.
fn start(
    options: &Options,
    name: &str,
    rank: Option<(u32, u32)>,
    at: &str,
) -> anyhow::Result<Launched> {
    let mut launch = Launch::new(options)?
        .env("FARREF_NAME", name)
        .env("FARREF_RENDEZVOUS", at)
        .env("RUST_LOG", "farref=warn");
    if let Some((rank, size)) = rank {
        launch = launch
            .env("FARREF_RANK", rank)
            .env("FARREF_WORLD_SIZE", size);
    }
    launch.start(name)
}

async fn ended_without_a_word(process: Launched) -> anyhow::Result<()> {
    let (status, complaints) = process.ended().await?;
    let mut lines = complaints.lines();
    let has_complaints = lines.any(|line| !line.contains(SLOW_RUNTIME));
    ensure!(
        status.success() && !has_complaints,
        "{status}: {complaints}"
    );
    Ok(())
}

/// S1: all have talked to all, and end together.
fn clean_shutdown() -> anyhow::Result<()> {
    const SIZE: u32 = 5;
    run_test(async {
        let options = Options {
            calls_everyone: true,
            counts_refusals: true,
            ..Options::default()
        };
        for _ in 0..rounds() {
            let at = format!("tcp://127.0.0.1:{}", free_port()?);
            let mut processes = Vec::new();
            for rank in 0..SIZE {
                let name = format!("worker{rank}");
                processes.push(start(&options, &name, Some((rank, SIZE)), &at)?);
            }
            for process in processes {
                ended_without_a_word(process).await?;
            }
        }
        Ok(())
    })
}

/// S3: workers come, talk to all, and leave again.
fn graceful_leave() -> anyhow::Result<()> {
    run_test(async {
        let stays = Options {
            counts_refusals: true,
            ..Options::default()
        };
        let leaves = Options {
            calls_everyone: true,
            leaves: true,
            ..stays.clone()
        };
        let at = format!("tcp://127.0.0.1:{}", free_port()?);
        let founders = [
            start(&stays, "a", Some((1, 3)), &at)?,
            start(&stays, "b", Some((2, 3)), &at)?,
        ];
        let me = Worker::builder("driver").rank(0).world_size(3);
        let me = stays.apply(me.rendezvous(&at)).join().await?;
        for round in 0..rounds() {
            let guests = ["guest", "visitor"].map(|name| format!("{name}-{round}"));
            let guests = guests.map(|name| start(&leaves, &name, None, &at));
            for guest in guests {
                ended_without_a_word(guest?).await?;
            }
            for name in ["a", "b"] {
                ensure!(add::on(&me.wait_for_peer(name, TEST_TIMEOUT).await?, 1, 2).await? == 3);
            }
        }
        me.shutdown().await?;
        for founder in founders {
            ended_without_a_word(founder).await?;
        }
        Ok(())
    })
}
