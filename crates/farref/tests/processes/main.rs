//! Tests with real processes over real sockets: killed, stopped, cut off, restarted.
//!
//! Each test runs as one worker, `driver`, and starts the others as processes of their own: this same
//! program, told by its environment to be a worker ([`worker::run`]). Every test ends with
//! [`Group::finish`], which fails if anything is left behind anywhere.

mod alarms;
#[path = "../certificates/mod.rs"]
mod certificates;
mod counts;
mod delivery;
mod errors;
mod etcd;
mod failure;
mod functions;
mod group;
mod hostile;
mod launch;
mod membership;
mod naming;
mod proxy;
mod references;
mod refusals;
mod regions;
mod rendezvous;
mod scale;
mod scratch;
mod shared_memory;
mod starving;
mod streams;
mod watching;
mod worker;

use std::sync::{PoisonError, RwLock};

use libtest_mimic::{Arguments, Trial};

pub(crate) use group::{Group, Options};
pub(crate) use scratch::Scratch;

/// Named tests.
pub(crate) type Tests = Vec<(&'static str, fn() -> anyhow::Result<()>)>;

fn main() -> anyhow::Result<()> {
    worker::log_if_asked();
    if worker::is_one() {
        if worker::options()?.watched {
            hostile::honest::watch()?;
        }
        return worker::run();
    }
    let mut arguments = Arguments::from_args();
    // The tests are about time-outs; more of them at once than the machine has cores for would
    // measure the machine.
    arguments.test_threads.get_or_insert(2);
    let mut trials = Vec::new();
    let mut add_to = |tests: Tests, needs: Needs| {
        for (name, test) in tests {
            let run = move || {
                needs
                    .grant(test)
                    .map_err(|error| format!("{error:?}").into())
            };
            trials.push(Trial::test(name, run));
        }
    };
    add_to(scale::tests(), Needs::WholeMachine);
    add_to(starving::tests(), Needs::WholeMachine);
    add_to(hostile::tests(), Needs::WholeMachine);
    let mut add = |tests| add_to(tests, Needs::PartOfMachine);
    add(smoke::tests());
    add(delivery::tests());
    add(references::tests());
    add(failure::tests());
    add(errors::tests());
    add(membership::tests());
    add(watching::tests());
    add(naming::tests());
    add(alarms::tests());
    add(rendezvous::tests());
    add(etcd::tests());
    add(streams::tests());
    add(shared_memory::tests());
    add(regions::tests());
    add(refusals::tests());
    libtest_mimic::run(&arguments, trials).exit()
}

/// How much of the machine a test takes. Beside one that takes all of it others would run out of time.
#[derive(Clone, Copy)]
enum Needs {
    WholeMachine,
    PartOfMachine,
}

impl Needs {
    fn grant<T>(self, test: impl FnOnce() -> T) -> T {
        static MACHINE: RwLock<()> = RwLock::new(());
        match self {
            Self::WholeMachine => {
                let _alone = MACHINE.write().unwrap_or_else(PoisonError::into_inner);
                test()
            }
            Self::PartOfMachine => {
                let _shared = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
                test()
            }
        }
    }
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
