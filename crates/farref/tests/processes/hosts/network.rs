//! Hosts that are network namespaces of this machine: each has interfaces, addresses and routes of its own, and cables to
//! two switches. Made with `ip` alone, by root.
//!
//! ```text
//!  host 1            host 2            host N
//!  eth0  eth1        eth0  eth1        eth0  eth1      10.77.0.N, fd77::N    10.78.0.N, fd78::N
//!   |     |           |     |           |     |
//!  lan1  san1        lan2  san2        lanN  sanN      a namespace for the switches
//!   +-----|-----------+-----|-----------+-----|----    bridge `lan`
//!         +-----------------+-----------------+----    bridge `san`
//! ```
//!
//! Names have the test process' id in them. What such a process has left behind because it was killed, the next one removes.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

const PREFIX: &str = "farref-test-";

/// Hosts and their switches. Removed when dropped, with all that runs there.
pub(crate) struct Built(pub(crate) Network);

/// What is done to them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Network {
    prefix: String,
    hosts: u8,
}

impl Built {
    pub(crate) fn new(hosts: u8) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{PREFIX}{}-{number}", std::process::id());
        // Whatever goes wrong from here on, what is there is removed.
        let built = Self(Network { prefix, hosts });
        built.0.build()?;
        Ok(built)
    }
}

impl Drop for Built {
    fn drop(&mut self) {
        let hosts = (1..=self.0.hosts).map(|host| self.0.host(host));
        for namespace in hosts.chain([self.0.switches()]) {
            remove(&namespace);
        }
    }
}

impl Network {
    fn build(&self) -> anyhow::Result<()> {
        let switches = self.switches();
        ip(&["netns", "add", &switches])?;
        let mut wiring = String::new();
        for switch in ["lan", "san", "elsewhere"] {
            wiring += &format!("link add {switch} type bridge forward_delay 0 mcast_snooping 0\n");
            wiring += &format!("link set {switch} up\n");
        }
        for n in 1..=self.hosts {
            let host = self.host(n);
            ip(&["netns", "add", &host])?;
            for (switch, interface, byte) in [("lan", "eth0", 0), ("san", "eth1", 1)] {
                let mac = mac(byte, n);
                wiring += &format!(
                    "link add {switch}{n} type veth peer name {interface} address {mac} netns {host}\n"
                );
                wiring += &format!("link set {switch}{n} master {switch} up\n");
            }
        }
        batch(&switches, &wiring)?;
        for n in 1..=self.hosts {
            let settings = format!(
                "link set lo up\n\
                 addr add 10.77.0.{n}/24 dev eth0\n\
                 addr add fd77::{n}/64 dev eth0 nodad\n\
                 link set eth0 up\n\
                 addr add 10.78.0.{n}/24 dev eth1\n\
                 addr add fd78::{n}/64 dev eth1 nodad\n\
                 link set eth1 up\n"
            );
            batch(&self.host(n), &settings)?;
        }
        Ok(())
    }

    fn host(&self, n: u8) -> String {
        format!("{}-{n}", self.prefix)
    }

    fn switches(&self) -> String {
        format!("{}-switches", self.prefix)
    }

