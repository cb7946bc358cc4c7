//! Many references at once, through the runtime: how much memory each takes at its owner and at its holder, and what
//! they cost what is done beside them.

use std::time::Instant;

use super::super::functions::{count_allocations, spent};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::samples::repeat;
use super::super::spent::Spent;
use super::super::transport::Transport;
use super::references::{created, none_left, whole_life};
use crate::allocations;

/// Bytes of a reference, at the owner and at the holder.
const BYTES: f64 = 200.0;
/// Before anything is measured: what grows once has grown.
const WARM_UP: usize = 4096;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    let group = Group::start(transport, 2).await?;
    let owner = &group.peers[0];
    let count = plan.live;
    drop(created(owner, WARM_UP).await?);
    none_left(owner).await?;
    recorder.say("create, fetch and drop beside none");
    let alone = repeat(plan.time, || whole_life(owner)).await?;
    recorder.add(Measurement::times("create_fetch_drop", alone).references(0));

    recorder.say(&format!("creating {count} references"));
    allocations::count(true);
    count_allocations::on(owner, true).await?;
    let (here, there) = (Spent::so_far(), spent::on(owner).await?);
    let began = Instant::now();
    let references = created(owner, count).await?;
    let elapsed = began.elapsed();
    let here = Spent::so_far().since(here);
    let there = spent::on(owner).await?.since(there);
    allocations::count(false);
    count_allocations::on(owner, false).await?;
    let rate = count as f64 / elapsed.as_secs_f64();
    recorder.add(Measurement::rate("creations", "references/s", rate).references(count));
    // The value itself, eight bytes and what surrounds them on the heap, is the owner's too; the program's list of them is
    // the holder's.
    for (name, bytes) in [("owner_memory", there.heap), ("holder_memory", here.heap)] {
        let each = bytes as f64 / count as f64;
        let measured = Measurement::rate(name, "bytes", each).references(count);
        recorder.add(measured.at_most("budget", BYTES, Some(1.0)));
    }

    recorder.say(&format!("create, fetch and drop beside {count}"));
    let beside = repeat(plan.time, || whole_life(owner)).await?;
    recorder.add(
        Measurement::times("create_fetch_drop", beside)
            .references(count)
            .at_most("beside_none", alone.p50, Some(2.0)),
    );

    recorder.say(&format!("dropping {count} references"));
    let began = Instant::now();
    drop(references);
    none_left(owner).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    recorder.add(Measurement::rate("drops", "drops/s", rate).references(count));
    group.end().await
}
