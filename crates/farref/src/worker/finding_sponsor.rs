//! How a worker that joins a group which is there already asks its members, one after the other, to let it in.

use std::collections::BTreeMap;
use std::time::Duration;

use farref_proto::NodeId;

use super::Worker;
use crate::agent::Inbound as _;
use crate::error::{Error, Result};
use crate::rendezvous::{Card, Directory, RendezvousError};
use crate::runtime::WorkerStage;
use crate::support::clock::Instant;

/// How long a sponsor may take to let this worker in before another is asked too. One that refuses
/// connections is not waited for.
const SPONSOR_TIMEOUT: Duration = Duration::from_secs(2);

impl Worker {
    /// Asks one member after the other to be let in. What was asked stays asked: whoever answers
    /// first is the sponsor.
    pub(super) async fn find_sponsor(&self, deadline: Instant, waited: Duration) -> Result<()> {
        let core = &self.core;
        let mut stage = core.stage.subscribe();
        let mut unreachable = core.unreachable.subscribe();
        let mut asked = BTreeMap::new();
        let Some(directory) = core.names.directory() else {
            return Err(core.not_member());
        };
        loop {
            let sponsors = tokio::time::timeout_at(deadline.into(), directory.sponsors());
            // Out of time: the error below says for whom.
            let sponsors = sponsors.await.unwrap_or_else(|_| Ok(Vec::new()))?;
            for card in sponsors {
                let (sponsor, who) = (card.node, name_and_addresses(&card));
                if self.is_no_sponsor(sponsor) {
                    continue;
                }
                core.names.insert(card);
                core.input(|node, out| node.join(sponsor, out));
                let limit = SPONSOR_TIMEOUT.min(deadline.saturating_duration_since(Instant::now()));
                let decided = async {
                    tokio::select! {
                        biased;
                        _ = stage.wait_for(|stage| *stage != WorkerStage::Joining) => {}
                        _ = unreachable.wait_for(|nodes| nodes.contains(&sponsor)) => {}
                        () = core.rejections.wait_for(sponsor) => {}
                    }
                };
                if tokio::time::timeout(limit, decided).await.is_err() {
                    asked.insert(sponsor, who);
                }
                let reached = *stage.borrow();
                match reached {
                    WorkerStage::Joining => {}
                    WorkerStage::Member => {
                        self.learn_names(directory, deadline).await;
                        return Ok(());
                    }
                    _ => return Err(core.not_member()),
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
            let is_late = Instant::now() >= deadline;
            // Whoever was asked and has not said no may still say yes. Not one that has come after this worker: it is not in
            // itself, or it would not have taken as long.
            let mut earlier = asked
                .keys()
                .filter(|sponsor| came_before(**sponsor, core.me));
            if (is_late || earlier.all(|sponsor| self.is_no_sponsor(*sponsor)))
                && let Some(why) = core.rejections.first()
            {
                return Err(Error::Rendezvous(why));
            }
            if is_late {
                let mut asked: Vec<String> = asked.into_values().collect();
                asked.sort();
                asked.dedup();
                return Err(Error::from(RendezvousError::NotLetIn {
                    name: core.name.to_string(),
                    asked,
                    waited,
                }));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            let reached = *stage.borrow();
            if reached == WorkerStage::Member {
                self.learn_names(directory, deadline).await;
                return Ok(());
            }
        }
    }

    /// Whether a worker cannot let this one in.
    fn is_no_sponsor(&self, node: NodeId) -> bool {
        self.core.is_gone(node)
            || self.core.unreachable.borrow().contains(&node)
            || self.core.rejections.of(node).is_some()
    }

    /// Whoever was let in can call the others by their names at once.
    async fn learn_names(&self, directory: &Directory, deadline: Instant) {
        let core = &self.core;
        let members: Vec<NodeId> = core.look(|node| node.membership().view().members().collect());
        let unknown = members
            .into_iter()
            .filter(|node| core.names.of(*node).is_none());
        for node in unknown {
            match tokio::time::timeout_at(deadline.into(), directory.lookup(node)).await {
                Ok(Ok(card)) => core.names.insert(card),
                // In its own time, then.
                _ => core.learn_name(node),
            }
        }
    }
}

/// Which of two lives began first, as far as their clocks say.
fn came_before(one: NodeId, other: NodeId) -> bool {
    (one.incarnation, one.worker) < (other.incarnation, other.worker)
}

/// Who was asked, and where: whoever reads of it has to find out what is in between.
fn name_and_addresses(card: &Card) -> String {
    let addresses: Vec<String> = card.addresses.iter().map(ToString::to_string).collect();
    format!("{} at {}", card.name, addresses.join(" or "))
}
