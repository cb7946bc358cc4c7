//! What references cost, beside an empty call.
//!
//! Three workers: this one creates values on the second and hands references to the third.

use std::time::{Duration, Instant};

use anyhow::ensure;
use farref::{Peer, RRef};

use super::super::functions::{done, nothing, one, take_reference, values_owned};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::role::PATIENCE;
use super::super::samples::{Stopwatch, repeat};
use super::super::transport::Transport;
use super::pipelined::at_once;

/// How many shares are under way at once.
const AT_ONCE: usize = 256;
/// How many are dropped at once.
const DROPPED: usize = 10_000;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let group = Group::start(transport, 3).await?;
    let [owner, third] = &group.peers[..] else {
        anyhow::bail!(
            "three workers were started, and {} came",
            group.peers.len() + 1
        );
    };
    let time = plan.time;
    recorder.say("an empty call");
    let empty = repeat(time, || done(nothing::on(owner))).await?;
    recorder.add(Measurement::times("empty_call", empty));
    let beside_call = |name, times, budget| {
        Measurement::times(name, times).at_most("empty_call", empty.p50, budget)
    };

    recorder.say("create");
    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        let there = one::on(owner).remote();
        there.confirmed().await?;
        watch.record(began.elapsed());
    }
    recorder.add(beside_call("create", watch.finish(), None));

    recorder.say("create, fetch and drop");
    let whole = repeat(time, || whole_life(owner)).await?;
    recorder.add(beside_call("create_fetch_drop", whole, Some(1.5)));

    recorder.say("the owner shares");
    let mine = group.me.rref(1_u64)?;
    let shared = repeat(time, || done(take_reference::on(third, mine.clone())));
    recorder.add(beside_call("share_by_owner", shared.await?, None));
    drop(mine);

    recorder.say("a user shares");
    let held = one::on(owner).remote();
    held.confirmed().await?;
    let shared = repeat(time, || done(take_reference::on(third, held.clone())));
    recorder.add(beside_call("share_by_user", shared.await?, Some(1.2)));

    recorder.say("many calls, then many shares");
    let callee = third.clone();
    let calls = at_once(AT_ONCE, time, move || done(nothing::on(&callee)));
    let calls = calls.await?.rate();
    recorder.add(Measurement::rate("pipelined_calls", "calls/s", calls).in_flight(AT_ONCE));
    let (taker, reference) = (third.clone(), held.clone());
    let shares = at_once(AT_ONCE, time, move || {
        done(take_reference::on(&taker, reference.clone()))
    });
    let shares = shares.await?.rate();
    recorder.add(
        Measurement::rate("pipelined_shares", "shares/s", shares)
            .in_flight(AT_ONCE)
            .at_least("pipelined_calls", calls, None),
    );
    drop(held);

    recorder.say("drop");
    none_left(owner).await?;
    let many = if plan.smoke { DROPPED / 10 } else { DROPPED };
    let references = created(owner, many).await?;
    let began = Instant::now();
    drop(references);
    none_left(owner).await?;
    let drops = many as f64 / began.elapsed().as_secs_f64();
    recorder.add(Measurement::rate("drops", "drops/s", drops).at_least(
        "pipelined_calls",
        calls,
        None,
    ));
    group.end().await
}

/// Of one reference.
pub(super) async fn whole_life(owner: &Peer) -> anyhow::Result<()> {
    let there = one::on(owner).remote();
    ensure!(there.to_here().await? == 1);
    Ok(())
}

/// Values at the owner, with a confirmed reference to each.
pub(super) async fn created(owner: &Peer, count: usize) -> anyhow::Result<Vec<RRef<u64>>> {
    /// How many are under way at once.
    const BATCH: usize = 1024;
    let mut references = Vec::with_capacity(count);
    while references.len() < count {
        let first = references.len();
        let batch = BATCH.min(count - first);
        references.extend((0..batch).map(|_| one::on(owner).remote()));
        for reference in &references[first..] {
            reference.confirmed().await?;
        }
    }
    Ok(references)
}

/// Waits until the owner has freed all values.
pub(super) async fn none_left(owner: &Peer) -> anyhow::Result<()> {
    let began = Instant::now();
    loop {
        let left = values_owned::on(owner).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "{left} values are not freed");
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
}
