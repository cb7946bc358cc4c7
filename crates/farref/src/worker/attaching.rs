//! Joining a group over another wire than farref's own.

use std::sync::{Arc, Weak};

use farref_proto::{Membership, NodeId};

use super::hosting::HostedStore;
use super::joining::launch;
use super::{Worker, WorkerBuilder};
use crate::agent::{Agent, Inbound};
use crate::error::{Error, Result};
use crate::rendezvous::check_name;
use crate::runtime::names::Names;

/// A group that has come together by other means: who is in it, and who of them this worker is.
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
/// use farref::{Error, Worker};
/// use farref::agent::Group;
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let [ps, trainer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
/// let members = vec![(ps, "ps".to_owned()), (trainer, "trainer".to_owned())];
/// let group = Group { me: trainer, members };
///
/// // A later life of rank 1 was not there when the group came together.
/// let stranger = Group { me: NodeId::new(1, 2), ..group };
/// let agent = |_inbound| Arc::new(Alone(Codec::Postcard));
/// let refused = Worker::builder("").attach(stranger, agent).await;
/// assert!(matches!(refused, Err(Error::Config(_))));
/// # Ok(())
/// # }
/// ```
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
        let own_name = own_name.ok_or_else(|| {
            Error::Config(format!(
                "{} is not among the members of its group",
                group.me
            ))
        })?;
        let members = group.members.iter().map(|(node, _)| *node);
        let membership = Membership::founding(group.me, members);
        launch(
            own_name,
            self.settings,
            membership,
            names,
            HostedStore::new(None, None),
            |core, _| {
                let inbound: Arc<dyn Inbound> = core.clone();
                agent(Arc::downgrade(&inbound))
            },
        )
    }
}
