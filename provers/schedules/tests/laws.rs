//! Some schedules of each scenario; and that each fault which threads could show is noticed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use farref_schedules::{Mutation, NOTICED, SCENARIOS, mutate};
use libtest_mimic::{Arguments, Failed, Trial};

/// So many schedules of each scenario.
const SCHEDULES: usize = 400;
/// So many at most until a fault is noticed.
const UNTIL_NOTICED: usize = 10_000;

fn main() {
    let laws = SCENARIOS.iter().map(|scenario| {
        Trial::test(scenario.name, || {
            scenario.check(SCHEDULES);
            Ok(())
        })
    });
    let faults = NOTICED.map(|(mutation, name)| {
        Trial::test(format!("{mutation:?}_is_noticed"), move || {
            notice(mutation, name)
        })
    });
    libtest_mimic::run(&Arguments::from_args(), laws.chain(faults).collect()).exit();
}

fn notice(mutation: Mutation, name: &str) -> Result<(), Failed> {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let scenario = scenario.ok_or("there is no such scenario")?;
    let broken = mutate(Some(mutation));
    let checked = catch_unwind(AssertUnwindSafe(|| scenario.check(UNTIL_NOTICED)));
    drop(broken);
    match checked {
        Ok(()) => Err(format!("{mutation:?} goes unnoticed in {UNTIL_NOTICED} schedules").into()),
        Err(_) => Ok(()),
    }
}
