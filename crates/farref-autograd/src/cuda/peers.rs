//! What a worker knows of the devices of others.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use farref::Transfer;
use farref::context::{Extension, NodeId};
use farref_cuda::ImportedPool;

use super::device_map::{DeviceMap, Target};
use super::kept::Table;

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
}

/// A pool: whose it is, and its number there.
pub(super) type PoolId = (NodeId, u64);

/// How a worker stands to one life of another.
#[derive(Default)]
struct Standing {
    /// Whether they are meeting, or have met.
    has_begun: bool,
    /// The pools that it has opened: of this worker, and of others.
    opened: HashSet<PoolId>,
    /// Those whom it was asked to meet.
    acquainted: HashSet<NodeId>,
    /// Where it sends tensors of its devices.
    map: DeviceMap,
}

impl Extension for Peers {}

impl Peers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_map(&self, peer: &str, map: DeviceMap) {
        self.state().maps.insert(Arc::from(peer), map);
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

    /// Whether a peer has opened a pool.
    pub(super) fn has_opened(&self, life: NodeId, pool: PoolId) -> bool {
        let state = self.state();
        let standing = state.lives.get(&life);
        standing.is_some_and(|standing| standing.opened.contains(&pool))
    }

    /// Notes that a peer has opened these.
    pub(super) fn note_opened(&self, life: NodeId, pools: &[PoolId]) {
        let mut state = self.state();
        state.lives.entry(life).or_default().opened.extend(pools);
    }

    /// Notes a peer's pools that are open here, and its map.
    pub(super) fn note_peer(
        &self,
        life: NodeId,
        map: DeviceMap,
        pools: Vec<(u64, Arc<ImportedPool>)>,
    ) {
        let mut state = self.state();
        let standing = state.lives.entry(life).or_default();
        standing.has_begun = true;
        standing.map = map;
        let pools = pools.into_iter();
        let pools = pools.map(|(number, pool)| ((life, number), pool));
        state.pools.extend(pools);
    }

    /// Whether the two are to meet now: not if they have, or are about to.
    pub(super) fn begin(&self, life: NodeId) -> bool {
        let mut state = self.state();
        let standing = state.lives.entry(life).or_default();
        !std::mem::replace(&mut standing.has_begun, true)
    }

    /// Whether a peer is to be asked to meet a third one: once.
    pub(super) fn begin_acquainting(&self, life: NodeId, with: NodeId) -> bool {
        let mut state = self.state();
        let standing = state.lives.entry(life).or_default();
        standing.acquainted.insert(with)
    }

    /// A pool, if it is open here.
    pub(super) fn pool(&self, pool: PoolId) -> Option<Arc<ImportedPool>> {
        self.state().pools.get(&pool).cloned()
    }

    /// All that are open here.
    pub(super) fn pools(&self) -> Vec<PoolId> {
        self.state().pools.keys().copied().collect()
    }

    /// The peer is gone: so is what was open of it, but for what is used.
    pub(super) fn forget(&self, life: NodeId) {
        let gone: Vec<_> = {
            let mut state = self.state();
            state.lives.remove(&life);
            let pools = state.pools.extract_if(|&(owner, _), _| owner == life);
            pools.collect()
        };
        // The driver takes its time.
        drop(gone);
    }
}
