//! `farref top`: the workers of a group, live.
//!
//! | part | job |
//! | --- | --- |
//! | [`state`] | what is shown and how keys change it |
//! | [`rates`] | how fast counters grow |
//! | [`screen`] | draws the state |
//! | [`terminal`] | takes the terminal over and gives it back |
//! | [`demo`] | a group to look at |

mod demo;
mod rates;
mod screen;
mod state;
mod terminal;

use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use tokio::sync::mpsc::{self, Receiver};

use state::TopState;
use terminal::Screen;

use crate::view::fetch::{self, Update};
use crate::view::place::{Looking, interval};
use crate::view::text::clean;

/// How long a key may have to wait for what is shown, and the other way round.
const TICK: Duration = Duration::from_millis(50);

/// Shows what running workers hold, do and wait for, live
///
/// Looks at every worker of a group from outside, again and again: nothing is changed, nobody waits.
/// ADDR is where the workers meet, or the address of one of them: host:port, unix:name or file:///path.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref top --demo                             a small group, to try the keys
  farref top 127.0.0.1:29500                    the group that meets there
  farref top 127.0.0.1:29500 --interval 0.2     a closer look

Keys: q quits, Tab or 1 to 4 switch, / asks who keeps a value alive, ? shows all keys")]
pub(crate) struct Arguments {
    /// Where the workers meet, or one of them
    #[arg(value_name = "ADDR", required_unless_present = "demo")]
    address: Option<String>,

    /// Start a small group in this process and look at it
    #[arg(long, conflicts_with = "address")]
    demo: bool,

    /// How often to look: 0.05 to 10
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    interval: Duration,

    #[command(flatten)]
    looking: Looking,
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    ensure!(
        std::io::stdout().is_terminal(),
        "this is no terminal, and `farref top` needs one: use `farref inspect` here"
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let demo = match arguments.demo {
        true => Some(runtime.block_on(demo::Demo::start())?),
        false => None,
    };
    let address = match &demo {
        Some(demo) => demo.place(),
        None => arguments.address.unwrap_or_default(),
    };
    // Before the terminal is taken over: the address may be mistyped.
    let observer = match &demo {
        Some(_) => farref::observe::Observer::new(),
        None => arguments.looking.observer(&address, 10_000)?,
    };
    let group = runtime.block_on(observer.group(&address));
    let group = group.map_err(|error| anyhow::Error::msg(clean(&error.to_string())))?;

    let (sender, mut updates) = mpsc::channel(fetch::WAITING);
    runtime.spawn(fetch::signals(sender.clone()));
    runtime.spawn(fetch::watch(
        observer,
        address.clone(),
        group,
        arguments.interval,
        sender,
    ));
    let shown = show(&address, &mut updates);
    drop(updates);
    if let Some(demo) = demo {
        runtime.block_on(demo.end())?;
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    shown?;
    Ok(ExitCode::SUCCESS)
}

/// Until somebody has seen enough.
fn show(address: &str, updates: &mut Receiver<Update>) -> anyhow::Result<()> {
    let mut screen = Screen::open().context("cannot take over the terminal")?;
    let mut state = TopState::new(address);
    let mut changed = true;
    while !state.is_over() {
        while let Ok(update) = updates.try_recv() {
            state.update(update);
            changed = true;
        }
        if changed {
            screen.draw(&mut state).context("cannot draw")?;
        }
        changed = event::poll(TICK).context("cannot read keys")?;
        if changed
            && let Event::Key(key) = event::read().context("cannot read keys")?
            && key.kind != KeyEventKind::Release
        {
            state.key(key);
        }
    }
    Ok(())
}
