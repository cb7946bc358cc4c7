//! Finds the other workers of the group, and writes this one down again if the store forgets.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farref_proto::NodeId;
use tokio::time::{sleep, timeout};

use super::card::Card;
use super::founding::{Founding, GroupKind};
use super::records::{GroupRecords, into_number};
use crate::error::RendezvousError;
use crate::identity::FIRST_UNRANKED;
use crate::store::StoreError;

/// How long a card is looked for in a store that does not answer.
const LOOKUP: Duration = Duration::from_secs(10);
/// How long a store may take to hear that a worker has not got in.
const WITHDRAWN_WITHIN: Duration = Duration::from_secs(2);
/// How often a card is looked for, and the pause after the first time; it doubles.
const LOOKUPS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// Where the workers of a group are. Clones share what they know.
#[derive(Clone, Debug)]
pub struct Directory {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    records: GroupRecords,
    kind: GroupKind,
    me: Card,
    founding: Founding,
    cards: Mutex<HashMap<NodeId, Card>>,
    ids: Ids,
}

/// The ids that were given away as far as this worker knows, those of workers that are gone among them: how
/// many to workers with a rank, and to workers without.
#[derive(Debug, Default)]
struct Ids {
    ranked: AtomicU32,
    unranked: AtomicU32,
}

impl Ids {
    fn note(&self, id: u32) {
        match id.checked_sub(FIRST_UNRANKED) {
            Some(number) => self
                .unranked
                .fetch_max(number.saturating_add(1), Ordering::Relaxed),
            None => self.ranked.fetch_max(id + 1, Ordering::Relaxed),
        };
    }
}

impl Directory {
    pub(super) fn new(
        records: GroupRecords,
        kind: GroupKind,
        me: Card,
        founding: Founding,
    ) -> Self {
        let cards = founding.founders.iter().chain([&me]);
        let ids = Ids::default();
        cards.clone().for_each(|card| ids.note(card.node.worker.0));
        let cards = cards.map(|card| (card.node, card.clone())).collect();
        Self {
            inner: Arc::new(Inner {
                records,
                kind,
                me,
                founding,
                cards: Mutex::new(cards),
                ids,
            }),
        }
    }

    /// Whether the group has no fixed size.
    pub fn grows(&self) -> bool {
        self.inner.kind == GroupKind::Dynamic
    }

    /// The card of one life of a worker: from memory, or else from the store.
    pub async fn lookup(&self, node: NodeId) -> Result<Card, RendezvousError> {
        if let Some(card) = self.cards().get(&node) {
            return Ok(card.clone());
        }
        timeout(LOOKUP, self.look_up_in_store(node))
            .await
            .unwrap_or(Err(RendezvousError::TimedOut {
                doing: "looking a worker up",
                waited: LOOKUP,
            }))
    }

