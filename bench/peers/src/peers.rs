//! What farref is compared with, and the command that measures each.

use std::path::Path;

use anyhow::Context as _;
use tokio::process::Command;

use crate::systems::System;
use crate::transport::Transport;

/// One row of the table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// What `--only` and `--without` call it.
    pub name: &'static str,
    /// Its full name.
    pub title: &'static str,
    /// Through what its processes talk.
    pub over: &'static str,
    /// What farref uses beside it.
    pub beside: Transport,
    program: Program,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Program {
    Rust(System, Transport),
    /// Arguments of `python/measure.py`.
    Python(&'static [&'static str]),
}

const fn rust(name: &'static str, title: &'static str, system: System, over: Transport) -> Peer {
    Peer {
        name,
        title,
        over: match over {
            Transport::Tcp => "TCP",
            Transport::Unix => "Unix socket",
            Transport::Shm => "shared memory",
        },
        beside: over,
        program: Program::Rust(system, over),
    }
}

pub const PEERS: [Peer; 10] = [
    rust("tarpc", "tarpc", System::Tarpc, Transport::Tcp),
    rust("tarpc", "tarpc", System::Tarpc, Transport::Unix),
    rust("tonic", "tonic", System::Tonic, Transport::Tcp),
    rust("tonic", "tonic", System::Tonic, Transport::Unix),
    rust("capnp", "capnp-rpc", System::Capnp, Transport::Tcp),
    rust("capnp", "capnp-rpc", System::Capnp, Transport::Unix),
    Peer {
        name: "torch",
        title: "torch.distributed.rpc",
        over: "TCP",
        beside: Transport::Tcp,
        program: Program::Python(&["torch", "--transport", "tcp"]),
    },
    Peer {
        name: "torch",
        title: "torch.distributed.rpc",
        over: "shared memory",
        beside: Transport::Shm,
        program: Program::Python(&["torch", "--transport", "shm"]),
    },
    Peer {
        name: "ray",
        title: "Ray",
        over: "TCP and shared memory",
        beside: Transport::Shm,
        program: Program::Python(&["ray"]),
    },
    Peer {
        name: "monarch",
        title: "Monarch",
        over: "Unix socket",
        beside: Transport::Unix,
        program: Program::Python(&["monarch"]),
    },
];

impl Peer {
    /// The command that measures it.
    pub fn command(&self, python: Option<&Path>) -> anyhow::Result<Command> {
        match self.program {
            Program::Rust(system, transport) => this_program(system, transport),
            Program::Python(arguments) => {
                let python = python.context("no Python was given")?;
                let script = concat!(env!("CARGO_MANIFEST_DIR"), "/python/measure.py");
                let mut command = Command::new(python);
                command.arg(script).args(arguments);
                Ok(command)
            }
        }
    }
}

/// The command that measures farref.
pub fn farref(transport: Transport) -> anyhow::Result<Command> {
    this_program(System::Farref, transport)
}

fn this_program(system: System, transport: Transport) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["measure", system.name(), "--transport", transport.name()]);
    Ok(command)
}

/// The version that was built, if the system is written in Rust.
pub fn built_version(package: &str) -> Option<&'static str> {
    const LOCK: &str = include_str!("../Cargo.lock");
    let (_, rest) = LOCK.split_once(&format!("name = \"{package}\"\nversion = \""))?;
    rest.split('"').next()
}
