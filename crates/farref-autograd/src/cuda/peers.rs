//! What a worker knows of the devices of others.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farref::context::{Extension, NodeId};
use farref::{Transfer, Worker};
use farref_cuda::ImportedPool;
use serde::{Deserialize, Serialize};

use super::attempt::Attempt;
use super::device_map::{DeviceMap, Target};
use super::kept::Table;
use super::watching::Watcher;
use crate::error::{Error, Result};

/// No host has more devices.
pub(super) const MOST_DEVICES: usize = 64;
/// As many pools as no host has.
const MOST_POOLS: usize = 4096;

/// What a worker knows of the devices of others.
#[derive(Default)]
pub(super) struct Peers {
    /// Its own tensors that others use.
    pub(super) kept: Arc<Table>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By the name of the peer.
    maps: HashMap<Arc<str>, DeviceMap>,
    lives: HashMap<NodeId, Standing>,
    /// The pools of others that are open here.
    pools: HashMap<PoolId, Arc<ImportedPool>>,
    /// How often that has changed.
    changes: u64,
    /// Forgets those who are gone.
    watcher: Option<Watcher>,
}

/// A pool: whose it is, and its number there.
pub(super) type PoolId = (NodeId, u64);

/// The pools of others that a worker has opened, all of them, as it says.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename = "farref_autograd::cuda::Opened")]
pub(super) struct Opened {
    /// What is said later has a higher number.
    change: u64,
    pub(super) pools: Vec<PoolId>,
}

/// How a worker stands to one life of another.
#[derive(Default)]
struct Standing {
    /// How far they are with meeting.
    meeting: Attempt,
    /// The pools that it has opened, of this worker and of others, as it said last.
    opened: HashSet<PoolId>,
    said: u64,
    /// Those whom it was asked to meet.
    acquainted: HashMap<NodeId, Attempt>,
    /// Where it sends tensors of its devices.
    map: DeviceMap,
    /// Whether it is on this host.
    is_near: bool,
}

impl Extension for Peers {}

/// Says where tensors of this worker's CUDA devices arrive on the worker of that name, from now on. Before the two
/// [meet](super::meet), so that the other one knows the way back.
///
/// ```no_run
/// use farref_autograd::cuda::{DeviceMap, map_devices};
///
/// # fn example(me: &farref::Worker) {
/// map_devices(me, "evaluator", DeviceMap::all_to_cpu());
/// # }
/// ```
pub fn map_devices(worker: &Worker, peer: &str, map: DeviceMap) {
    let peers = worker.extension::<Peers>();
    peers.state().maps.insert(Arc::from(peer), map);
}

