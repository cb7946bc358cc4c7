//! Tests with real processes over real sockets: killed, stopped, cut off, restarted.
//!
//! Each test runs as one worker, `driver`, and starts the others as processes: this same program,
//! which its environment makes a worker ([`worker::run`]). Every test ends with [`Group::finish`],
//! which fails if anything is left behind anywhere.
//!
//! No test depends on the speed of the machine, so that many can run at once. Amounts that are larger
//! with `FARREF_THOROUGH` in the environment come from [`amount`].

mod alarms;
mod alone;
mod counts;
mod delivery;
mod errors;
mod etcd;
mod failure;
mod functions;
mod group;
mod hostile;
mod hosts;
mod large_values;
mod launch;
mod membership;
mod naming;
mod patterns;
mod references;
mod refusals;
mod regions;
mod rendezvous;
mod scale;
mod shared_memory;
mod starving;
mod streams;
mod watching;
mod worker;

use std::sync::{PoisonError, RwLock};

use libtest_mimic::{Arguments, Failed, Trial};

pub(crate) use group::{Group, Options};

/// How many tests run at once. Most of the time they wait.
const TEST_THREADS: usize = 8;

/// Tests with very many processes run alone: they would keep the workers of others from running.
static MACHINE: RwLock<()> = RwLock::new(());

/// Named tests.
pub(crate) type Tests = Vec<(&'static str, fn() -> anyhow::Result<()>)>;

/// `full` in a thorough run, and otherwise `usual`, which is enough to notice a fault.
pub(crate) fn amount<T>(usual: T, full: T) -> T {
    match farref_testkit::thorough() {
        true => full,
        false => usual,
    }
}

fn main() -> anyhow::Result<()> {
    worker::log_if_asked();
    if worker::is_one() {
        if worker::options()?.watched {
            hostile::honest::watch()?;
        }
        return worker::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(TEST_THREADS);
    let files = [
        starving::tests(),
        hostile::tests(),
        smoke::tests(),
        delivery::tests(),
        references::tests(),
        failure::tests(),
        errors::tests(),
        membership::tests(),
        watching::tests(),
        naming::tests(),
        alarms::tests(),
        rendezvous::tests(),
        etcd::tests(),
        streams::tests(),
        shared_memory::tests(),
        regions::tests(),
        refusals::tests(),
    ];
    let crowds = scale::tests().into_iter().map(|(name, test)| {
        let run = move || {
            let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
            outcome(test())
        };
        Trial::test(name, run)
    });
    let mut trials: Vec<_> = crowds.collect();
    let tests = files.into_iter().flatten();
    trials.extend(tests.map(|(name, test)| trial(name.to_owned(), test)));
    trials.extend(large_values::trials());
    trials.extend(hosts::trials());
    libtest_mimic::run(&arguments, trials).exit()
}

/// A test as the harness takes it.
pub(crate) fn trial(
    name: String,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    Trial::test(name, || {
        let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        outcome(test())
    })
}

fn outcome(result: anyhow::Result<()>) -> Result<(), Failed> {
    result.map_err(|error| format!("{error:?}").into())
}

mod smoke {
    //! The harness itself.

    use super::*;
    use crate::functions::pid;

    pub(crate) fn tests() -> Tests {
        vec![("workers_are_processes_of_their_own", || {
            group::run(Options::default(), &["a", "b"], async |group| {
                let a = pid::on(&group.peer("a")?).await?;
                let b = pid::on(&group.peer("b")?).await?;
                anyhow::ensure!(a != b && a != std::process::id());
                Ok(())
            })
        })]
    }
}
