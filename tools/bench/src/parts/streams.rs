//! A stream of small items, beside a bare pipeline of the same frames; and how much memory a slow reader costs the maker.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::{Peer, Streaming};

use super::super::bare_stream::{self, IN_FLIGHT, ITEM};
use super::super::functions::{Item, count_allocations, numbers, spent};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::transport::Transport;

/// Of the rate of bare frames.
const RATE: f64 = 0.7;
/// Items that are read at each look at the maker's memory, while it could make any number.
const SLOW: usize = 100;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    recorder.say(&format!("bare frames, {IN_FLIGHT} under way"));
    let bare = bare_stream::rate(transport.socket(), plan.time).await?;
    recorder.add(
        Measurement::rate("bare_stream", "frames/s", bare)
            .bytes(ITEM)
            .in_flight(IN_FLIGHT),
    );
    let group = Group::start(transport, 2).await?;
    let peer = group.peers[0].clone();
    recorder.say("a stream");
    let (reading, time) = (peer.clone(), plan.time);
    // On a task, as the bare frames are read.
    let rate = tokio::spawn(async move { rate(&reading, time).await }).await??;
    recorder.add(
        Measurement::rate("stream", "items/s", rate)
            .bytes(ITEM)
            .at_least("bare_stream", bare, Some(RATE)),
    );
    recorder.say("a stream with a slow reader");
    let growth = growth(&peer, plan.time).await?;
    recorder.add(
        Measurement::rate("slow_reader_memory", "bytes", growth)
            .bytes(ITEM)
            .at_most("budget", 1e6, Some(1.0)),
    );
    group.end().await
}

async fn rate(peer: &Peer, time: Duration) -> anyhow::Result<f64> {
    let mut stream = numbers::on(peer).await?;
    let (mut count, mut sum) = (0_u64, 0.0);
    let began = Instant::now();
    // One clock read for as many items as the bare frames have one for.
    while count == 0 || began.elapsed() < time {
        for _ in 0..IN_FLIGHT {
            sum += next(&mut stream).await?.0[0];
        }
        count += IN_FLIGHT as u64;
    }
    let elapsed = began.elapsed();
    ensure!(sum > 0.0, "the items are empty");
    Ok(count as f64 / elapsed.as_secs_f64())
}

async fn next(stream: &mut Streaming<Item>) -> anyhow::Result<Item> {
    Ok(stream.next().await.context("the stream has ended")??)
}

/// By how much the maker's heap grows at most from the first item on, while somebody reads slowly.
async fn growth(peer: &Peer, time: Duration) -> anyhow::Result<f64> {
    count_allocations::on(peer, true).await?;
    let mut stream = numbers::on(peer).await?;
    let before = spent::on(peer).await?.heap;
    let began = Instant::now();
    let mut most = 0;
    while most == 0 || began.elapsed() < time {
        for _ in 0..SLOW {
            next(&mut stream).await?;
        }
        most = most.max(spent::on(peer).await?.heap - before);
    }
    drop(stream);
    count_allocations::on(peer, false).await?;
    Ok(most as f64)
}