    /// This program, on a host. The process that is started becomes it.
    pub(crate) fn command_on(&self, host: u8) -> anyhow::Result<Command> {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.host(host)])
            .arg(std::env::current_exe()?);
        Ok(command)
    }

    /// The address of a host in the first network.
    pub(crate) fn address(&self, host: u8) -> IpAddr {
        Ipv4Addr::new(10, 77, 0, host).into()
    }

    /// In the second one.
    pub(crate) fn second_address(&self, host: u8) -> IpAddr {
        Ipv4Addr::new(10, 78, 0, host).into()
    }

    /// In the first one, by IPv6.
    pub(crate) fn long_address(&self, host: u8) -> IpAddr {
        Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, host.into()).into()
    }

    /// Pulls the cable of a host to the first network, on the switch's side: the host sees that its link is down.
    pub(crate) fn pull(&self, host: u8) -> anyhow::Result<()> {
        batch(&self.switches(), &format!("link set lan{host} down\n"))
    }

    /// Puts it back.
    pub(crate) fn plug(&self, host: u8) -> anyhow::Result<()> {
        batch(&self.switches(), &format!("link set lan{host} up\n"))
    }

    /// A firewall in between takes this host away from the others: what it sends and what is sent to it goes nowhere, and
    /// nobody is told. Its cable is where it was.
    pub(crate) fn shut_off(&self, host: u8) -> anyhow::Result<()> {
        let other_end = format!("link set lan{host} master elsewhere\n");
        batch(&self.switches(), &other_end)
    }

    /// Ends that.
    pub(crate) fn let_through(&self, host: u8) -> anyhow::Result<()> {
        batch(
            &self.switches(),
            &format!("link set lan{host} master lan\n"),
        )
    }

    /// The hosts need not ask which host has an address. Otherwise they would notice by that when it cannot be
    /// reached, and say so, as hosts behind a router do not.
    pub(crate) fn know_each_other(&self) -> anyhow::Result<()> {
        for host in 1..=self.hosts {
            let mut known = String::new();
            for other in (1..=self.hosts).filter(|other| *other != host) {
                let mac = mac(0, other);
                for address in [self.address(other), self.long_address(other)] {
                    known +=
                        &format!("neigh replace {address} lladdr {mac} dev eth0 nud permanent\n");
                }
            }
            batch(&self.host(host), &known)?;
        }
        Ok(())
    }

    /// A firewall on a host drops what it answers to another from one of its ports: the other waits in vain.
    pub(crate) fn drop_from(&self, host: u8, port: u16, to: u8) -> anyhow::Result<()> {
        self.rule("add", host, port, to)
    }

    /// Ends that.
    pub(crate) fn drop_no_more(&self, host: u8, port: u16, to: u8) -> anyhow::Result<()> {
        self.rule("del", host, port, to)
    }

    fn rule(&self, change: &str, host: u8, port: u16, to: u8) -> anyhow::Result<()> {
        let to = self.address(to);
        let rule = format!("rule {change} to {to} ipproto tcp sport {port} blackhole\n");
        batch(&self.host(host), &rule)
    }
}

fn mac(network: u8, host: u8) -> String {
    format!("02:00:00:00:{network:02x}:{host:02x}")
}

/// Whether there can be such hosts here; if not, why not.
pub(crate) fn can_be_built() -> anyhow::Result<()> {
    sweep();
    Built::new(1).map(drop)
}

/// Removes what test processes have left that are no more.
fn sweep() {
    let Ok(names) = std::fs::read_dir("/run/netns") else {
        return;
    };
    for name in names.flatten() {
        let name = name.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        if let Some(owner) = owner
            && !Path::new("/proc").join(owner).exists()
        {
            remove(&name);
        }
    }
}

/// Removes a namespace, with what runs there: a test that was stopped may have left workers.
fn remove(namespace: &str) {
    if let Ok(pids) = ip(&["netns", "pids", namespace]) {
        for pid in pids.lines().filter_map(|pid| pid.trim().parse().ok()) {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
        }
    }
    // There may be none, if it could not be made.
    let _ = ip(&["netns", "del", namespace]);
}

/// Runs several commands of `ip` in a namespace.
fn batch(namespace: &str, commands: &str) -> anyhow::Result<()> {
    let mut command = Command::new("ip");
    command.args(["-n", namespace, "-batch", "-"]);
    run(command, commands).map(drop)
}

fn ip(arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("ip");
    command.args(arguments);
    run(command, "")
}

fn run(mut command: Command, input: &str) -> anyhow::Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting `ip` (Debian: iproute2)")?;
    // It may have ended already, and says why.
    let written = child
        .stdin
        .take()
        .map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    ensure!(
        output.status.success(),
        "{command:?} with {input:?}: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    written.transpose()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
