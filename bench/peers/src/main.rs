//! farref beside other RPC systems: the same work, in the same run. `bench/peers/run` builds and starts it;
//! `README.md` says what is compared.

#[rustfmt::skip]
#[allow(clippy::all, clippy::use_self, unused_qualifications)]
mod calls_capnp;
mod compare;
mod measure;
mod pair;
mod peers;
mod process;
mod results;
mod samples;
mod summary;
mod systems;
mod table;
mod transport;

use std::time::Duration;

use clap::Parser;

use systems::System;
use transport::Transport;

#[derive(Parser)]
#[command(about = "farref beside other RPC systems")]
enum Command {
    /// Measures all systems in turns with farref and prints the ratios
    Compare(compare::Arguments),
    /// Measures one system and prints the figures as JSON
    Measure {
        system: System,
        #[arg(long, value_enum, default_value_t = Transport::Tcp)]
        transport: Transport,
        /// How long each measurement takes
        #[arg(long, default_value = "1")]
        seconds: f64,
    },
    /// Is the other process of `measure`
    #[command(hide = true)]
    Serve {
        system: System,
        #[arg(long, value_enum)]
        transport: Transport,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Measure {
            system,
            transport,
            seconds,
        } => {
            process::end_with_parent()?;
            let time = Duration::try_from_secs_f64(seconds)?;
            let results = system.measure(transport, time)?;
            println!("{}", serde_json::to_string(&results)?);
            Ok(())
        }
        Command::Serve { system, transport } => {
            process::end_with_parent()?;
            system.serve(transport)
        }
    }
}
