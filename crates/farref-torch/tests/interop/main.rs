//! Workers in groups on PyTorch's wire.
//!
//! [`groups`] has groups of Rust workers in this process. [`plans`] has groups of real PyTorch
//! workers and a Rust worker, the *peer*, each in a process of its own. The scripts are in
//! `../python`: its `worker.py --plans` prints which processes a group has. Each plan is a test.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FARREF_TORCH_PYTHON` | the Python that has torch; `python3` unless it is set |
//! | `FARREF_REQUIRE_TORCH` | without torch the tests fail, instead of leaving the plans out |
//! | `FARREF_TORCH_PLANS=all` | all plans, and not only one for each thing |
//! | `FARREF_PEER` | this process is a peer: set by the tests themselves |

mod forks;
mod groups;
mod peer;
mod plans;
mod tutorials;

use std::sync::Arc;

use farref_testkit::Requirement;
use forks::Forks;
use libtest_mimic::{Arguments, Trial};

/// How many tests run at once. Most of them wait; a plan has up to six processes.
const TESTS_AT_ONCE: usize = 4;

const TORCH: Requirement = Requirement {
    needed: "a Python with torch and numpy (Debian: python3-torch, python3-numpy; or let FARREF_TORCH_PYTHON name one)",
    variable: "FARREF_REQUIRE_TORCH",
};

fn main() -> anyhow::Result<()> {
    if std::env::var_os("FARREF_PEER").is_some() {
        return peer::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TESTS_AT_ONCE);
    groups::keep_log();
    let mut trials = Vec::new();
    let forks = Forks::start()?;
    if TORCH.is_met(forks.as_ref().err().map(String::as_str))? {
        let forks = Arc::new(forks.map_err(anyhow::Error::msg)?);
        for plan in plans::all()? {
            let (name, forks) = (
                format!("{}_holds_with_a_rust_peer", plan.name),
                Arc::clone(&forks),
            );
            trials.push(Trial::test(name, move || Ok(plans::run(&plan, &forks)?)));
        }
    }
    trials.extend(groups::trials());
    // The server of the forks ends with its standard input, which the end of this process closes.
    libtest_mimic::run(&arguments, trials).exit()
}
