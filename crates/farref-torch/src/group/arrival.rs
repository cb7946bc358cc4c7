//! Being counted: in a group of a fixed size, the PyTorch worker that hosts the store waits until all have
//! come to it before it does anything else.

use std::time::Duration;

use farref::TcpStoreClient;
use tokio::time::{Instant, sleep};

use super::error::GroupError;
use crate::deadline::end_of;
use crate::gloo::GlooDialect;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Counts this worker in, waits until all have come, and says how the ranks of this group find each other.
pub(crate) async fn arrive(
    client: &TcpStoreClient,
    world: u16,
    patience: Duration,
) -> Result<GlooDialect, GroupError> {
    let (began, end) = (Instant::now(), end_of(patience));
    let mut have = client
        .arrive()
        .await
        .map_err(GroupError::store("coming to the store of the group"))?;
    let mut pause = FIRST_PAUSE;
    while have < i64::from(world) {
        if Instant::now() + pause >= end {
            let waited = began.elapsed();
            return Err(GroupError::Absent {
                have,
                world,
                waited,
            });
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        have = client
            .arrivals()
            .await
            .map_err(GroupError::store("waiting for the other workers"))?;
    }
    // A store of farref takes workers of all versions. Which ones they are is known when they are there.
    let dialect = client.clients_dialect().await;
    Ok(dialect
        .map_err(GroupError::store("asking the store who its clients are"))?
        .into())
}
