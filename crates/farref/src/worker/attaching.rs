//! Joining a group over another wire than farref's own.

use std::sync::{Arc, Weak};

use farref_proto::Membership;

use super::Worker;
use super::builder::WorkerBuilder;
use super::hosting::HostedStore;
use super::starting::launch;
use crate::agent::{Agent, Group, Inbound};
use crate::error::{ConfigError, Result};
use crate::rendezvous::check_name;
use crate::tables::names::Names;

impl WorkerBuilder {
    /// Sets a worker going on a wire of one's own. `agent` gets the end that it hands messages in
    /// at, and makes the agent. Of the builder's settings those about rendezvous and connections have
    /// no meaning then.
    ///
    /// A group of one needs no wire at all. (The [module](crate::agent) has one of two, with a wire.)
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// use farref::Worker;
    /// use farref::agent::Group;
    ///
    /// #[farref::remote]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let me = NodeId::new(0, 1);
    /// let group = Group { me, members: vec![(me, "alone".to_owned())] };
    /// // `Alone` is an agent that sends nothing.
    /// let agent = |_inbound| Arc::new(Alone(Codec::Postcard));
    /// let worker = Worker::builder("").attach(group, agent).await?;
    /// assert_eq!(worker.name(), "alone");
    /// assert_eq!(add::on(&worker.me(), 1, 2).await?, 3);
    /// worker.shutdown().await
    /// # }
    /// ```
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
        let own_name = own_name.ok_or(ConfigError::NotInGroup { node: group.me })?;
        let members = group.members.iter().map(|(node, _)| *node);
        let membership = Membership::founding(group.me, members);
        launch(
            own_name,
            self.settings,
            membership,
            names,
            HostedStore::new(None, None, None),
            |core, _| {
                let inbound: Arc<dyn Inbound> = core.clone();
                agent(Arc::downgrade(&inbound))
            },
        )
    }
}
