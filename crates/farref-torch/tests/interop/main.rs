//! Groups of real PyTorch workers and a Rust worker, the *peer*, each in a process of its own.
//!
//! What is tried is in `../python`: its `worker.py --plans` says which processes a group has. Each plan is a test
//! here.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `FARREF_TORCH_PYTHON` | the Python that has torch; `python3` unless it is set |
//! | `FARREF_REQUIRE_TORCH` | it is an error if that Python has no torch; else the tests are left out, and say so |
//! | `FARREF_TORCH_PLANS=all` | all plans, and not only those that differ in more than the transports |
//! | `FARREF_PEER` | this process is a peer: set by the tests themselves |

mod peer;
mod plans;
mod tutorials;

use libtest_mimic::{Arguments, Trial};

fn main() -> anyhow::Result<()> {
    if std::env::var_os("FARREF_PEER").is_some() {
        return peer::run();
    }
    // One group at a time: they have several processes each.
    let arguments = Arguments {
        test_threads: Some(1),
        ..Arguments::from_args()
    };
    let plans = match plans::missing() {
        None => plans::all()?,
        Some(missing) if std::env::var_os("FARREF_REQUIRE_TORCH").is_none() => {
            eprintln!("LEFT OUT: no group of PyTorch workers was tried. {missing}");
            Vec::new()
        }
        Some(missing) => anyhow::bail!("{missing}"),
    };
    let trials = plans.into_iter().map(|plan| {
        let name = format!("{}_holds_with_a_rust_peer", plan.name);
        Trial::test(name, move || Ok(plans::run(&plan)?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}
