//! What the agent and its tasks share.
//!
//! | part | job |
//! | --- | --- |
//! | [`ids`] | PyTorch's names for workers, references, contexts and types, and the runtime's |
//! | [`links`] | what there is with each peer |
//! | [`load`] | how much of a peer's is open, and when no more is read |
//! | [`accepted_pipes`] | pipes that peers have opened |
//! | [`gatherings`] | who has come to which gathering, and who is gone |
//! | [`removals`] | workers that are being taken off the list |
//! | [`ending`] | which kind of group it is, and how far this worker has come with its end |

pub(super) mod accepted_pipes;
pub(super) mod ending;
pub(super) mod gatherings;
pub(super) mod ids;
pub(super) mod links;
pub(super) mod load;
pub(super) mod removals;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};

use farref::agent::{Inbound, NodeId};
use farref::functions::Functions;
use farref::{CodecError, Payload, StoreServer, ValueCodec, WeakWorker};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

use accepted_pipes::Unclaimed;
use ending::{GroupKind, Progress};
use gatherings::Gatherings;
use ids::{Incarnations, Types};
use links::{Link, MessageIds, lock};
use removals::Removals;

use crate::group::{GroupStore, Member};
use crate::transport::Limits;
use crate::value::{Arrivals, PickleCodec};

/// Numbers of recorded messages without tensors begin here, so that they are none of the runtime's.
const UNRECORDED: u64 = 1 << 40;

/// What the agent is made of.
pub(crate) struct Parts {
    pub(crate) id: u16,
    pub(crate) name: String,
    /// The others.
    pub(crate) members: Vec<Member>,
    pub(crate) limits: Limits,
    pub(crate) group_store: Arc<GroupStore>,
    pub(crate) group_kind: GroupKind,
    pub(crate) functions: Functions,
    /// The group's store, if this worker hosts it.
    pub(crate) server: Option<StoreServer>,
}

/// What the agent and its tasks share.
pub(crate) struct AgentShared {
    pub(super) me: u16,
    pub(super) name: String,
    pub(super) inbound: Weak<dyn Inbound>,
    pub(super) functions: Functions,
    pub(super) arrivals: Arc<Arrivals>,
    pub(super) incarnations: Incarnations,
    pub(super) types: Types,
    pub(super) ids: MessageIds,
    pub(super) unrecorded: AtomicU64,
    pub(super) limits: Limits,
    pub(super) members: RwLock<Members>,
    pub(super) unclaimed: Unclaimed,
    pub(super) gatherings: Gatherings,
    pub(super) removals: Removals,
    pub(super) group_store: Arc<GroupStore>,
    pub(super) group_kind: GroupKind,
    pub(super) ending: tokio::sync::Mutex<Progress>,
    /// All have counted out: from here on whoever is through closes its pipes (TA-7).
    pub(super) parting: AtomicBool,
    /// From here on pipes that break mean nothing.
    pub(super) closing: AtomicBool,
    /// Where tasks run. Messages are queued by any thread, also by one that belongs to no runtime (TA-6).
    pub(super) runtime: Handle,
    pub(super) tasks: Mutex<JoinSet<()>>,
    pub(super) writers: Mutex<JoinSet<()>>,
    pub(super) worker: OnceLock<WeakWorker>,
    pub(super) server: Mutex<Option<StoreServer>>,
}

/// Who is in the group.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) by_node: HashMap<NodeId, Arc<Link>>,
    pub(super) by_name: HashMap<String, NodeId>,
}

impl AgentShared {
    pub(super) fn new(
        parts: Parts,
        inbound: Weak<dyn Inbound>,
        arrivals: Arc<Arrivals>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            me: parts.id,
            name: parts.name,
            inbound,
            functions: parts.functions,
            arrivals,
            incarnations: Incarnations::default(),
            types: Types::default(),
            ids: MessageIds::default(),
            unrecorded: AtomicU64::new(UNRECORDED),
            limits: parts.limits,
            members: RwLock::default(),
            unclaimed: Unclaimed::default(),
            gatherings: Gatherings::default(),
            removals: Removals::default(),
            group_store: parts.group_store,
            group_kind: parts.group_kind,
            ending: tokio::sync::Mutex::default(),
            parting: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            runtime: Handle::current(),
            tasks: Mutex::default(),
            writers: Mutex::default(),
            worker: OnceLock::new(),
            server: Mutex::new(parts.server),
        });
        for member in parts.members {
            shared.enter(&mut shared.members_mut(), member);
        }
        shared
    }

    pub(super) fn members(&self) -> std::sync::RwLockReadGuard<'_, Members> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn members_mut(&self) -> std::sync::RwLockWriteGuard<'_, Members> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is with a member.
    pub(super) fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        self.members().by_node.get(&node).cloned()
    }

    pub(super) fn link_by_name(&self, name: &str) -> Option<Arc<Link>> {
        let members = self.members();
        members.by_node.get(members.by_name.get(name)?).cloned()
    }

    /// All other members.
    pub(super) fn others(&self) -> Vec<Arc<Link>> {
        self.members().by_node.values().cloned().collect()
    }

    pub(super) fn enter(&self, members: &mut Members, member: Member) -> Arc<Link> {
        let node = self.incarnations.begin(member.id);
        let link = Link::new(node, member.name.clone(), member.address);
        members.by_name.insert(member.name, node);
        members.by_node.insert(node, Arc::clone(&link));
        link
    }

    /// One that is gone is no member any more, and its number has another incarnation with the next.
    pub(super) fn forget_member(&self, node: NodeId) {
        let mut members = self.members_mut();
        let gone = members.by_node.remove(&node);
        if let Some(gone) = &gone
            && members.by_name.get(&gone.name) == Some(&node)
        {
            members.by_name.remove(&gone.name);
        }
        drop(members);
        self.incarnations.end(node);
        if let Some(gone) = gone {
            gone.end();
        }
    }

    /// How many calls of one peer this worker takes at once.
    pub(super) fn max_calls(&self) -> usize {
        let inbound = self.inbound.upgrade();
        inbound.map_or(usize::MAX, |inbound| inbound.max_calls() as usize)
    }

    pub(super) fn next_unrecorded(&self) -> u64 {
        self.unrecorded.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Reads a value of this worker's own that has no references and no tensors in it.
    pub(super) fn decode<T: DeserializeOwned>(&self, payload: &Payload) -> Result<T, CodecError> {
        let mut value = None;
        let codec = PickleCodec {
            arrivals: Arc::clone(&self.arrivals),
        };
        codec.decode(&payload.body, &mut |reader| {
            value = Some(erased_serde::deserialize(reader)?);
            Ok(())
        })?;
        value.ok_or_else(|| CodecError::new("there is no value"))
    }
}
