//! Groups on several hosts: cables are pulled, networks split, firewalls drop what passes.
//!
//! Hosts are network namespaces of this machine ([`network`]), which only root can make. Elsewhere
//! the tests are left out, unless `FARREF_REQUIRE_NETNS` is set. Each test has a network of its own,
//! and runs in a process of its own on host 1, where it is the worker `driver`. It starts other
//! workers on the other hosts.

mod cables;
mod firewalls;
mod network;
mod reaching;
mod splits;
mod team;

use std::sync::LazyLock;

use farref_testkit::Requirement;
use libtest_mimic::Trial;

use crate::alone;
use network::{Built, Network};

/// A test and how many hosts it needs.
type Test = (&'static str, u8, fn(&Network) -> anyhow::Result<()>);

/// Has the network of the test that this process runs.
const NETWORK: &str = "FARREF_TEST_NETWORK";

const NAMESPACES: Requirement = Requirement {
    needed: "root and `ip` (Debian: iproute2) for networks of its own",
    variable: "FARREF_REQUIRE_NETNS",
};

pub(crate) fn trials() -> impl Iterator<Item = Trial> {
    let files = [
        reaching::tests(),
        cables::tests(),
        splits::tests(),
        firewalls::tests(),
    ];
    let tests = files.into_iter().flatten();
    tests.map(|(name, hosts, test)| {
        let name = format!("hosts::{name}");
        crate::trial(name.clone(), move || match std::env::var(NETWORK) {
            Ok(network) => test(&serde_json::from_str(&network)?),
            Err(_) => run_on_hosts(&name, hosts),
        })
    })
}

/// Builds the hosts and runs the test on the first of them.
fn run_on_hosts(name: &str, hosts: u8) -> anyhow::Result<()> {
    static MISSING: LazyLock<Option<String>> = LazyLock::new(|| {
        let missing = network::can_be_built().err();
        missing.map(|error| format!("{error:#}"))
    });
    if !NAMESPACES.is_met(MISSING.as_deref())? {
        return Ok(());
    }
    let built = Built::new(hosts)?;
    let mut command = built.0.command_on(1)?;
    command.env(NETWORK, serde_json::to_string(&built.0)?);
    alone::run_with(command, name)
}
