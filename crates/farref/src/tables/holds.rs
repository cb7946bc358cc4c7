//! Where references that the program of this worker holds came from, and what their types are called.
//!
//! The protocol counts handles; it does not know types' names, source lines or clocks. It keeps a [`HoldRecord`] for
//! each reference that is held, sixteen bytes of its own entry; what that leads to is here, once for all that have it
//! in common.
//!
//! # Invariants
//!
//! - **HO-1** What references that came from others say of their origin is kept once for all that say
//!   the same, and takes no more than [`MAX_RECEIVED`] entries, whatever peers send. So are the lines of programs in another
//!   language.
//! - **HO-2** Names are kept of the types that this program itself has references to, under the fingerprints that it
//!   gives them: what peers call a type, which may stand for many, adds nothing and is called nothing.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use farref_proto::{Fingerprint, NodeId};

use crate::agent::{Origins, SourceLine};
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::tables::place::{self, Told};

/// Where and when a reference came to be held, for leak reports. The first hold on it speaks for all: one line of a
/// report is enough.
#[derive(Clone, Debug)]
pub(crate) struct HoldRecord {
    origin: Arc<Origin>,
    /// In nanoseconds since the worker began: half as large as an instant.
    at: u64,
}

/// Where a hold came from.
#[derive(PartialEq, Eq, Hash, Debug)]
pub(crate) enum Origin {
    /// This line of this program made the reference.
    Here(&'static Location<'static>),
    /// A line of the program that this one drives has.
    Told(Arc<Told>),
    /// It came in a message.
    Received(ReceivedFrom),
    /// There were too many others to keep that of this one.
    Unknown,
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

/// Different origins of received references, and of those of other languages' programs, that are kept at most.
const MAX_RECEIVED: usize = 16 << 10;

type Map<K, T> = HashMap<K, T, crate::support::simulation::RandomState>;

/// What the holds of this worker have in common.
pub(crate) struct Holds {
    origins: Mutex<OriginSet>,
    /// What those types are called that no function of the program returns (HO-2).
    types: RwLock<Map<Fingerprint, &'static str>>,
    began: Instant,
}

/// All origins that differ.
struct OriginSet {
    /// By where the location is: there are not more of them than lines in the program.
    here: Map<usize, Arc<Origin>>,
    /// HO-1
    received: HashSet<Arc<Origin>, crate::support::simulation::RandomState>,
    unknown: Arc<Origin>,
    /// So many are not looked at before it is worth looking again which ones are still in use.
    skip: usize,
}

impl Default for OriginSet {
    fn default() -> Self {
        Self {
            here: Map::default(),
            received: HashSet::default(),
            unknown: Arc::new(Origin::Unknown),
            skip: 0,
        }
    }
}

impl OriginSet {
    fn here(&mut self, location: &'static Location<'static>) -> Arc<Origin> {
        let address = std::ptr::from_ref(location) as usize;
        let known = self.here.entry(address);
        Arc::clone(known.or_insert_with(|| Arc::new(Origin::Here(location))))
    }

    fn received(&mut self, received: ReceivedFrom) -> Arc<Origin> {
        self.kept(Origin::Received(received))
    }

    /// HO-1
    fn kept(&mut self, origin: Origin) -> Arc<Origin> {
        if let Some(known) = self.received.get(&origin) {
            return Arc::clone(known);
        }
        if self.received.len() >= MAX_RECEIVED {
            if self.skip > 0 {
                self.skip -= 1;
                return Arc::clone(&self.unknown);
            }
            self.received.retain(|known| Arc::strong_count(known) > 1);
            self.skip = self.received.len() / 2;
            if self.received.len() >= MAX_RECEIVED {
                return Arc::clone(&self.unknown);
            }
        }
        let origin = Arc::new(origin);
        self.received.insert(Arc::clone(&origin));
        origin
    }
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            origins: Mutex::default(),
            types: RwLock::default(),
            began: Instant::now(),
        }
    }
}

