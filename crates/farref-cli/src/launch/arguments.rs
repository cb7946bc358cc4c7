//! The command line of `farref launch`.

use std::ffi::OsString;
use std::time::Duration;

use clap::ValueEnum;

use super::output::Color;

/// Starts N copies of a program as the ranks of one group, and watches over them
///
/// Every rank finds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR and
/// MASTER_PORT in its environment, as torchrun sets them, so programs of farref and of PyTorch work
/// unchanged. Its output appears line by line behind its name or rank. When a rank fails, the others are
/// stopped, and the exit code is that of the rank that failed first.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref launch -n 4 -- ./train --epochs 3
      four ranks on this machine
  farref launch --names ps,trainer0,trainer1 -- ./train
      three ranks with names (FARREF_NAME)
  farref launch -n 8 --names 'ps,trainer{rank}' -- ./train
      the last name is a pattern for all ranks that are left: ps, trainer1, ..., trainer7
  farref launch -n 4 --restarts 3 -- ./train
      a rank that fails comes back, up to three times; the others go on
  farref launch -n 4 --restarts 3 --restart all -- python3 train.py
      all ranks start afresh when one fails, as torchrun does it
  farref launch -n 4 --torch -- python3 train.py --epochs 3
      a program of torch.distributed.rpc, unchanged, on farref (needs its Python package)
  farref launch -n 4 --tls -- ./train
      what goes over TCP is encrypted; ranks on one host talk over Unix sockets unless the program says otherwise
  farref launch -n 8 --nnodes 2 --node-rank 0 --rendezvous host0:29500 -- ./train
  farref launch -n 8 --nnodes 2 --node-rank 1 --rendezvous host0:29500 -- ./train
      sixteen ranks on two hosts; the first command runs on host0

Signals: SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on and end the run; whoever is still there after
--grace seconds, or at the second Ctrl-C, is killed. SIGUSR1 and SIGUSR2 are passed on.")]
pub(crate) struct Arguments {
    /// How many ranks to start on this node [default: as many as there are names]
    #[arg(short = 'n', long = "nproc", value_name = "N")]
    pub(super) ranks: Option<u32>,

    /// Names of all ranks, separated by commas; `{rank}` in the last one makes it a pattern for the rest
    #[arg(long, value_name = "NAMES")]
    pub(super) names: Option<String>,

    /// How often a rank (with `--restart all`: the group) is started again after a failure
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(super) restarts: u32,

    /// Whom to start again when a rank fails
    #[arg(long, value_enum, default_value_t = Restart::Failed)]
    pub(super) restart: Restart,

    /// How long ranks may take to end after a signal, before they are killed
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(super) grace: Duration,

    /// How many nodes (hosts) the group spans, with one launcher on each
    #[arg(long, value_name = "M", default_value_t = 1)]
    pub(super) nnodes: u32,

    /// Which node this is, from 0
    #[arg(long, value_name = "R")]
    pub(super) node_rank: Option<u32>,

    /// Where the ranks meet; the launcher of node 0 listens there [default on one node: a free port]
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) rendezvous: Option<String>,

    /// The program is one of torch.distributed.rpc, and is to run on farref: `python train.py` is started as
    /// `python -m farref.torch train.py`. Needs farref's Python package
    #[arg(long)]
    pub(super) torch: bool,

    /// Encrypt what ranks say to each other over TCP: makes an authority for this run, and a certificate for each rank
    /// with its name (`worker0`, .., or that of --names). Ranks on one host talk over Unix sockets, which the system protects
    /// by user, unless the program turns those off. On one node only
    #[arg(long)]
    pub(super) tls: bool,

    /// The same for a program that chooses its names itself: certificates for any name
    #[arg(long)]
    pub(super) tls_any_name: bool,

    /// When to colour the names in front of the lines
    #[arg(long, value_enum, default_value_t = Color::Auto)]
    pub(super) color: Color,

    /// Become the program, tied to the life of this parent
    #[arg(long, hide = true, value_name = "PID")]
    pub(super) tethered_to: Option<u32>,

    /// The program and its arguments, behind `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub(super) program: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Restart {
    /// The rank that failed: the others go on, which farref's workers can
    Failed,
    /// All ranks, under a new run id, as torchrun does
    All,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number of seconds, such as 10 or 0.5".to_owned();
    let number = text.parse::<f64>().map_err(|_| wrong())?;
    // A deadline far in the future must not overflow the clock.
    match Duration::try_from_secs_f64(number) {
        Ok(duration) if number <= 1e9 => Ok(duration),
        _ => Err(wrong()),
    }
}
