//! `farref bench`: what calls and references cost between two processes, beside bare sockets in the same
//! run.
//!
//! A number alone says more about the machine than about farref, so every measurement has a baseline from
//! the same run: the bare socket for calls and bytes, the empty call for references.

mod arguments;
mod bare;
mod calls;
mod peer;
mod report;
mod role;
mod samples;
mod transport;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;

pub(crate) use arguments::Arguments;

use arguments::Transports;
use report::{Measurement, Report, progress};
use samples::Samples;
use transport::Transport;

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
