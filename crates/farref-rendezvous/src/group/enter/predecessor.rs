//! Whether an earlier life of a worker, or one of the same name, is still there (invariant 6).

use std::time::Duration;

use farref_proto::NodeId;

use super::EntryAttempt;
use crate::error::RendezvousError;
use crate::group::card::{Address, Card};
use crate::group::founding::GroupKind;
use crate::group::liveness::Liveness;

/// How long an earlier life of this worker may take to say that it is there.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for one that may be waiting for the group's founding: then it says nothing.
const WAITING_PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the card of a life that was taken just before this one may take to be published.
const CARD_TIMEOUT: Duration = Duration::from_secs(1);

impl EntryAttempt<'_> {
    /// Refuses to follow a life that is still there (invariant 6). `before` is the one that was taken
    /// before this one's, by a worker that may never have got further.
    pub(super) async fn check_vacant(
        &self,
        kind: GroupKind,
        before: NodeId,
    ) -> Result<(), RendezvousError> {
        let latest = match self.records.latest(before.worker.0).await {
            // What cannot be read leads nowhere.
            Err(RendezvousError::Corrupt { .. }) => None,
            latest => latest?,
        };
        if let Some(latest) = &latest {
            self.check_absent(kind, latest).await?;
        }
        if latest.is_none_or(|latest| latest.node < before) {
            let timeout = CARD_TIMEOUT.min(self.time_left());
            match self.records.await_card(before, timeout).await {
                Ok(Some(card)) => self.check_absent(kind, &card).await?,
                Ok(None) | Err(RendezvousError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Refuses to follow this very life if it is still there.
    pub(super) async fn check_absent(
        &self,
        kind: GroupKind,
        earlier: &Card,
    ) -> Result<(), RendezvousError> {
        // Nobody answers before the group is founded.
        let waits = kind != GroupKind::Dynamic && self.records.founding().await?.is_none();
        let timeout = if waits {
            WAITING_PROBE_TIMEOUT
        } else {
            PROBE_TIMEOUT
        };
        let timeout = timeout.min(self.time_left() / 2);
        match self.plan.probe.probe(earlier, timeout).await? {
            Liveness::Gone => return Ok(()),
            Liveness::Silent if !waits || self.is_another_there(kind, earlier).await? => {
                return Ok(());
            }
            Liveness::Silent | Liveness::Alive => {}
        }
        Err(name_taken(earlier))
    }

    /// Whether another worker says that it listens where this one did, and came no earlier: then whoever is
    /// there is the other, and waits for the group as well.
    async fn is_another_there(
        &self,
        kind: GroupKind,
        earlier: &Card,
    ) -> Result<bool, RendezvousError> {
        let GroupKind::Static(size) = kind else {
            return Ok(false);
        };
        for id in (0..size).filter(|&id| id != earlier.node.worker.0) {
            let other = match self.records.latest(id).await {
                Err(RendezvousError::Corrupt { .. }) => None,
                other => other?,
            };
            let is_there = |other: Card| {
                let came_later = other.node.incarnation >= earlier.node.incarnation;
                let shares = |address| earlier.addresses.contains(address);
                came_later && other.host == earlier.host && other.addresses.iter().any(shares)
            };
            if other.is_some_and(is_there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether one of these is there, and not only its card. The first few are enough to find out.
    pub(super) async fn is_any_there(&self, cards: &[&Card]) -> bool {
        for card in cards.iter().take(4) {
            let timeout = WAITING_PROBE_TIMEOUT.min(self.time_left() / 2);
            let found = self.plan.probe.probe(card, timeout).await;
            if !matches!(found, Ok(Liveness::Gone)) {
                return true;
            }
        }
        self.time_left().is_zero()
    }
}

/// The worker with this card has the name.
pub(super) fn name_taken(by: &Card) -> RendezvousError {
    let addresses: Vec<_> = by.addresses.iter().map(Address::to_string).collect();
    RendezvousError::NameTaken {
        name: by.name.clone(),
        address: addresses.join(" and "),
    }
}
