//! Runs of one job in one store: whose keys are whose, and which run is the latest.
//!
//! A launcher that restarts all workers, or keeps one store for many jobs, names each run. Their keys
//! are kept apart by a prefix; a key beside them names the run that joined last, for those who come to
//! look.

use std::sync::Arc;

use super::card::Card;
use super::records::GroupRecords;
use crate::error::RendezvousError;
use crate::store::Store;

/// All keys of farref start with this.
const ROOT: &str = "farref";

/// What the keys of a run's group start with.
pub fn key_prefix(run: Option<&str>) -> String {
    match run {
        Some(run) => format!("{ROOT}/{run}"),
        None => ROOT.to_owned(),
    }
}

/// Says that this run is the latest. A store that does not take it is found out about soon enough.
pub async fn announce_run(store: &dyn Store, run: &str) {
    if let Err(error) = store.set(&latest_run(), run.as_bytes()).await {
        tracing::debug!(%error, "the store does not take the name of the run");
    }
}

/// The latest cards of all workers of the latest group that met in a store. None if none ever did.
pub async fn latest_group(store: Arc<dyn Store>) -> Result<Option<Vec<Card>>, RendezvousError> {
    let root = GroupRecords::new(Arc::clone(&store), key_prefix(None));
    let run = root.text(&latest_run()).await?;
    let records = GroupRecords::new(store, key_prefix(run.as_deref()));
    match records.kind().await? {
        Some(kind) => records.latest_cards(kind).await.map(Some),
        None => Ok(None),
    }
}

fn latest_run() -> String {
    format!("{ROOT}/run")
}
