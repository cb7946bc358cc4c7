//! Groups of real PyTorch workers and a Rust worker, the *peer*, each in a process of its own.
//!
//! What is tried is in `../python`: its `worker.py --plans` says which processes a group has. Each plan is a test
//! here. The Python that is used is `python3`, or what `FARREF_PYTHON` names; it must have torch. The peer is this
//! executable, started with `FARREF_PEER` set.

mod peer;
mod plans;

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
    let plans = plans::all()?;
    let trials = plans.into_iter().map(|plan| {
        let name = format!("{}_holds_with_a_rust_peer", plan.name);
        Trial::test(name, move || Ok(plans::run(&plan)?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}
