//! Room on the stack: candle walks and drops its graph by recursion, one call per node, and a graph of
//! a hundred thousand nodes needs some 25 MiB.

/// Enough for a million nodes. Only what is touched takes memory.
const ROOM: usize = 256 << 20;

/// Runs something that recurses over a graph.
pub(crate) fn with_room<T>(work: impl FnOnce() -> T) -> T {
    stacker::maybe_grow(ROOM / 2, ROOM, work)
}