    async fn look_up_in_store(&self, node: NodeId) -> Result<Card, RendezvousError> {
        self.inner.records.begin("looking a worker up");
        let mut pause = FIRST_PAUSE;
        let mut left = LOOKUPS;
        loop {
            let found = self.inner.records.card(node).await;
            if let Ok(Some(card)) = found {
                self.insert(card.clone());
                return Ok(card);
            }
            left -= 1;
            if left == 0 {
                return Err(found
                    .err()
                    .unwrap_or(RendezvousError::UnknownWorker { node }));
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// The card of one life of a worker, if it is known.
    pub fn known(&self, node: NodeId) -> Option<Card> {
        self.cards().get(&node).cloned()
    }

    /// Remembers a card that came from elsewhere.
    pub fn insert(&self, card: Card) {
        self.inner.ids.note(card.node.worker.0);
        self.cards().insert(card.node, card);
    }

    /// The latest life known under a name, from memory.
    #[cfg(test)]
    pub(crate) fn by_name(&self, name: &str) -> Option<Card> {
        let cards = self.cards();
        let named = cards.values().filter(|card| card.name == name);
        named.max_by_key(|card| card.node.incarnation).cloned()
    }

    /// The same knowledge with another store.
    #[cfg(test)]
    pub(crate) fn moved_to(self, store: Arc<dyn crate::store::Store>) -> Self {
        let mut inner = Arc::into_inner(self.inner).expect("nobody else uses it");
        inner.records = GroupRecords::new(store, "group".into());
        let inner = Arc::new(inner);
        Self { inner }
    }

    /// Forgets a life that is over. The store keeps its card.
    pub fn forget(&self, node: NodeId) {
        self.cards().remove(&node);
    }

    /// The latest cards of all other workers that the store knows. Some may be gone by now.
    pub async fn sponsors(&self) -> Result<Vec<Card>, RendezvousError> {
        let me = self.inner.me.node.worker;
        let mut sponsors = self.inner.records.latest_cards(self.inner.kind).await?;
        sponsors.retain(|card| card.node.worker != me);
        for card in &sponsors {
            self.insert(card.clone());
        }
        Ok(sponsors)
    }

    /// Waits until the store may have lost its memory, as far as that can be noticed.
    pub async fn store_lost(&self) {
        if self.inner.records.store.lost().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Writes into the store what it should know of this worker and its group, without touching
    /// what is newer. For a store that lost its memory; does nothing to one that did not.
    ///
    /// The order matters: the counters and the kind come before the founding, which newcomers to an empty store
    /// wait for, so that none is given the id of a worker we know or have known (what was said of a dead one would
    /// be taken as said of it); the founding comes before our card, so that nobody who sees all cards misses it and
    /// founds the group anew. So all of it goes to one server: should that be replaced in between, this is an error
    /// and to be done again.
    pub async fn republish(&self) -> Result<(), RendezvousError> {
        let Inner {
            records,
            kind,
            me,
            founding,
            ids,
            ..
        } = &*self.inner;
        records.begin("writing this worker into the store again");
        let pinned = records.pinned().await?;
        let records = pinned.as_ref().unwrap_or(records);
        let unranked = ids.unranked.load(Ordering::Relaxed);
        if unranked > 0 {
            records.raise(&records.key("next"), unranked).await?;
        }
        let ranked = ids.ranked.load(Ordering::Relaxed);
        if *kind == GroupKind::Dynamic && ranked > 0 {
            records.raise(&records.key("ranks"), ranked).await?;
        }
        let theirs = records.agree_on_kind(*kind).await?;
        if theirs != *kind {
            return Err(RendezvousError::Mismatch {
                mine: kind.describe(),
                group: theirs.describe(),
            });
        }
        let theirs = records.found(founding).await?.group;
        if theirs != founding.group {
            let ours = founding.group;
            return Err(RendezvousError::OtherGroup { ours, theirs });
        }
        let id = me.node.worker.0;
        let name_key = records.name_key(&me.name);
        let found = records.claim(&name_key, &id.to_string()).await?;
        let other = into_number(&name_key, &found)?;
        if other != id {
            return Err(RendezvousError::DuplicateName {
                name: me.name.clone(),
                first: other,
                second: id,
            });
        }
        records.claim(&records.id_key(id), &me.name).await?;
        let incarnation = records.incarnation_key(id);
        records.raise(&incarnation, me.node.incarnation.0).await?;
        records.set_card(me).await?;
        records.set_latest(me).await?;
        self.settle().await
    }

    /// Says that this worker is a member, where the store notices when its users go: the group is over when
    /// all members have gone.
    pub async fn settle(&self) -> Result<(), RendezvousError> {
        let records = &self.inner.records;
        match records.store.presence() {
            Some(presence) => records.run(presence.settle()).await,
            None => Ok(()),
        }
    }

    /// Waits until the group is over, as far as the store notices that. The error says so.
    pub async fn over(&self) -> RendezvousError {
        let records = &self.inner.records;
        let Some(presence) = records.store.presence() else {
            return std::future::pending().await;
        };
        match presence.over().await {
            Ok(()) => records.failed(StoreError::Ended {
                place: format!("{:?}", records.store),
            }),
            Err(error) => records.failed(error),
        }
    }

    /// Takes this worker, which has not got into its group, off the list of those who are in it.
    pub async fn withdraw(&self) {
        let records = &self.inner.records;
        records.begin("taking this worker off the list");
        let withdrawing = timeout(WITHDRAWN_WITHIN, records.withdraw(&self.inner.me));
        if !matches!(withdrawing.await, Ok(Ok(()))) {
            tracing::debug!("this worker stays on the store's list");
        }
    }

    /// Leaves the store, where that makes a difference.
    pub async fn leave(&self) {
        if let Some(presence) = self.inner.records.store.presence()
            && let Err(error) = presence.leave().await
        {
            tracing::debug!(%error, "the store was not left");
        }
    }

    /// The map is whole between any two statements, so a panic elsewhere does not spoil it.
    fn cards(&self) -> MutexGuard<'_, HashMap<NodeId, Card>> {
        self.inner
            .cards
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
