//! Groups on several hosts: cables are pulled, networks split, firewalls drop what passes.
//!
//! Hosts are network namespaces of this machine ([`network`]), which only root can make. Elsewhere the tests say so and pass,
//! unless `FARREF_REQUIRE_NETNS` is set. Each test has a network of its own, and runs in a process of its own on host 1:
//! this same program, told by its environment which test it is. There it is the worker `driver`, and starts others
//! on the other hosts, as in `tests/processes`, with whose workers and functions it shares the files.

#[path = "../certificates/mod.rs"]
#[allow(dead_code, reason = "shared with tests/laws")]
mod certificates;
#[path = "../processes/functions.rs"]
#[allow(dead_code, reason = "shared with tests/processes")]
mod functions;
#[path = "../processes/group.rs"]
#[allow(dead_code, reason = "shared with tests/processes")]
mod group;
#[path = "../processes/launch.rs"]
#[allow(dead_code, reason = "shared with tests/processes")]
mod launch;
#[path = "../processes/proxy.rs"]
#[allow(dead_code, reason = "shared with tests/processes")]
mod proxy;
#[path = "../processes/scratch.rs"]
mod scratch;
#[path = "../processes/worker.rs"]
#[allow(dead_code, reason = "shared with tests/processes")]
mod worker;

mod cables;
mod firewalls;
mod network;
mod reaching;
mod splits;
mod team;

use anyhow::{Context as _, bail, ensure};
use libtest_mimic::{Arguments, Trial};

pub(crate) use group::{Group, Options};
use network::{Built, Network};
pub(crate) use scratch::Scratch;

/// A test and how many hosts it needs.
pub(crate) type Test = (&'static str, u8, fn(&Network) -> anyhow::Result<()>);

/// Says which test this process carries out, and on which network.
const DRIVER: &str = "FARREF_TEST_DRIVER";

fn tests() -> Vec<Test> {
    [
        reaching::tests(),
        cables::tests(),
        splits::tests(),
        firewalls::tests(),
    ]
    .concat()
}

fn main() -> anyhow::Result<()> {
    worker::log_if_asked();
    if worker::is_one() {
        return worker::run();
    }
    if let Ok(driver) = std::env::var(DRIVER) {
        let (name, network): (String, Network) = serde_json::from_str(&driver)?;
        let tests = tests();
        let test = tests.iter().find(|(known, ..)| *known == name);
        let (_, _, test) = test.context("no such test")?;
        return test(&network);
    }
    let mut arguments = Arguments::from_args();
    // As in tests/processes.
    arguments.test_threads.get_or_insert(2);
    let missing = if arguments.list {
        None
    } else {
        network::can_be_built().err()
    };
    let missing = missing.map(|error| format!("{error:#}"));
    let trials = tests().into_iter().map(|(name, hosts, _)| {
        let missing = missing.clone();
        Trial::test(name, move || {
            run(name, hosts, missing).map_err(|error| format!("{error:?}").into())
        })
    });
    libtest_mimic::run(&arguments, trials.collect()).exit()
}

/// Builds the hosts and runs the test on the first of them.
fn run(name: &str, hosts: u8, missing: Option<String>) -> anyhow::Result<()> {
    if let Some(missing) = missing {
        if std::env::var_os("FARREF_REQUIRE_NETNS").is_some() {
            bail!("FARREF_REQUIRE_NETNS is set, and no network can be built: {missing}");
        }
        eprintln!(
            "left out, it needs root and `ip` (Debian: iproute2) to build a network: {missing}"
        );
        return Ok(());
    }
    let built = Built::new(hosts)?;
    let driver = serde_json::to_string(&(name, &built.0))?;
    let output = built.0.command_on(1)?.env(DRIVER, driver).output()?;
    ensure!(
        output.status.success(),
        "{}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
