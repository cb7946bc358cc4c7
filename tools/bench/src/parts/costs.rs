//! What a call uses: CPU time and heap allocations, of both processes.

use std::time::Duration;

use farref::Peer;

use super::super::bare::Echo;
use super::super::functions::{count_allocations, done, nothing, spent};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::spent::Spent;
use super::super::transport::Transport;
use super::pipelined::at_once;
use crate::allocations;

/// One at a time, and enough for batches.
const DEPTHS: [usize; 2] = [1, 256];
/// Both sides together.
const ALLOCATIONS: f64 = 6.0;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let mut echo = Echo::start(transport.socket()).await?;
    let mut bare = Vec::new();
    for in_flight in DEPTHS {
        recorder.say(&format!("CPU time of {in_flight} frames at once"));
        let frames = echo.pipelined(in_flight, plan.time).await?;
        bare.push(frames.caller + frames.callee);
        recorder.add(
            Measurement::rate("bare_frame_cpu", "us", frames.caller + frames.callee)
                .in_flight(in_flight),
        );
    }
    drop(echo);

    let group = Group::start(transport, 2).await?;
    let peer = group.peers[0].clone();
    for (in_flight, bare) in DEPTHS.into_iter().zip(bare) {
        recorder.say(&format!("CPU time of {in_flight} calls at once"));
        let used = uses(&peer, in_flight, plan.time).await?;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / used.calls;
        let (caller, callee) = (each(used.caller.cpu), each(used.callee.cpu));
        for (name, value) in [("caller_cpu", caller), ("callee_cpu", callee)] {
            recorder.add(Measurement::rate(name, "us", value).in_flight(in_flight));
        }
        recorder.add(
            Measurement::rate("call_cpu", "us", caller + callee)
                .in_flight(in_flight)
                .at_most("bare_frame_cpu", bare, None),
        );

        // Counting takes time too, so it is not done while time is measured.
        recorder.say(&format!("allocations of {in_flight} calls at once"));
        allocations::count(true);
        count_allocations::on(&peer, true).await?;
        let used = uses(&peer, in_flight, plan.time / 2).await?;
        allocations::count(false);
        count_allocations::on(&peer, false).await?;
        let made = (used.caller.allocations + used.callee.allocations) as f64 / used.calls;
        recorder.add(
            Measurement::rate("call_allocations", "allocations", made)
                .in_flight(in_flight)
                .at_most("budget", ALLOCATIONS, Some(1.0)),
        );
    }
    group.end().await
}

struct Used {
    caller: Spent,
    callee: Spent,
    calls: f64,
}

async fn uses(peer: &Peer, in_flight: usize, time: Duration) -> anyhow::Result<Used> {
    let call = || {
        let peer = peer.clone();
        move || done(nothing::on(&peer))
    };
    at_once(in_flight, time / 10, call()).await?;
    let (here, there) = (Spent::so_far(), spent::on(peer).await?);
    let done = at_once(in_flight, time, call()).await?;
    Ok(Used {
        caller: Spent::so_far().since(here),
        callee: spent::on(peer).await?.since(there),
        calls: done.count as f64,
    })
}
