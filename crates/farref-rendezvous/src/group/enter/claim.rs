//! What a worker takes for itself in the store: an id, an incarnation, and the place of its card.

use std::time::{SystemTime, UNIX_EPOCH};

use farref_proto::NodeId;

use super::EntryAttempt;
use crate::error::{RendezvousError, corrupt};
use crate::group::card::Card;
use crate::group::founding::GroupKind;
use crate::group::records::into_number;
use crate::identity::FIRST_UNRANKED;

impl EntryAttempt<'_> {
    /// The kind of the group, which must be the one that this worker was started for.
    pub(super) async fn kind(&self) -> Result<GroupKind, RendezvousError> {
        let mine = match self.plan.world_size {
            Some(size) => GroupKind::Static(size),
            // Whoever comes without a world size may also be an addition to a static group.
            None => match self.records.kind().await? {
                Some(kind) => kind,
                None => GroupKind::Dynamic,
            },
        };
        let group = self.records.agree_on_kind(mine).await?;
        let fits = match (self.plan.world_size, self.plan.rank, group) {
            (None, Some(rank), GroupKind::Static(size)) => rank < size,
            (None, ..) => true,
            (Some(_), ..) => group == mine,
        };
        if fits {
            return Ok(group);
        }
        let mine = match (self.plan.world_size, self.plan.rank) {
            (None, Some(rank)) => format!("rank {rank}"),
            _ => mine.describe(),
        };
        let group = group.describe();
        Err(RendezvousError::Mismatch { mine, group })
    }

    /// This worker's id, bound to its name (invariant 1).
    pub(super) async fn id(&self, kind: GroupKind) -> Result<u32, RendezvousError> {
        let name = &self.plan.name;
        let name_key = self.records.name_key(name);
        let Some(rank) = self.plan.rank else {
            return self.unranked_id(&name_key).await;
        };
        let had_name = self.records.text(&name_key).await?.is_some();
        let found = self.records.claim(&name_key, &rank.to_string()).await?;
        let other = into_number(&name_key, &found)?;
        if other != rank {
            return Err(RendezvousError::DuplicateName {
                name: name.clone(),
                first: other,
                second: rank,
            });
        }
        let id_key = self.records.id_key(rank);
        let other = self.records.claim(&id_key, name).await?;
        if other != *name {
            // The rank is not ours, so the name must not stay bound to it.
            if !had_name {
                self.records
                    .run(self.records.store.delete(&name_key))
                    .await?;
            }
            return Err(RendezvousError::DuplicateRank {
                rank,
                first: other,
                second: name.clone(),
            });
        }
        if kind == GroupKind::Dynamic {
            let ranks = self.records.key("ranks");
            self.records.raise(&ranks, rank + 1).await?;
        }
        Ok(rank)
    }

    /// The id that goes with the name, or the next one.
    async fn unranked_id(&self, name_key: &str) -> Result<u32, RendezvousError> {
        let known = match self.records.text(name_key).await? {
            Some(known) => known,
            None => {
                let next = self.records.key("next");
                let number = self.records.next(&next).await?;
                let id = number
                    .checked_sub(1)
                    .and_then(|n| n.checked_add(FIRST_UNRANKED));
                let id = id.ok_or_else(|| corrupt(&next, "it has run out of range"))?;
                // Somebody of the same name may have been faster: then we are its next life.
                self.records.claim(name_key, &id.to_string()).await?
            }
        };
        let id = into_number(name_key, &known)?;
        let id_key = self.records.id_key(id);
        self.records.claim(&id_key, &self.plan.name).await?;
        Ok(id)
    }

    /// The latest incarnation so far, and this one's.
    async fn incarnation(&self, id: u32) -> Result<(Option<u32>, u32), RendezvousError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let now = u32::try_from(now).unwrap_or(u32::MAX - 1);
        let key = self.records.incarnation_key(id);
        let next = |found: Option<u32>| match found {
            Some(found) => found.checked_add(1).map(|next| next.max(now)),
            None => Some(now.max(1)),
        };
        let taken = self.records.update(&key, next).await?;
        taken.ok_or_else(|| corrupt(&key, "no greater incarnation is left"))
    }

    /// Takes an incarnation and publishes the card of it, unless an earlier one is still there.
    pub(super) async fn claim_incarnation(
        &self,
        kind: GroupKind,
        id: u32,
        founder: Option<&Card>,
    ) -> Result<Card, RendezvousError> {
        loop {
            self.records.begin("taking an incarnation");
            let (before, incarnation) = self.incarnation(id).await?;
            self.records
                .begin("looking for an earlier life of this worker");
            match (founder, before) {
                (Some(founder), _) => self.check_absent(kind, founder).await?,
                (None, Some(before)) => self.check_vacant(kind, NodeId::new(id, before)).await?,
                (None, None) => {}
            }
            self.records.begin("publishing this worker's card");
            let me = Card {
                node: NodeId::new(id, incarnation),
                name: self.plan.name.clone(),
                addresses: self.plan.addresses.clone(),
                host: self.plan.host.clone(),
                wire: self.plan.wire,
                token: self.plan.token,
                certificate: self.plan.certificate.clone(),
            };
            // Two that take the same number at the same moment both read back what they wrote. Their cards
            // differ, so that only one of them has it (invariant 2).
            if self.records.claim_card(&me).await? {
                self.records.set_latest(&me).await?;
                *self.published() = Some(me.clone());
                return Ok(me);
            }
        }
    }
}
