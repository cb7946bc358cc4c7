//! Guarantees R1-R8: values live exactly as long as somebody holds them.

mod carrying;
mod handing_on;
mod lifetime;
mod making;
mod types;

use anyhow::ensure;
use farref::Peer;

use crate::Tests;
use crate::functions::probes;
use crate::group::Group;

pub(crate) fn tests() -> Tests {
    let files = [
        lifetime::tests(),
        handing_on::tests(),
        carrying::tests(),
        making::tests(),
        types::tests(),
    ];
    files.into_iter().flatten().collect()
}

/// So many probes live on a worker.
async fn live(peer: &Peer, expected: u64) -> anyhow::Result<()> {
    let found = probes::on(peer).await?;
    ensure!(found == expected, "{found} probes live, not {expected}");
    Ok(())
}

/// In the end no probe lives on a worker, and it knows of no reference.
async fn nothing_is_left(group: &Group, peer: &Peer) -> anyhow::Result<()> {
    group
        .eventually("all probes are freed", async || {
            Ok(probes::on(peer).await? == 0)
        })
        .await?;
    group
        .eventually("no reference is left", async || {
            Ok(peer.snapshot().await?.references.is_empty())
        })
        .await
}
