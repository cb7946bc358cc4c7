//! The command line of the demo.

use std::path::PathBuf;

use clap::ValueEnum;

/// The demo of farref.
#[derive(clap::Parser)]
#[command(name = "farref-demo", version)]
pub(super) struct CommandLine {
    #[command(subcommand)]
    pub(super) command: Command,
}

/// There is one, so that `cargo run -- demo` reads well.
#[derive(clap::Subcommand)]
pub(super) enum Command {
    Demo(Arguments),
}

/// Trains a classifier over several processes on this machine, and shows what became of every reference
///
/// Parameter owners hold the parts of a model; trainers hold the data and references to the parts. Each
/// step sends half of a batch through every trainer, over the parts of the model, and gradients back the
/// same way. The same training in one process has to come to the same loss.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  cargo run --release -- demo               two owners, two trainers, 400 steps
  cargo run --release -- demo --kill-one    kills a trainer on the way; the loss stays the same
  cargo run --release -- demo --html demo.html   the loss curve and the regions as a page
  cargo run --release -- demo --owners 3 --trainers 4 --transport tcp
  cargo run --release -- demo --steps 100000     long enough to look on with `farref top`")]
pub(super) struct Arguments {
    /// How many workers hold parts of the model
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) owners: u32,

    /// How many workers train
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub(super) trainers: u32,

    /// How many steps to train for
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub(super) steps: u32,

    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Transport::Unix)]
    pub(super) transport: Transport,

    /// Kill a trainer (SIGKILL) in the middle of the training
    #[arg(long)]
    pub(super) kill_one: bool,

    /// Where the random numbers start: data, weights and batches
    #[arg(long, default_value_t = 7)]
    pub(super) seed: u64,

    /// Write a page with the loss curve and the regions
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// This process is one of the workers
    #[arg(long, hide = true)]
    pub(super) worker: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Transport {
    /// Unix sockets
    Unix,
    /// TCP over the loopback interface
    Tcp,
}
