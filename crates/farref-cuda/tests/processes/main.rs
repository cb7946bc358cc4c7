//! A pool's descriptor and real processes: who is given it, and who is not.
//!
//! The pool is of a stand-in machine, in this process. The other process is this program again, told by its environment what to
//! be ([`peer`]). The tests run one after the other: they count the descriptors and threads of the process.

#[cfg(target_os = "linux")]
mod peer;
#[cfg(target_os = "linux")]
mod tests;

#[cfg(target_os = "linux")]
fn main() -> anyhow::Result<()> {
    use libtest_mimic::{Arguments, Trial};

    if peer::is_one() {
        return peer::run();
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = tests::TESTS.iter().map(|&(name, test)| {
        let run = move || tests::leaves_nothing_behind(test).map_err(|error| format!("{error:?}"));
        Trial::test(name, move || Ok(run()?))
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

#[cfg(not(target_os = "linux"))]
fn main() {
    assert!(!farref_cuda::SUPPORTED);
}
