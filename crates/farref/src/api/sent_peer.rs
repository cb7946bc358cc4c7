//! How a [`Peer`] travels: as the worker's number, its life and its name, next to nothing.
//!
//! # Invariants
//!
//! - **SP-1** What arrives is the receiver's own `Peer` of the same worker. Whom it reaches, and why it cannot be called, is
//!   what any other `Peer` of that worker says there.
//! - **SP-2** A worker that is a member to whoever sends it can be called by whoever gets it. Members know of each
//!   newcomer before anybody calls it (ME-4), and hear that it is in before they hear its name in a small message; a
//!   large one may overtake that, and says so itself.
//! - **SP-3** Of what the sender says only that counts, and the name only where the receiver knows none.

use std::fmt;
use std::sync::Arc;

use farref_proto::{Incarnation, NodeId, WorkerId};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::peer::Peer;
use crate::runtime::value_scope::{self, Reading};
use crate::support::mutation::mutated;
use crate::support::text::{clean, shorten};

/// The name under which codecs see a peer.
const NAME: &str = "farref::Peer";

/// As much of a worker's name is kept.
const MAX_NAME: usize = 127;

impl Serialize for Peer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let core = self.core().map_err(serde::ser::Error::custom)?;
        value_scope::name_peer(core).map_err(serde::ser::Error::custom)?;
        let present = self.present(core);
        let worker = present.map_or_else(|| self.rank(), |life| life.worker.0);
        let life = present.map(|life| life.incarnation.0);
        serializer.serialize_newtype_struct(NAME, &(worker, life, self.name()))
    }
}

impl<'de> Deserialize<'de> for Peer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(NAME, PeerVisitor)
    }
}

struct PeerVisitor;

impl<'de> Visitor<'de> for PeerVisitor {
    type Value = Peer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a peer")
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Peer, D::Error> {
        let (worker, life, name) = <(u32, Option<u32>, String)>::deserialize(deserializer)?;
        let reading = value_scope::reading();
        let Some(reading) = reading else {
            let reason = "a peer can only be read out of a call or an answer";
            return Err(D::Error::custom(reason));
        };
        Ok(arrived(&reading, WorkerId(worker), life, name))
    }

    /// No codec writes a peer as nothing. Whoever traces the shape of a type can have a hollow one, so that it sees what
    /// comes after it.
    fn visit_unit<E>(self) -> Result<Peer, E> {
        Ok(Peer::hollow())
    }
}

fn arrived(reading: &Reading, worker: WorkerId, life: Option<u32>, mut name: String) -> Peer {
    let core = &reading.core;
    let told = NodeId {
        worker,
        incarnation: Incarnation(life.unwrap_or_default()),
    };
    if life.is_some() {
        core.told_of_member(reading.from, told);
    }
    let worker = if mutated!(PeerIsSender) {
        reading.from.worker
    } else {
        worker
    };
    if worker == core.me.worker {
        return Peer::of(core, core.me);
    }
    let present = core.current_life(worker).unwrap_or(told);
    let known = core.names.of(present).or_else(|| core.names.of(told));
    let name = known.unwrap_or_else(|| {
        shorten(&mut name, MAX_NAME);
        Arc::from(clean(name, |_| false))
    });
    Peer::called(core, present, name)
}

#[cfg(test)]
mod tests {
    use farref_proto::{Control, Standing, Status};

    use super::*;
    use crate::error::{Error, ReferenceError};
    use crate::fingerprint;
    use crate::testing::Cluster;

    /// R8: the shape of a signature does not end at a peer.
    #[test]
    fn what_comes_after_a_peer_is_part_of_the_shape() {
        let [narrow, wide] = [
            fingerprint::shape_text::<(Peer, u8)>(),
            fingerprint::shape_text::<(Peer, u16)>(),
        ];
        assert_ne!(narrow, wide);
        assert!(narrow.contains("farref::Peer"), "{narrow}");
    }

    #[farref_macros::remote]
    async fn nothing() {}

    /// Nobody is called by a peer that came out of no message.
    #[tokio::test]
    async fn a_hollow_peer_says_so_at_use() {
        let hollow = Peer::hollow();
        assert!(!hollow.is_me() && !hollow.is_alive());
        let says_so = |error| matches!(error, Error::Reference(ReferenceError::Hollow));
        assert!(nothing::on(&hollow).await.is_err_and(says_so));
        assert!(hollow.gone().await.is_err_and(says_so));
        assert!(hollow.lookup::<u8>("n").await.is_err_and(says_so));
    }

    /// SP-3
    #[tokio::test]
    async fn sp_3_a_senders_name_counts_only_where_there_is_none_and_up_to_a_length()
    -> Result<(), Error> {
        let cluster = Cluster::start(2).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let from = cluster.worker(1).node();
        let reading = Reading {
            core: Arc::clone(peer.core()?),
            from,
            context: None,
        };
        let life = |node: NodeId| Some(node.incarnation.0);
        let known = arrived(&reading, from.worker, life(from), "somebody".to_owned());
        assert_eq!(known.name(), "worker1");
        let stranger = NodeId::new(8, 1);
        let long = "\u{e4}".repeat(MAX_NAME);
        let unknown = arrived(&reading, stranger.worker, life(stranger), long);
        assert_eq!(unknown.name(), "\u{e4}".repeat(MAX_NAME / 2));
        drop((known, unknown, peer, reading));
        cluster.shutdown().await
    }

    /// SP-2, SP-3
    #[tokio::test(flavor = "multi_thread")]
    async fn who_is_only_known_to_be_joining_is_in_if_a_member_names_it_as_one() -> Result<(), Error>
    {
        let cluster = Cluster::start(2).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let core = Arc::clone(peer.core()?);
        let from = cluster.worker(1).node();
        let reading = Reading {
            core: Arc::clone(&core),
            from,
            context: None,
        };
        let [newcomer, stranger] = [NodeId::new(7, 1), NodeId::new(8, 1)];
        let say = |status| {
            let entries = vec![(newcomer.worker, Standing::of(newcomer, status))];
            let view = Control::View { entries, ask: None };
            core.input(|node, out| node.handle(from, view, out))
                .expect("a word of a member");
        };
        say(Status::Joining);
        let named = |node: NodeId, life| arrived(&reading, node.worker, life, "it".to_owned());
        assert!(!named(newcomer, None).is_alive(), "nobody says so");
        assert!(!named(newcomer, Some(0)).is_alive(), "an earlier life");
        assert!(!named(stranger, Some(1)).is_alive(), "never heard of");
        let there = named(newcomer, Some(1));
        assert!(there.is_alive());
        assert_eq!(there.name(), "it");
        say(Status::Dead);
        assert!(!named(newcomer, Some(1)).is_alive(), "it is gone");
        drop((there, peer, reading));
        drop(core);
        cluster.shutdown().await
    }
}
