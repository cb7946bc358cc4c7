//! One empty call at a time, beside a bare socket.

use super::super::bare::{self, Echo};
use super::super::functions::{done, nothing, nothing_plain};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::samples::repeat;
use super::super::transport::{Socket, Transport};

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let (time, socket) = (plan.time, transport.socket());
    recorder.say("a bare socket with tokio");
    let mut echo = Echo::start(socket).await?;
    let bare = echo.ping_pong(time).await?;
    recorder.add(Measurement::times("bare_ping_pong", bare));
    let blocking = match socket {
        Socket::Tcp => None,
        Socket::Unix => {
            recorder.say("a bare socket with blocking calls");
            let times = bare::blocking_ping_pong(socket, time).await?;
            recorder.add(Measurement::times("bare_blocking_ping_pong", times));
            Some(times)
        }
    };

    let without_tls = match transport {
        Transport::Tls => {
            recorder.say("an empty call without TLS");
            let group = Group::start(Transport::Tcp, 2).await?;
            let peer = &group.peers[0];
            let times = repeat(time, || done(nothing::on(peer))).await?;
            group.end().await?;
            Some(times)
        }
        _ => None,
    };
    let group = Group::start(transport, 2).await?;
    let peer = &group.peers[0];
    recorder.say("an empty call");
    let empty = repeat(time, || done(nothing::on(peer))).await?;
    recorder.say("an empty call of a plain fn");
    let plain = repeat(time, || done(nothing_plain::on(peer))).await?;
    group.end().await?;

    let (budget, plain_budget) = match transport {
        Transport::Tcp => (Some(1.15), Some(1.6)),
        Transport::Tls => (None, None),
        Transport::Unix | Transport::Shm => (Some(1.3), None),
    };
    for (name, times, budget) in [
        ("empty_call", empty, budget),
        ("plain_fn_call", plain, plain_budget),
    ] {
        let mut measured =
            Measurement::times(name, times).at_most("bare_ping_pong", bare.p50, budget);
        if let Some(blocking) = blocking {
            let budget = (name == "empty_call").then_some(2.0);
            measured = measured.at_most("bare_blocking_ping_pong", blocking.p50, budget);
        }
        if let Some(without) = without_tls
            && name == "empty_call"
        {
            measured = measured.at_most("without_tls", without.p50, Some(1.3));
        }
        recorder.add(measured);
    }
    Ok(())
}
