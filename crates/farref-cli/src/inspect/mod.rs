//! `farref inspect`: one look at all workers of a group, printed.
//!
//! | part | job |
//! | --- | --- |
//! | [`report`] | the tables that a person reads |
//! | [`json`] | what a script reads |

mod arguments;
mod json;
mod report;

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;

pub(crate) use arguments::Arguments;

use crate::view::seen::Seen;
use crate::view::text::clean;

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
    let observer = arguments.looking.observer(&arguments.address, 10_000)?;
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
