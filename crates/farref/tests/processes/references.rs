//! Guarantees R1-R8: values live exactly as long as somebody holds them.

mod carrying;
mod handing_on;
mod lifetime;
mod making;
mod types;

use anyhow::ensure;
use farref::Peer;
use farref_testkit::eventually_async;

use crate::Tests;
use crate::functions::probes;

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
async fn nothing_is_left(peer: &Peer) -> anyhow::Result<()> {
    eventually_async("all probes are freed", async || {
        Ok(probes::on(peer).await? == 0)
    })
    .await?;
    eventually_async("no reference is left", async || {
        Ok(peer.snapshot().await?.references.is_empty())
    })
    .await
}
