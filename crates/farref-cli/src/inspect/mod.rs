//! `farref inspect`: one look at all workers of a group, printed.
//!
//! | part | job |
//! | --- | --- |
//! | [`report`] | the tables that a person reads |
//! | [`json`] | what a script reads |

mod json;
mod report;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;

use crate::view::place::Looking;
use crate::view::references::By;
use crate::view::seen::Seen;
use crate::view::text::clean;

/// Prints what running workers hold, do and wait for
///
/// Looks once at every worker of a group, from outside: nothing is changed, nobody waits. ADDR is where
/// the workers meet, or the address of one of them: host:port, unix:name or file:///path.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:
  farref inspect 127.0.0.1:29500                    workers, calls, references in groups
  farref inspect 127.0.0.1:29500 --by line          which source lines hold most
  farref inspect 127.0.0.1:29500 --filter Tensor    who keeps these alive, and since which line
  farref inspect 127.0.0.1:29500 --json | jq '.workers[].snapshot.open_calls'",
    after_long_help = "Examples:
  farref inspect 127.0.0.1:29500                    workers, calls, references in groups
  farref inspect 127.0.0.1:29500 --by line          which source lines hold most
  farref inspect 127.0.0.1:29500 --filter Tensor    who keeps these alive, and since which line
  farref inspect 127.0.0.1:29500 --json | jq '.workers[].snapshot.open_calls'

Columns:
  life       which life of this rank: grows with every start
  state      as the other workers see it; with `?` if they do not agree
  open       calls in either direction that are not answered
  ctxs       autograd contexts
  made       calls made since the worker began; served: carried out for others
  queued     bytes and messages that peers have not acknowledged
  held back  calls that wait because the peer has enough to do
  blocking   plain functions that wait for a thread
  got at     the source line where a holder made its reference; `received` if it was sent

The exit code is 0 if all workers have answered, 1 if not."
)]
pub(crate) struct Arguments {
    /// Where the workers meet, or one of them
    #[arg(value_name = "ADDR")]
    address: String,

    /// Print JSON, with the same field names in all versions 0.x
    #[arg(long)]
    json: bool,

    /// Only references whose id, type, owner, holder or source line contains this, with all holders
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,

    /// What to group references by
    #[arg(long, value_enum, default_value_t)]
    by: By,

    /// List every reference with all its holders
    #[arg(long, conflicts_with = "by")]
    references: bool,

    /// List the links between workers
    #[arg(long)]
    links: bool,

    /// Types with their modules, source lines with their columns, nothing cut
    #[arg(long)]
    full: bool,

    #[command(flatten)]
    looking: Looking,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let seen = runtime.block_on(look(&arguments))?;
    let text = match arguments.json {
        true => json::write(&arguments, &seen)?,
        false => report::write(&arguments, &seen, columns(arguments.full)),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // Whoever reads this has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        other => other.context("cannot print what was seen")?,
    }
    Ok(match seen.iter().all(|seen| seen.snapshot.is_ok()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

async fn look(arguments: &Arguments) -> anyhow::Result<Vec<Seen>> {
    let observer = arguments.looking.observer();
    let group = observer.group(&arguments.address).await;
    // What a peer says when it refuses may be part of this.
    let mut group = group.map_err(|error| anyhow::Error::msg(clean(&error.to_string())))?;
    Ok(group.look().await.into_iter().map(Seen::from).collect())
}

/// How wide the output may be.
fn columns(full: bool) -> usize {
    if full {
        return usize::MAX;
    }
    let told = std::env::var("COLUMNS").ok();
    let told = told.and_then(|text| text.parse::<usize>().ok());
    let terminal = || {
        let is_terminal = std::io::stdout().is_terminal();
        let size = is_terminal.then(ratatui::crossterm::terminal::size)?.ok()?;
        (size.0 > 0).then_some(usize::from(size.0))
    };
    terminal().or(told).unwrap_or(100).max(40)
}
