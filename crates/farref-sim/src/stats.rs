//! What simulations did, added up.

use std::ops::AddAssign;

use serde::Serialize;

/// Faults injected, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[allow(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub struct Faults {
    pub frames_lost: u64,
    pub frames_duplicated: u64,
    pub frames_reordered: u64,
    pub connections_cut: u64,
    pub partitions: u64,
    pub stalls: u64,
    pub crashes: u64,
    pub restarts: u64,
    pub leaves: u64,
    pub joins: u64,
    pub evictions: u64,
    pub minorities: u64,
    pub no_room: u64,
    pub unfit_joins: u64,
    pub resignations: u64,
    pub calls_undone: u64,
    pub calls_cancelled: u64,
    pub calls_parked: u64,
}

/// What one run did, or many.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Runs.
    pub seeds: u64,
    /// Events simulated.
    pub steps: u64,
    /// Messages delivered to a worker.
    pub messages: u64,
    /// Of those, control messages.
    pub controls: u64,
    /// Frames put on the network.
    pub frames: u64,
    /// Calls made.
    pub calls: u64,
    /// References created.
    pub references: u64,
    /// References handed on inside calls and answers.
    pub shares: u64,
    /// Values freed.
    pub freed: u64,
    /// Autograd contexts opened.
    pub contexts: u64,
    /// Faults injected.
    pub faults: Faults,
    /// Simulated time, in microseconds.
    pub simulated_micros: u64,
}

macro_rules! add_fields {
    ($($ty:ident { $($field:ident),* $(,)? })*) => {$(
        impl AddAssign for $ty {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    )*};
}

add_fields! {
    Faults {
        frames_lost, frames_duplicated, frames_reordered, connections_cut, partitions, stalls,
        crashes, restarts, leaves, joins, evictions, minorities, no_room,
        unfit_joins, resignations, calls_undone, calls_cancelled, calls_parked,
    }
    Stats {
        seeds, steps, messages, controls, frames, calls, references, shares, freed, contexts,
        faults, simulated_micros,
    }
}
