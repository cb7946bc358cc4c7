//! What the other processes run: a worker that serves until the group shuts down.

use std::time::Duration;

use anyhow::Context as _;
use farref::Worker;

/// Says that this process is a worker; its value is how it is set up.
pub(crate) const ROLE: &str = "FARREF_TEST_ROLE";

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
        let me = options.apply(Worker::from_env()).join().await;
        let me = me.context("joining")?;
        let ended = me.shutdown().await;
        let left = crate::functions::held_count();
        anyhow::ensure!(left == 0, "{left} references are still held by this process");
        // A worker that was declared dead while it was stopped has been told so by its test.
        match ended {
            Err(farref::Error::Evicted { .. }) if options.may_be_evicted => Ok(()),
            ended => ended.context("shutting down"),
        }
    })
}

/// How long anything in these tests may take before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
