//! What is too much, whoever says it.

/// The most entries that [`Control::merge`](crate::Control::merge) puts into one message.
pub const MAX_BATCH: usize = 1024;

/// How many workers a group may have had: its view remembers each of them.
pub const MAX_WORKERS: usize = 1 << 20;
