//! What is too much, whoever says it.

/// The most entries that [`Control::merge`](crate::Control::merge) puts into one message.
pub const MAX_BATCH: usize = 1024;

/// How many workers a group may have had: its view remembers each of them.
pub const MAX_WORKERS: usize = 1 << 20;

/// How many of its lives a group may have, as a rule: see [`NodeConfig::max_members`](crate::NodeConfig::max_members).
pub(crate) const MAX_MEMBERS: usize = 16_384;

/// How many lives anybody may tell of: see [`NodeConfig::max_lives`](crate::NodeConfig::max_lives).
pub(crate) const MAX_LIVES: usize = 4 * MAX_MEMBERS;

/// How many standings are told at the most to a life that was never heard.
pub(crate) const MAX_UNHEARD: usize = 64;

/// How many forks of one value a peer may have registered at one time. A correct one has one, and perhaps another that it is
/// about to release.
pub(crate) const MAX_FORKS: usize = 64;