impl Peers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is said for a peer.
    pub(super) fn map(&self, peer: &str) -> Option<DeviceMap> {
        self.state().maps.get(peer).cloned()
    }

    /// Where tensors of `cuda:here` are to be on a peer.
    pub(super) fn target(&self, transfer: &Transfer, here: u32) -> Target {
        let state = self.state();
        if !state.maps.is_empty()
            && let Some(map) = state.maps.get(transfer.peer().name())
        {
            return map.target(here);
        }
        let standing = state.lives.get(&transfer.life());
        let back = standing.and_then(|standing| standing.map.back(here));
        back.unwrap_or(Target::Cuda(here))
    }

    /// Begins to know a life of a peer, if it is not known: until it is gone (CT-5). Nothing is noted of those who are not known.
    pub(super) fn know(self: &Arc<Self>, worker: &Worker, life: NodeId) {
        let earlier = self.state().begin(life);
        let Some(earlier) = earlier else {
            return;
        };
        // The driver takes its time.
        drop(earlier);
        let gone = worker.peer_of(life).gone();
        let of = worker.downgrade();
        let gone = async move {
            let _ = gone.await;
            of.upgrade().is_some_and(|worker| worker.is_member())
        };
        let mut state = self.state();
        let watcher = state.watcher.get_or_insert_with(|| {
            let peers = Arc::downgrade(self);
            Watcher::start(worker.runtime(), move |life| {
                if let Some(peers) = peers.upgrade() {
                    peers.forget(life);
                }
            })
        });
        watcher.add(life, gone);
    }

    /// Whether a peer has opened a pool.
    pub(super) fn has_opened(&self, life: NodeId, pool: PoolId) -> bool {
        let state = self.state();
        let standing = state.lives.get(&life);
        standing.is_some_and(|standing| standing.opened.contains(&pool))
    }

    /// Notes the pools that a peer says it has opened, in the place of what it has said before.
    pub(super) fn note_opened(&self, life: NodeId, opened: &Opened) -> Result<()> {
        let said = opened.pools.len();
        if said > MOST_POOLS {
            return Err(Error::TooManyPools {
                said,
                limit: MOST_POOLS,
            });
        }
        // What was said earlier may come later.
        if let Some(standing) = self.state().lives.get_mut(&life)
            && standing.said <= opened.change
        {
            standing.said = opened.change;
            standing.opened = opened.pools.iter().copied().collect();
        }
        Ok(())
    }

    /// Whether a peer is known to be on this host.
    pub(super) fn is_near(&self, life: NodeId) -> bool {
        let state = self.state();
        (state.lives.get(&life)).is_some_and(|standing| standing.is_near)
    }

    /// Notes a peer's pools that are open here, its map, and whether it is on this host.
    pub(super) fn note_peer(
        &self,
        life: NodeId,
        map: DeviceMap,
        is_near: bool,
        pools: Vec<(u64, Arc<ImportedPool>)>,
    ) {
        let mut state = self.state();
        let Some(standing) = state.lives.get_mut(&life) else {
            return;
        };
        standing.map = map;
        standing.is_near = is_near;
        let mut room = MOST_DEVICES;
        room = room.saturating_sub(state.pools.keys().filter(|(of, _)| *of == life).count());
        for (number, pool) in pools {
            // CT-4: a pool for each of its devices, however often it introduces itself. What is open stays: tensors are over it.
            if let Entry::Vacant(place) = state.pools.entry((life, number))
                && room > 0
            {
                place.insert(pool);
                room -= 1;
            }
        }
        state.changes += 1;
    }

    /// Looks at how far this worker is with meeting a peer, if that is known.
    pub(super) fn meeting<T>(
        &self,
        life: NodeId,
        look: impl FnOnce(&mut Attempt) -> T,
    ) -> Option<T> {
        let mut state = self.state();
        let standing = state.lives.get_mut(&life)?;
        Some(look(&mut standing.meeting))
    }

    /// The same of a peer that is asked to meet a third one.
    pub(super) fn acquainting<T>(
        &self,
        life: NodeId,
        with: NodeId,
        look: impl FnOnce(&mut Attempt) -> T,
    ) -> Option<T> {
        let mut state = self.state();
        let standing = state.lives.get_mut(&life)?;
        Some(look(standing.acquainted.entry(with).or_default()))
    }

    /// A pool, if it is open here.
    pub(super) fn pool(&self, pool: PoolId) -> Option<Arc<ImportedPool>> {
        self.state().pools.get(&pool).cloned()
    }

    /// All that are open here.
    pub(super) fn opened(&self) -> Opened {
        let state = self.state();
        Opened {
            change: state.changes,
            pools: state.pools.keys().copied().collect(),
        }
    }

    #[cfg(test)]
    pub(super) fn knows(&self, life: NodeId) -> bool {
        self.state().lives.contains_key(&life)
    }

    /// The peer is gone: so is what was open of it, but for what is used.
    fn forget(&self, life: NodeId) {
        let gone = self.state().forget(|other| other == life);
        // The driver takes its time.
        drop(gone);
    }
}

impl State {
    /// Begins to know a life, and returns what was open of earlier ones of the same worker, which are gone then. None if it is known,
    /// or gone itself: a later one is.
    fn begin(&mut self, life: NodeId) -> Option<Vec<(PoolId, Arc<ImportedPool>)>> {
        let is_of_same = |other: NodeId| other.worker == life.worker;
        let mut known = self.lives.keys();
        if known.any(|&known| is_of_same(known) && known.incarnation >= life.incarnation) {
            return None;
        }
        let earlier = self.forget(is_of_same);
        self.lives.insert(life, Standing::default());
        Some(earlier)
    }

