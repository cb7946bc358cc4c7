//! What the other processes run: a worker that serves until the group shuts down.

use std::time::Duration;

use anyhow::Context as _;
use farref::Worker;

/// Says that this process is a worker; its value is how it is set up.
pub(crate) const ROLE: &str = "FARREF_TEST_ROLE";

/// The exit code of a worker that was declared dead and was allowed to be.
pub(crate) const EVICTED: i32 = 70;

/// Whether this process was started as a worker.
pub(crate) fn is_one() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// Joins as the environment says, serves, and ends with the group.
pub(crate) fn run() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let options: crate::Options = serde_json::from_str(&std::env::var(ROLE)?)?;
        let name = std::env::var("FARREF_NAME").unwrap_or_default();
        let builder = options.route(&name, options.apply(Worker::from_env()));
        let me = builder.join().await;
        let me = me.context("joining")?;
        if options.calls_everyone {
            let called = crate::functions::call_everyone::on(&me.me()).await?;
            anyhow::ensure!(
                called as usize == me.peers().len(),
                "{called} answered rightly"
            );
        }
        let ended = me.shutdown().await;
        crate::functions::finish_background().await;
        let left = crate::functions::held_count();
        anyhow::ensure!(
            left == 0,
            "{left} references are still held by this process"
        );
        // A worker that was declared dead while it was stopped has been told so by its test.
        match ended {
            Err(farref::Error::Evicted { .. }) if options.may_be_evicted => {
                std::process::exit(EVICTED)
            }
            ended => ended.context("shutting down"),
        }
    })
}

/// How long anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
