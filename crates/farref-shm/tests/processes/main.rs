//! Shared memory between real processes: honest ones, hostile ones, and those that die.
//!
//! The other process is this program again, told by its environment what to be ([`peer`]). The tests run one after the
//! other: they count the descriptors and mappings of the process.

#[cfg(target_os = "linux")]
mod memory;
#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod regions;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    use libtest_mimic::{Arguments, Trial};

    if peer::is_one() {
        return peer::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests = regions::TESTS.iter().chain(memory::TESTS);
    let trials = tests.map(|&(name, test)| {
        let run = move || peer::leaves_nothing_behind(test).map_err(|error| format!("{error:?}"));
        Trial::test(name, move || Ok(run()?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    assert!(!farref_shm::SUPPORTED);
}
