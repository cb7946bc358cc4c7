//! Several calls at once.

use farref::Call;
use serde::de::DeserializeOwned;

use crate::error::Result;

/// Makes all calls now and waits for every one of them, also after one has failed: none is left behind.
pub(crate) async fn await_all<T: DeserializeOwned + 'static>(
    calls: impl Iterator<Item = Call<T>>,
) -> Result<Vec<T>> {
    let pending: Vec<_> = calls.map(Call::start).collect();
    let mut results = Vec::new();
    for call in pending {
        results.push(call.await);
    }
    Ok(results.into_iter().collect::<farref::Result<_>>()?)
}
