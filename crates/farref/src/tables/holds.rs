//! References that the program of this worker holds, where it got them, and for how long.
//!
//! The protocol counts handles; it does not know types' names, source lines or clocks. This list does.
//! One entry per hold, sharded so that creating and dropping references of different ids does not meet
//! in one lock.
//!
//! # Invariants
//!
//! - **HO-1** What references that came from others say of their origin is kept once for all that say
//!   the same, and takes no more than [`MAX_RECEIVED`] entries, whatever peers send.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use farref_proto::{NodeId, RRefId};

use crate::agent::{Origins, SourceLine};
use crate::support::lock::lock;

const SHARDS: usize = 16;

/// Where and when a hold came to be, for leak reports.
#[derive(Clone, Debug)]
pub(crate) struct HoldRecord {
    pub(crate) type_name: &'static str,
    pub(crate) origin: Origin,
    pub(crate) at: Instant,
}

/// Where a hold came from.
#[derive(Clone, Debug)]
pub(crate) enum Origin {
    /// This line of this program made the reference.
    Here(&'static Location<'static>),
    /// It came in a message.
    Received(Arc<ReceivedFrom>),
    /// There were too many others to keep that of this one.
    Unknown,
}

/// Different origins that are kept at most.
const MAX_RECEIVED: usize = 16 << 10;

type Shard = HashMap<RRefId, HeldReference, foldhash::fast::RandomState>;

/// Where the holds of this worker came from.
pub(crate) struct Holds {
    shards: [Mutex<Shard>; SHARDS],
    received: Mutex<OriginSet>,
    began: Instant,
}

/// The oldest hold on a reference speaks for all: one line of a report is enough.
struct HeldReference {
    type_name: &'static str,
    origin: Origin,
    /// In nanoseconds since the worker began: half as large as an instant.
    at: u64,
    holds: u32,
}

/// How references came to this worker.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) struct ReceivedFrom {
    /// The line that made them, if it came along.
    pub(crate) line: Option<SourceLine>,
    /// Who handed them on.
    pub(crate) from: NodeId,
    /// The function that they were handed to, or that returned them.
    pub(crate) function: &'static str,
    pub(crate) returned: bool,
}

/// All that differ (HO-1).
#[derive(Default)]
struct OriginSet {
    all: HashSet<Arc<ReceivedFrom>, foldhash::fast::RandomState>,
    /// So many are not looked at before it is worth looking again which ones are still in use.
    skip: usize,
}

impl OriginSet {
    fn intern(&mut self, received: ReceivedFrom) -> Option<Arc<ReceivedFrom>> {
        if let Some(known) = self.all.get(&received) {
            return Some(Arc::clone(known));
        }
        if self.all.len() >= MAX_RECEIVED {
            if self.skip > 0 {
                self.skip -= 1;
                return None;
            }
            self.all.retain(|known| Arc::strong_count(known) > 1);
            self.skip = self.all.len() / 2;
            if self.all.len() >= MAX_RECEIVED {
                return None;
            }
        }
        let received = Arc::new(received);
        self.all.insert(Arc::clone(&received));
        Some(received)
    }
}

/// The origins of the references that came with one message.
pub(crate) struct Sources<'a> {
    origins: &'a Origins,
    /// For each line of it, and at last for those that have none.
    received: Vec<Option<Arc<ReceivedFrom>>>,
}

impl Sources<'_> {
    /// The origin of the reference with this number.
    pub(crate) fn of(&self, reference: usize) -> Origin {
        let index = self.origins.index_of(reference);
        let known = index.and_then(|index| self.received.get(index));
        match known.or_else(|| self.received.last()) {
            Some(Some(received)) => Origin::Received(Arc::clone(received)),
            _ => Origin::Unknown,
        }
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            received: Mutex::default(),
            began: Instant::now(),
        }
    }
}

impl Holds {
    fn shard(&self, rref: RRefId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[rref.counter as usize % SHARDS])
    }

    pub(crate) fn insert(&self, rref: RRefId, made: HoldRecord) {
        let at = made.at.saturating_duration_since(self.began);
        self.shard(rref)
            .entry(rref)
            .or_insert_with(|| HeldReference {
                type_name: made.type_name,
                origin: made.origin,
                at: u64::try_from(at.as_nanos()).unwrap_or(u64::MAX),
                holds: 0,
            })
            .holds += 1;
    }

    pub(crate) fn remove(&self, rref: RRefId) {
        let mut shard = self.shard(rref);
        if let Some(entry) = shard.get_mut(&rref) {
            entry.holds -= 1;
            if entry.holds == 0 {
                shard.remove(&rref);
            }
        }
    }

    /// Whoever reads a reference out of a message knows its type.
    pub(crate) fn describe(&self, rref: RRefId, type_name: &'static str) {
        if let Some(entry) = self.shard(rref).get_mut(&rref)
            && entry.type_name.is_empty()
        {
            entry.type_name = type_name;
        }
    }

    pub(crate) fn made(&self, rref: RRefId) -> Option<HoldRecord> {
        let shard = self.shard(rref);
        let entry = shard.get(&rref)?;
        Some(HoldRecord {
            type_name: entry.type_name,
            origin: entry.origin.clone(),
            at: self.began + Duration::from_nanos(entry.at),
        })
    }

    /// The line that made a reference, as far as this worker knows.
    pub(crate) fn line(&self, rref: RRefId) -> Option<SourceLine> {
        match &self.shard(rref).get(&rref)?.origin {
            Origin::Here(location) => Some(SourceLine::ours(location)),
            Origin::Received(received) => received.line.clone(),
            Origin::Unknown => None,
        }
    }

    /// What is to be kept of where the references of a message come from.
    pub(crate) fn sources<'a>(
        &self,
        origins: &'a Origins,
        from: NodeId,
        function: &'static str,
        returned: bool,
    ) -> Sources<'a> {
        let mut known = lock(&self.received);
        let lines = origins.lines().iter().cloned().map(Some).chain([None]);
        let received = lines.map(|line| {
            known.intern(ReceivedFrom {
                line,
                from,
                function,
                returned,
            })
        });
        Sources {
            received: received.collect(),
            origins,
        }
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holds")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(incarnation: u32) -> ReceivedFrom {
        ReceivedFrom {
            line: None,
            from: NodeId::new(1, incarnation),
            function: "f",
            returned: false,
        }
    }

    /// HO-1
    #[test]
    fn ho_1_equal_origins_are_kept_once_and_different_ones_have_a_bound() {
        let mut known = OriginSet::default();
        let first = known.intern(received(1));
        assert!(first.is_some());
        let again = known.intern(received(1));
        assert!(first.as_ref().map(Arc::as_ptr) == again.as_ref().map(Arc::as_ptr));
        assert_eq!(known.all.len(), 1);

        // Of references that are gone nothing stays that would be in the way of others.
        let most = MAX_RECEIVED as u32;
        for incarnation in 0..4 * most {
            assert!(known.intern(received(incarnation)).is_some());
            assert!(known.all.len() <= MAX_RECEIVED);
        }
        assert!(known.all.contains(&received(1)), "it is in use");

        // Of those that are held, only so many have an origin.
        let held: Vec<_> = (0..2 * most).map(|n| known.intern(received(n))).collect();
        assert!(known.all.len() <= MAX_RECEIVED);
        assert!(held.iter().any(Option::is_none));
    }
}
