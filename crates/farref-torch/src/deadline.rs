//! Deadlines of what waits for others.

use std::time::Duration;

use tokio::time::Instant;

/// When a time that begins now ends. Callers may mean "never" by a very long one.
pub(crate) fn end_of(patience: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + patience.min(NEVER)
}
