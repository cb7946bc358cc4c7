//! `farref bench`: what calls and references cost between two processes, beside bare sockets in the same
//! run.
//!
//! A number alone says more about the machine than about farref, so every measurement has a baseline from
//! the same run: the bare socket for calls and bytes, the empty call for references.

mod bare;
mod calls;
mod peer;
mod report;
mod samples;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use serde::Serialize;

use peer::Role;
use report::{Measurement, Report};
use samples::Samples;

/// How large the large message is.
const BULK: usize = 64 << 20;

/// Measures calls and references between two processes, beside a bare socket
///
/// Starts a second process on this machine and measures empty calls, many calls at once, references and
/// 64 MiB messages, and in the same run what the bare socket below does. The ratios are what to look at:
/// the times depend on the machine and on what else it does.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref bench                                  everything, half a minute
  farref bench --transport unix --seconds 10    one transport, longer and steadier
  farref bench --json > before.json             for a script")]
pub(crate) struct Arguments {
    /// Over which sockets
    #[arg(long, value_enum, default_value_t = Transports::Both)]
    transport: Transports,

    /// How long each measurement takes
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    seconds: Duration,

    /// Only see that every measurement works; the numbers mean little
    #[arg(long, conflicts_with = "seconds")]
    quick: bool,

    /// Print the results as JSON
    #[arg(long)]
    json: bool,

    /// Be the other end
    #[arg(long, hide = true, value_name = "ROLE")]
    peer: Option<Role>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Transports {
    Tcp,
    Unix,
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Tcp,
    Unix,
}

impl Transport {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number of seconds from 0.01 to 3600".to_owned();
    let number = text.parse::<f64>().map_err(|_| wrong())?;
    match (0.01..=3600.0).contains(&number) {
        true => Ok(Duration::from_secs_f64(number)),
        false => Err(wrong()),
    }
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    // Two threads, as a small program of farref would have.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    if let Some(role) = arguments.peer {
        runtime.block_on(role.play())?;
        return Ok(ExitCode::SUCCESS);
    }
    let time = match arguments.quick {
        true => Duration::from_millis(50),
        false => arguments.seconds,
    };
    let transports: &[Transport] = match arguments.transport {
        Transports::Tcp => &[Transport::Tcp],
        Transports::Unix => &[Transport::Unix],
        Transports::Both => &[Transport::Tcp, Transport::Unix],
    };
    let mut report = Report::new(time);
    if report.is_development_build() {
        progress("this is a development build: a release build is faster");
    }
    for transport in transports {
        runtime.block_on(measure(*transport, time, &mut report))?;
    }
    let text = match arguments.json {
        true => serde_json::to_string_pretty(&report)? + "\n",
        false => report.to_string(),
    };
    let mut stdout = std::io::stdout();
    stdout
        .write_all(text.as_bytes())
        .context("cannot print the results")?;
    Ok(ExitCode::SUCCESS)
}

async fn measure(transport: Transport, time: Duration, report: &mut Report) -> anyhow::Result<()> {
    let name = transport.name();
    let (ping_pong, budget) = match transport {
        Transport::Tcp => (bare::tcp_ping_pong(time).await, 1.5),
        Transport::Unix => (bare::unix_ping_pong(time).await, 2.0),
    };
    let ping_pong = ping_pong.with_context(|| format!("cannot measure a bare {name} socket"))?;
    let bulk = bare::bulk(transport, time).await;
    let bulk = bulk.with_context(|| format!("cannot measure a bare {name} socket"))?;
    let measured = calls::measure(transport, time).await;
    let measured = measured.with_context(|| format!("cannot measure calls over {name}"))?;

    let times = |what, samples: &Samples| Measurement::times(what, transport, samples);
    let rate = |what, unit, value| Measurement::rate(what, transport, unit, value);
    let beside_bare = |what, samples: &Samples| {
        times(what, samples).against("bare_ping_pong", samples.p50() / ping_pong.p50())
    };
    let beside_call = |what, samples: &Samples| {
        times(what, samples).against("empty_call", samples.p50() / measured.empty.p50())
    };
    let (bare_speed, speed) = (
        bulk.gigabytes_per_second(),
        measured.bulk.gigabytes_per_second(),
    );
    report.add(times("bare_ping_pong", &ping_pong));
    report.add(rate("bare_64mib", "GB/s", bare_speed));
    report.add(beside_bare("empty_call", &measured.empty).budget(budget));
    report.add(beside_bare("plain_fn_call", &measured.plain));
    report.add(beside_call("hand_on_reference", &measured.handed_on));
    report.add(beside_call("create_fetch_drop", &measured.created));
    report.add(rate("pipelined_calls", "calls/s", measured.pipelined));
    report.add(rate("blob_64mib", "GB/s", speed).against("bare_64mib", speed / bare_speed));
    Ok(())
}

fn progress(text: &str) {
    eprintln!("farref bench: {text}");
}
