//! Calls of the peer, and what it knows of itself.

use std::collections::BTreeMap;
use std::time::Duration;

use farref::{Error, Worker};
use farref_autograd::Candle;
use farref_autograd::engine::Engine;
use farref_torch::{PyCall, PyException, PyValue, py_call};

use super::{me, references};

#[farref::remote(python = "peer_api.call_back")]
async fn call_back(
    worker: String,
    function: String,
    args: Vec<PyValue>,
) -> Result<PyValue, PyException> {
    Ok(py_call(&me().peer(&worker)?, &function, PyValue::Tuple(args)).await?)
}

#[farref::remote(python = "peer_api.caught")]
async fn caught(
    worker: String,
    function: String,
    args: Vec<PyValue>,
    timeout: Option<f64>,
) -> PyValue {
    let outcome = async {
        let call = py_call(&me().peer(&worker)?, &function, PyValue::Tuple(args));
        match timeout {
            Some(seconds) => call.timeout(Duration::from_secs_f64(seconds)).await,
            None => call.await,
        }
    };
    told(outcome.await)
}

#[farref::remote(python = "peer_api.caught_async")]
async fn caught_async(
    worker: String,
    function: String,
    args: Vec<PyValue>,
    timeout: f64,
) -> PyValue {
    let call = PyCall::new(&function, PyValue::Tuple(args)).async_execution();
    let outcome = async {
        let call = call.on(&me().peer(&worker)?);
        call.timeout(Duration::from_secs_f64(timeout)).await
    };
    told(outcome.await)
}

/// How a call ended, as Python is told.
fn told(outcome: farref::Result<PyValue>) -> PyValue {
    let text = |text: &str| PyValue::Text(text.to_owned());
    let entries = match outcome {
        Ok(value) => vec![(text("kind"), PyValue::None), (text("value"), value)],
        Err(error) => {
            let kind = match &error {
                Error::Timeout { .. } => "timeout".to_owned(),
                other => PyException::of(other).map_or_else(
                    || "RuntimeError".to_owned(),
                    |raised| raised.class().to_owned(),
                ),
            };
            vec![
                (text("kind"), PyValue::Text(kind)),
                (text("text"), PyValue::Text(error.to_string())),
            ]
        }
    };
    PyValue::Dict(entries)
}

/// What is in use, as PyTorch counts it, or more strictly: a reference to another worker's value counts as
/// pending as long as it is there.
pub(super) fn snapshot_of(worker: &Worker) -> BTreeMap<String, usize> {
    let snapshot = worker.snapshot();
    let name = worker.name();
    let (owned, others): (Vec<_>, Vec<_>) = snapshot
        .references
        .iter()
        .partition(|reference| reference.owner == name);
    let forks = owned.iter().flat_map(|reference| &reference.holders);
    let counts = Engine::<Candle>::of(worker).counts();
    let calls: usize = snapshot.peers.iter().map(|peer| peer.calls_made).sum();
    [
        ("num_owner_rrefs", owned.len()),
        ("num_forks", forks.filter(|holder| *holder != name).count()),
        ("num_pending_users", others.len()),
        ("num_pending_futures", calls),
        ("num_autograd_contexts", snapshot.contexts as usize),
        ("num_current_backward_passes", counts.passes),
        ("held", references::count()),
    ]
    .map(|(name, count)| (name.to_owned(), count))
    .into()
}

#[farref::remote(python = "peer_api.snapshot")]
async fn snapshot() -> BTreeMap<String, usize> {
    snapshot_of(&me())
}

#[farref::remote(python = "peer_api.workers")]
async fn workers() -> Vec<String> {
    let mut names: Vec<String> = me()
        .peers()
        .iter()
        .map(|peer| peer.name().to_owned())
        .collect();
    names.push(me().name().to_owned());
    names.sort();
    names.dedup();
    names
}

#[farref::remote(python = "peer_api.pid")]
async fn pid() -> u32 {
    std::process::id()
}
