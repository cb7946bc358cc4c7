//! Joining a group over another wire than farref's own.

use std::sync::{Arc, Weak};

use farref_proto::{Membership, NodeId};

use super::joining::launch;
use super::{Worker, WorkerBuilder};
use crate::agent::{Agent, Inbound};
use crate::error::{Error, Result};
use crate::names::Names;
use crate::rendezvous::check_name;

/// A group that has come together by other means: who is in it, and who of them this worker is.
#[derive(Clone, Debug)]
pub struct Group {
    /// This worker.
    pub me: NodeId,
    /// All members, this worker among them, with their names.
    pub members: Vec<(NodeId, String)>,
}

impl WorkerBuilder {
    /// Sets a worker going on a wire of one's own. `agent` gets the end that it hands messages in
    /// at, and makes the agent. Of the builder's settings those about rendezvous and connections have
    /// no meaning then.
    pub async fn attach<A: Agent>(
        self,
        group: Group,
        agent: impl FnOnce(Weak<dyn Inbound>) -> Arc<A>,
    ) -> Result<Worker> {
        let names = Names::new(None);
        let mut own_name = None;
        for (node, name) in &group.members {
            check_name(name)?;
            names.name(*node, name);
            if *node == group.me {
                own_name = Some(name.clone());
            }
        }
        let own_name = own_name.ok_or_else(|| {
            Error::Config(format!(
                "{} is not among the members of its group",
                group.me
            ))
        })?;
        let members = group.members.iter().map(|(node, _)| *node);
        let membership = Membership::founding(group.me, members);
        launch(own_name, self.settings, membership, names, None, |core| {
            let inbound: Arc<dyn Inbound> = core.clone();
            agent(Arc::downgrade(&inbound))
        })
    }
}
