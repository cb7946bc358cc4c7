//! The way of the value that is being serialized or deserialized on this thread.

use std::sync::Arc;

use farref_proto::NodeId;

use super::Worker;
use crate::api::peer::Peer;
use crate::runtime::{Core, value_scope};

/// The way that the value takes which is being serialized or deserialized on this thread: between which workers.
///
/// For types that travel in another form depending on where they go, as tensors do that a peer can use where they are.
///
/// ```
/// use farref::Transfer;
/// use serde::{Deserialize, Deserializer, Serialize, Serializer};
///
/// /// Says on its way where it went, and where it came from.
/// struct Postcard(String);
///
/// impl Serialize for Postcard {
///     fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
///         let to = Transfer::outgoing().map(|transfer| transfer.peer().name().to_owned());
///         (&self.0, to.unwrap_or_default()).serialize(serializer)
///     }
/// }
///
/// impl<'de> Deserialize<'de> for Postcard {
///     fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
///         let (text, to) = <(String, String)>::deserialize(deserializer)?;
///         let from = Transfer::incoming().map(|transfer| transfer.peer().name().to_owned());
///         Ok(Postcard(format!("{text} from {} to {to}", from.unwrap_or_default())))
///     }
/// }
///
/// #[farref::remote]
/// async fn read(card: Postcard) -> String {
///     card.0
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
/// let ps = cluster.worker(0).peer("ps")?;
/// let card = read::on(&ps, Postcard("greetings".to_owned())).await?;
/// assert_eq!(card, "greetings from trainer to ps");
/// assert!(Transfer::outgoing().is_none()); // nothing is on its way here
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Debug)]
pub struct Transfer {
    core: Arc<Core>,
    node: NodeId,
}

impl Transfer {
    /// Of the value being serialized. None outside of a call or an answer; nor for items of a stream, which go to whoever
    /// reads it.
    pub fn outgoing() -> Option<Self> {
        let (core, node) = value_scope::destination()?;
        Some(Self { core, node })
    }

    /// Of the value being deserialized. None outside of a call or an answer.
    pub fn incoming() -> Option<Self> {
        let reading = value_scope::reading()?;
        Some(Self {
            core: reading.core,
            node: reading.from,
        })
    }

    /// The worker that serializes or deserializes it.
    pub fn worker(&self) -> Worker {
        Worker::of(&self.core)
    }

    /// The worker that it goes to, or comes from.
    pub fn peer(&self) -> Peer {
        Peer::of(&self.core, self.node)
    }

    /// The same, one life of it: what a peer has learnt once, its next life does not know.
    pub fn life(&self) -> NodeId {
        self.node
    }
}
