//! The links of an agent, and which lives are over.

mod newcomers;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use farref_proto::{Incarnation, NodeId, WorkerId};
use foldhash::fast::FixedState;
use tokio::task::JoinSet;

use super::Link;
use super::timer::Timer;
use crate::native::endpoint::Endpoint;
use crate::native::handshake::Refusal;
use newcomers::Newcomers;

/// All links of an agent.
#[derive(Debug)]
pub(crate) struct LinkTable {
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) timer: Arc<Timer<Link>>,
    entries: RwLock<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    links: HashMap<NodeId, Arc<Link>, FixedState>,
    /// Of each worker the latest life that is over: nothing is said to it nor to those before it, and
    /// nothing heard.
    departed: HashMap<WorkerId, Incarnation, FixedState>,
    newcomers: Newcomers,
    /// Whether the agent has stopped: there are no links any more, nor will there be.
    stopped: bool,
}

impl Entries {
    fn is_over(&self, life: NodeId) -> bool {
        let latest = self.departed.get(&life.worker);
        latest.is_some_and(|latest| life.incarnation <= *latest)
    }
}

impl LinkTable {
    pub(crate) fn new(endpoint: Arc<Endpoint>) -> Arc<Self> {
        Arc::new(Self {
            endpoint,
            timer: Arc::default(),
            entries: RwLock::default(),
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, Entries> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Entries> {
        self.entries.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all tasks and forgets all links. Returns the tasks, for those who want to wait for them.
    pub(crate) fn stop(&self) -> JoinSet<()> {
        let tasks = self.endpoint.stop_tasks();
        let links: Vec<_> = {
            let mut table = self.write();
            table.stopped = true;
            table.links.drain().map(|(_, link)| link).collect()
        };
        for link in &links {
            link.close();
        }
        tasks
    }

    pub(crate) fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        self.read().links.get(&node).cloned()
    }

    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        self.read().links.values().cloned().collect()
    }

    /// The link with a node, made if there is none. None if the node is gone or is this one, or the
    /// agent has stopped.
    pub(crate) fn link_or_new(&self, node: NodeId) -> Option<Arc<Link>> {
        if let Some(link) = self.link(node) {
            return Some(link);
        }
        self.new_link(&mut self.write(), node)
    }

    fn new_link(&self, table: &mut Entries, node: NodeId) -> Option<Arc<Link>> {
        if table.stopped || node == self.endpoint.node() || table.is_over(node) {
            return None;
        }
        let link = table
            .links
            .entry(node)
            .or_insert_with(|| Link::new(&self.endpoint, &self.timer, node));
        Some(Arc::clone(link))
    }

    /// The link for a connection that a node has made and proved to be its own.
    pub(crate) fn link_for_dialer(&self, node: NodeId) -> Result<Arc<Link>, Refusal> {
        let known = self.link(node);
        if self.endpoint.is_closing() {
            // Only what is still to be delivered is worth a connection.
            return known
                .filter(|link| !link.is_drained())
                .ok_or(Refusal::Closing);
        }
        let inbound = self.endpoint.inbound.upgrade().ok_or(Refusal::Closing)?;
        if inbound.is_gone(node) {
            return Err(Refusal::Gone);
        }
        match known {
            Some(link) => Ok(link),
            None if self.endpoint.callbacks.is_live(node) => {
                self.link_or_new(node).ok_or(Refusal::Gone)
            }
            None => self.link_for_newcomer(node),
        }
    }

    /// Of how many workers it is remembered that a life is over.
    #[cfg(test)]
    pub(crate) fn departed(&self) -> usize {
        self.read().departed.len()
    }

    /// Takes the links with a life and with all earlier ones of its worker out of the table for good: of those nobody may ever
    /// say by themselves that they are over (LT-1).
    pub(crate) fn depart(&self, node: NodeId) -> Vec<Arc<Link>> {
        let mut guard = self.write();
        let table = &mut *guard;
        let latest = table
            .departed
            .entry(node.worker)
            .or_insert(node.incarnation);
        *latest = node.incarnation.max(*latest);
        let latest = NodeId {
            incarnation: *latest,
            ..node
        };
        let is_over = |life: &NodeId| life.is_over_with(latest);
        table.newcomers.remove_if(is_over);
        let over = table.links.extract_if(|life, _| is_over(life));
        over.map(|(_, link)| link).collect()
    }
}
