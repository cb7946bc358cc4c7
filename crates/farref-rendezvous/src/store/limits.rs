//! How large keys and values may be in every store, and how long is for ever.

use std::time::Duration;

use tokio::time::Instant;

use super::error::StoreError;

/// The longest key, in bytes. PyTorch's server has the same limit.
pub(crate) const MAX_KEY: usize = 8 << 10;
/// The longest value, in bytes. PyTorch's server has the same limit.
pub(crate) const MAX_VALUE: usize = 8 << 20;
/// The most keys in one request. PyTorch's server has the same limit.
pub(crate) const MAX_KEYS: usize = 128 << 10;

/// When a deadline that begins now ends. Callers may mean "never" by a very long one.
pub(crate) fn end_of(deadline: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + deadline.min(NEVER)
}

/// Refuses what no store would take, before anything is sent.
pub(crate) fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), StoreError> {
    if size > limit {
        return Err(StoreError::TooLarge { what, size, limit });
    }
    Ok(())
}