    /// Returns what was open of them.
    fn forget(&mut self, is_gone: impl Fn(NodeId) -> bool) -> Vec<(PoolId, Arc<ImportedPool>)> {
        self.lives.retain(|&life, _| !is_gone(life));
        for standing in self.lives.values_mut() {
            standing.opened.retain(|&(owner, _)| !is_gone(owner));
            standing.acquainted.retain(|&owner, _| !is_gone(owner));
        }
        let pools = self.pools.extract_if(|&(owner, _), _| is_gone(owner));
        let pools: Vec<_> = pools.collect();
        if !pools.is_empty() {
            self.changes += 1;
        }
        pools
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NodeId = NodeId::new(0, 1);

    fn said(change: u64, pools: &[PoolId]) -> Opened {
        let pools = pools.to_vec();
        Opened { change, pools }
    }

    fn with(life: NodeId) -> Peers {
        let peers = Peers::default();
        assert!(peers.state().begin(life).is_some());
        peers
    }

    #[test]
    fn what_a_peer_says_takes_the_place_of_what_it_said_before() {
        let (peer, third) = (NodeId::new(1, 1), NodeId::new(2, 1));
        let peers = with(peer);
        peers.note_opened(peer, &said(1, &[(OWN, 7)])).unwrap();
        peers.note_opened(peer, &said(3, &[(third, 8)])).unwrap();
        assert!(peers.has_opened(peer, (third, 8)) && !peers.has_opened(peer, (OWN, 7)));
        // It was said before, and has come only now.
        peers.note_opened(peer, &said(2, &[(OWN, 7)])).unwrap();
        assert!(peers.has_opened(peer, (third, 8)) && !peers.has_opened(peer, (OWN, 7)));
    }

    /// CT-4
    #[test]
    fn a_peer_that_says_too_much_is_refused_and_nothing_of_it_is_kept() {
        let peer = NodeId::new(1, 1);
        let peers = with(peer);
        let mut pools: Vec<_> = (0..MOST_POOLS as u64).map(|pool| (OWN, pool)).collect();
        peers.note_opened(peer, &said(1, &pools)).unwrap();
        assert!(peers.has_opened(peer, (OWN, 0)));
        pools.push((OWN, u64::MAX));
        let refused = peers.note_opened(peer, &said(2, &pools));
        let limit = MOST_POOLS;
        assert!(
            matches!(refused, Err(Error::TooManyPools { said, limit: at }) if said == limit + 1 && at == limit),
            "{refused:?}"
        );
        assert!(!peers.has_opened(peer, (OWN, u64::MAX)));
    }

    /// CT-5
    #[test]
    fn nothing_is_left_of_a_life_that_is_gone_nor_noted_of_it_later() {
        let (gone, other) = (NodeId::new(1, 1), NodeId::new(2, 1));
        let peers = with(gone);
        peers.state().begin(other).unwrap();
        peers
            .note_opened(other, &said(1, &[(gone, 7), (OWN, 8)]))
            .unwrap();
        let begin = |life| peers.meeting(life, |meeting| meeting.begin(1));
        let acquaint = |life, with| peers.acquainting(life, with, |meeting| meeting.begin(1));
        assert_eq!(
            (begin(gone), acquaint(other, gone)),
            (Some(true), Some(true))
        );
        peers.forget(gone);
        assert!(!peers.has_opened(other, (gone, 7)) && peers.has_opened(other, (OWN, 8)));
        peers.note_opened(gone, &said(1, &[(OWN, 8)])).unwrap();
        peers.note_peer(gone, DeviceMap::new(), true, Vec::new());
        assert!(!peers.is_near(gone));
        assert_eq!((begin(gone), acquaint(gone, other)), (None, None));
        assert_eq!(peers.state().lives.len(), 1);
        assert!(peers.state().lives[&other].acquainted.is_empty());
    }

    /// CT-4
    #[test]
    fn no_more_pools_of_a_peer_are_kept_than_it_can_have_devices_and_what_is_open_stays() {
        let machine = farref_cuda::testing::Machine::new(1);
        let options = farref_cuda::PoolOptions::default();
        let opened = [(); 2].map(|()| {
            let (here, there) = (machine.process(), machine.process());
            let pool = farref_cuda::SharedPool::create(there.cuda(), 0, options).unwrap();
            ImportedPool::open(here.cuda(), &pool.ticket()).unwrap()
        });
        let [first, second] = &opened;
        let peer = NodeId::new(1, 1);
        let peers = with(peer);
        let note = |numbers: std::ops::Range<u64>, pool: &Arc<ImportedPool>| {
            let pools = numbers.map(|number| (number, Arc::clone(pool)));
            peers.note_peer(peer, DeviceMap::new(), true, pools.collect());
        };
        note(0..1, first);
        for said in 0..3 {
            note(said * 50..said * 50 + 50, second);
        }
        assert_eq!(peers.state().pools.len(), MOST_DEVICES);
        assert!(Arc::ptr_eq(&peers.pool((peer, 0)).unwrap(), first));
    }

    /// CT-5
    #[test]
    fn a_later_life_takes_the_place_of_an_earlier_one() {
        let [first, second] = [1, 2].map(|incarnation| NodeId::new(1, incarnation));
        let peers = with(first);
        assert!(peers.state().begin(second).is_some());
        assert!(peers.state().begin(first).is_none(), "it is gone");
        assert!(peers.state().begin(second).is_none(), "it is known");
        let state = peers.state();
        let lives: Vec<_> = state.lives.keys().collect();
        assert_eq!(lives, [&second]);
    }
}
