//! A group whose members are known by other means than farref's own rendezvous.

use farref_proto::NodeId;

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
