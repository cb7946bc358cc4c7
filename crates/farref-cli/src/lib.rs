//! The `farref` command, as a library: [`main`] is all of it.
//!
//! | feature | adds |
//! | --- | --- |
//! | `demo` | `farref demo` |
//! | `bench` | `farref bench` |
//! | `chaos` | `farref chaos` |
//! | `cuda` | `farref bench --cuda`; needs CUDA's compiler (`docs/cuda.md`) |
//!
//! The first three train with candle, which is most of what there would be to compile, so none is on by default: who installs the
//! command wants to start programs and to look into them. `cargo run` in the root of the workspace has these three
//! (`crates/farref-whole`).
//!
//! Each subcommand is a module with its `Arguments` and a `run`, which returns the exit code or an
//! error. An error is printed as one line that says what to do; the code is then 2 for a wrong command
//! line (clap's), 1 for everything else.

#![deny(unsafe_code)]

#[cfg(any(test, not(all(feature = "demo", feature = "bench", feature = "chaos"))))]
mod absent;
#[cfg(feature = "bench")]
#[allow(unsafe_code)]
mod allocations;
#[cfg(feature = "bench")]
mod bench;
mod certs;
#[cfg(feature = "chaos")]
mod chaos;
mod dashboard;
#[cfg(feature = "demo")]
mod demo;
#[cfg(any(feature = "demo", feature = "bench", feature = "chaos"))]
mod files;
mod group_folder;
mod group_tls;
mod group_token;
mod inspect;
mod launch;
mod open_files;
#[cfg(any(feature = "demo", feature = "bench", feature = "chaos"))]
mod progress;
mod top;
mod view;

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::dashboard::fuzzing::dashboard_requests;
}

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[cfg(feature = "demo")]
const DEMO: &str = "
  farref demo                                   train over several processes, in half a minute";
#[cfg(not(feature = "demo"))]
const DEMO: &str = "";

/// Far references: start, watch, measure and check programs that span processes.
#[derive(Parser)]
#[command(
    name = "farref",
    version,
    after_help = format!("Examples:{DEMO}
  farref launch -n 4 -- ./train --epochs 3      start four ranks of any program
  farref inspect 127.0.0.1:29500                what the workers of a group hold, once
  farref top 127.0.0.1:29500                    the same, live
  farref dashboard 127.0.0.1:29500              and as a page in a browser
  farref certs init authority                   certificates, for a group that spans machines")
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(feature = "demo")]
    Demo(demo::Arguments),
    #[cfg(not(feature = "demo"))]
    Demo(absent::Arguments),
    Launch(launch::Arguments),
    Inspect(inspect::Arguments),
    Top(top::Arguments),
    Dashboard(dashboard::Arguments),
    Certs(certs::Arguments),
    Simulate(farref_sim::command::Arguments),
    #[cfg(feature = "bench")]
    Bench(bench::Arguments),
    #[cfg(not(feature = "bench"))]
    Bench(absent::Arguments),
    #[cfg(feature = "chaos")]
    Chaos(chaos::Arguments),
    #[cfg(not(feature = "chaos"))]
    Chaos(absent::Arguments),
}

/// Does what the command line of this process says.
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     farref_cli::main()
/// }
/// ```
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        #[cfg(feature = "demo")]
        Command::Demo(arguments) => demo::run(arguments),
        #[cfg(not(feature = "demo"))]
        Command::Demo(_) => absent::run("demo"),
        Command::Launch(arguments) => launch::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Dashboard(arguments) => dashboard::run(arguments),
        Command::Certs(arguments) => certs::run(&arguments),
        Command::Simulate(arguments) => farref_sim::command::run(&arguments),
        #[cfg(feature = "bench")]
        Command::Bench(arguments) => bench::run(arguments),
        #[cfg(not(feature = "bench"))]
        Command::Bench(_) => absent::run("bench"),
        #[cfg(feature = "chaos")]
        Command::Chaos(arguments) => chaos::run(&arguments),
        #[cfg(not(feature = "chaos"))]
        Command::Chaos(_) => absent::run("chaos"),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("farref: {error:#}");
        ExitCode::FAILURE
    })
}
