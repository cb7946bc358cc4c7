//! Waiting for events, with one limit for everything that may hang.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// How long a test waits for anything before it fails.
///
/// A passing test never spends it, so it is long enough for a machine that is busy with other
/// work. It is shorter than the limit that `provers/promises` gives a test with a planted fault.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Limit of a whole test. It is longer than [`TEST_TIMEOUT`], so that a wait inside the test fails
/// first and names its event.
const TEST_LIMIT: Duration = Duration::from_secs(2 * TEST_TIMEOUT.as_secs());

/// Interval between checks of a condition, which cannot wake the waiting task.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `condition` holds. The error names `what` was awaited.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    // Does not call `eventually_async`: the future of an async closure is not always `Send`.
    let began = Instant::now();
    while !condition() {
        ensure!(began.elapsed() < TEST_TIMEOUT, "never: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Like [`eventually`], for a condition that is asynchronous and may fail.
pub async fn eventually_async(
    what: &str,
    mut condition: impl AsyncFnMut() -> Result<bool>,
) -> Result<()> {
    let began = Instant::now();
    while !condition().await? {
        ensure!(began.elapsed() < TEST_TIMEOUT, "never: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// Like [`eventually_async`], outside a runtime.
pub fn eventually_blocking(what: &str, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !condition()? {
        ensure!(began.elapsed() < TEST_TIMEOUT, "never: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// The output of `future`, or an error that says that `what` hangs.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    match tokio::time::timeout(TEST_TIMEOUT, future).await {
        Ok(output) => Ok(output),
        Err(_) => bail!("{what} hangs"),
    }
}

/// Runs an asynchronous test on a runtime with two threads, and fails if it hangs.
///
/// Blocking work that a failed test leaves behind does not keep the process from ending.
pub fn run_test(test: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, test).await });
    runtime.shutdown_background();
    ended.context("the test hangs")?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_comes_true_ends_the_wait() {
        run_test(async {
            let mut checks = 0;
            eventually("three checks", || {
                checks += 1;
                checks == 3
            })
            .await?;
            ensure!(checks == 3);
            Ok(())
        })
        .expect("it comes true");
    }

    #[test]
    fn an_error_of_the_condition_ends_the_wait() {
        let ended = eventually_blocking("never", || bail!("broken"));
        assert_eq!(ended.expect_err("it fails").to_string(), "broken");
    }
}