impl Holds {
    fn since_began(&self, at: Instant) -> u64 {
        let at = at.saturating_duration_since(self.began);
        u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Of a reference that this line makes.
    pub(crate) fn made(&self, location: &'static Location<'static>, at: Instant) -> HoldRecord {
        let origin = match place::current() {
            None => lock(&self.origins).here(location),
            Some(told) => lock(&self.origins).kept(Origin::Told(told)),
        };
        HoldRecord {
            origin,
            at: self.since_began(at),
        }
    }

    /// Of so many references that came with a message, in their order: who sent it, the function that it calls, or
    /// whose result it brings.
    pub(crate) fn received(
        &self,
        origins: &Origins,
        count: usize,
        (from, function, returned): (NodeId, &'static str, bool),
        at: Instant,
    ) -> impl Iterator<Item = HoldRecord> {
        let at = self.since_began(at);
        let mut known = lock(&self.origins);
        // Nearly always all of a message are of one line.
        let mut last: Option<(Option<usize>, Arc<Origin>)> = None;
        (0..count).map(move |reference| {
            let line = origins.index_of(reference);
            let origin = match &last {
                Some((same, origin)) if *same == line => Arc::clone(origin),
                _ => known.received(ReceivedFrom {
                    line: line.and_then(|line| origins.lines().get(line)).cloned(),
                    from,
                    function,
                    returned,
                }),
            };
            last = Some((line, Arc::clone(&origin)));
            HoldRecord { origin, at }
        })
    }

    /// When a reference came to be held.
    pub(crate) fn time_of(&self, hold: &HoldRecord) -> Instant {
        self.began + Duration::from_nanos(hold.at)
    }

    /// Keeps what a type is called.
    pub(crate) fn name_type(&self, fingerprint: Fingerprint, name: &'static str) {
        let types = self.types.read().unwrap_or_else(PoisonError::into_inner);
        if types.contains_key(&fingerprint) {
            return;
        }
        drop(types);
        let mut types = self.types.write().unwrap_or_else(PoisonError::into_inner);
        types.insert(fingerprint, name);
    }

    /// What a type is called, if anybody has said.
    pub(crate) fn type_name(&self, fingerprint: Fingerprint) -> Option<&'static str> {
        let types = self.types.read().unwrap_or_else(PoisonError::into_inner);
        types.get(&fingerprint).copied()
    }
}

impl HoldRecord {
    /// The same, of what came from where that one did.
    pub(crate) fn of_origin(self, other: &Self) -> Self {
        Self {
            origin: Arc::clone(&other.origin),
            ..self
        }
    }

    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The line that made the reference, as far as this worker knows.
    pub(crate) fn line(&self) -> Option<SourceLine> {
        match &*self.origin {
            Origin::Here(location) => Some(SourceLine::ours(location)),
            Origin::Told(told) => Some(told.line.clone()),
            Origin::Received(received) => received.line.clone(),
            Origin::Unknown => None,
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
        let first = known.received(received(1));
        assert_ne!(*first, Origin::Unknown);
        let again = known.received(received(1));
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(known.received.len(), 1);

        // Of references that are gone nothing stays that would be in the way of others.
        let most = MAX_RECEIVED as u32;
        for incarnation in 0..4 * most {
            assert_ne!(*known.received(received(incarnation)), Origin::Unknown);
            assert!(known.received.len() <= MAX_RECEIVED);
        }
        let one = Origin::Received(received(1));
        assert!(known.received.contains(&one), "it is in use");

        // Of those that are held, only so many have an origin.
        let held: Vec<_> = (0..2 * most).map(|n| known.received(received(n))).collect();
        assert!(known.received.len() <= MAX_RECEIVED);
        assert!(held.iter().any(|origin| **origin == Origin::Unknown));
    }

    #[test]
    fn a_hold_is_as_old_as_it_is() {
        let holds = Holds::default();
        for since in [0, 1, 999, 1_000_000_007, 86_400_000_000_000] {
            let at = holds.began + Duration::from_nanos(since);
            let hold = holds.made(Location::caller(), at);
            assert_eq!(holds.time_of(&hold), at);
        }
    }
}
