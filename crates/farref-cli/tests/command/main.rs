//! The `farref` command, as a process of its own.
//!
//! This program is also what the tests start as ranks and workers: its environment says which.

mod certs;
mod dashboard;
mod export;
mod inspect;
mod launch;
mod launch_tls;
mod launching;
mod promises;

use std::sync::mpsc;
use std::thread;

use anyhow::Context as _;
use farref_testkit::{TEST_TIMEOUT, run_test};
use libtest_mimic::{Arguments, Failed, Trial};

/// How many tests run at once. Most of the time they wait.
const TEST_THREADS: usize = 6;

/// Makes a test of each function of a module, which this function runs.
macro_rules! trials {
    ($run:path, $($(#[$meta:meta])* $test:ident,)*) => {
        vec![$($(#[$meta])* crate::trial(
            concat!(module_path!(), "::", stringify!($test)),
            || $run($test),
        )),*]
    };
}
use trials;

fn trial(path: &str, run: impl FnOnce() -> anyhow::Result<()> + Send + 'static) -> Trial {
    let name = path.strip_prefix("command::").unwrap_or(path);
    Trial::test(name, || {
        run().map_err(|error| Failed::from(format!("{error:?}")))
    })
}

/// Runs a test that blocks, and fails if it hangs.
fn blocking(test: fn() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(test()));
    let ended = is_done.recv_timeout(2 * TEST_TIMEOUT);
    ended.context("the test hangs, or has panicked")?
}

/// Runs a test that waits as a task, and fails if it hangs.
fn asynchronous<F: Future<Output = anyhow::Result<()>>>(test: fn() -> F) -> anyhow::Result<()> {
    run_test(test())
}

fn main() -> anyhow::Result<()> {
    let roles = [
        launch::work_if_told,
        launch_tls::work_if_told,
        dashboard::work_if_told,
    ];
    if let Some(worked) = roles.iter().find_map(|role| role()) {
        return worked;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TEST_THREADS);
    let files = [
        // The browser's take longest.
        dashboard::trials(),
        launch::trials(),
        launch_tls::trials(),
        certs::trials(),
        export::trials(),
        inspect::trials(),
        promises::trials(),
    ];
    let trials = files.into_iter().flatten().collect();
    libtest_mimic::run(&arguments, trials).exit()
}
