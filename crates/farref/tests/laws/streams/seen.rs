//! What is seen of streams and lookups from outside, and at an end that waits for them: which they are.

use std::time::Duration;

use anyhow::{Result, ensure};
use farref::{Error, Streaming};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

use super::sources::Channel;
use crate::cluster::start_with_shutdown_timeouts;

const SHORT: Duration = Duration::from_millis(300);

/// Never up in this test.
const LONG: Duration = Duration::from_secs(3600);

#[farref::remote(name = "streams::seen")]
async fn seen() -> Streaming<u64> {
    let (sender, channel) = Channel::new();
    sender.send(1).expect("it is open");
    // It never ends.
    std::mem::forget(sender);
    Streaming::new(channel)
}

/// S1
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_and_a_lookup_are_called_by_their_own_names() -> Result<()> {
    // The reader gives up first: what it waits for is still there then.
    let cluster = start_with_shutdown_timeouts(&[SHORT, LONG]).await?;
    let [reader, maker] = [cluster.worker(0), cluster.worker(1)];
    let peer = reader.peer("worker1")?;
    let mut stream = seen::on(&peer).await?;
    ensure!(stream.next().await.transpose()? == Some(1));
    let lookup = tokio::spawn(peer.lookup::<u64>("late").timeout(None));

    for worker in [reader, maker] {
        let references = worker.snapshot().references;
        let types: Vec<&str> = references.iter().map(|one| &*one.type_name).collect();
        ensure!(types == ["stream of `streams::seen`"], "{types:?}");
    }
    for call in [
        "farref::Streaming::next of `streams::seen`",
        "farref::lookup of `late`",
    ] {
        eventually(call, || {
            let running = maker.snapshot().running;
            running.iter().any(|one| one.function == call)
        })
        .await?;
    }

    // Without the reader nothing is left for the maker to wait for.
    let (ended, other) = tokio::join!(reader.shutdown(), timeout(TEST_TIMEOUT, maker.shutdown()));
    other??;
    match ended {
        Err(Error::ShutdownTimeout { waiting_for, .. }) => {
            let text = waiting_for.join("; ");
            for named in ["the stream of `streams::seen`", "the lookup of `late`"] {
                ensure!(text.contains(named), "{text}");
            }
        }
        other => anyhow::bail!("{other:?}"),
    }
    ensure!(lookup.await?.is_err());
    drop(stream);
    Ok(())
}
