//! What a group keeps in its store: the keys, and typed, careful access to them.
//!
//! | key under the prefix | value | changes |
//! | --- | --- | --- |
//! | `kind` | `static <world size>` or `dynamic` | never |
//! | `next` | how many ids were given to workers without a rank | grows |
//! | `ranks` | one more than the highest rank in a dynamic group | grows |
//! | `name/<name>`, `id/<id>` | the id with that name, the name with that id | never |
//! | `incarnation/<id>` | the latest incarnation of the worker | grows |
//! | `card/<id>/<incarnation>` | the card of that life | never |
//! | `latest/<id>` | the card of the latest life | grows |
//! | `founders` | the group's id and the cards of its founders | never |
//! | `run` | beside, not under, the prefixes of runs: which run joined last | with each run |
//! | `word` | a notice why the group did not come together, from whoever found out | with each attempt |
//!
//! Nothing here ever goes back, which is what lets a worker write everything again into a store
//! that lost its memory. Only a worker whose group did not come together takes its card back.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::NodeId;
use tokio::time::{Instant, sleep};

use super::card::Card;
use super::failure::FailureNotice;
use super::founding::{Founding, GroupKind};
use crate::error::{RendezvousError, corrupt};
use crate::identity::{FIRST_UNRANKED, MAX_WORLD_SIZE};
use crate::store::{Store, StoreError, StoreFuture, end_of};

/// Comparing and setting fails only when somebody else has just succeeded, so even a thousand
/// workers at once need fewer attempts.
const ATTEMPTS: usize = 10_000;
/// How soon a store is asked again that went away.
const PAUSE: Duration = Duration::from_millis(100);

/// A group's records in a store: its part of the keys, all of them under one prefix.
#[derive(Debug)]
pub(super) struct GroupRecords {
    pub(super) store: Arc<dyn Store>,
    prefix: String,
    doing: Mutex<&'static str>,
}

impl GroupRecords {
    pub(super) fn new(store: Arc<dyn Store>, prefix: String) -> Self {
        Self {
            store,
            prefix,
            doing: Mutex::new("reaching the rendezvous"),
        }
    }

    /// The same records in the store of now and no other, if there can be another one.
    pub(super) async fn pinned(&self) -> Result<Option<Self>, RendezvousError> {
        let store = self.run(self.store.pinned()).await?;
        let pinned = store.map(|store| Self::new(store, self.prefix.clone()));
        Ok(pinned.inspect(|pinned| pinned.begin(self.doing())))
    }

    /// What was begun last, to say what did not come to an end.
    pub(super) fn doing(&self) -> &'static str {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, doing: &'static str) {
        *self.doing.lock().unwrap_or_else(PoisonError::into_inner) = doing;
    }

    pub(super) fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Where the id of the worker with this name is.
    pub(super) fn name_key(&self, name: &str) -> String {
        self.key(&format!("name/{name}"))
    }

    /// Where the name of the worker with this id is.
    pub(super) fn id_key(&self, id: u32) -> String {
        self.key(&format!("id/{id}"))
    }

    /// Where the latest incarnation of a worker is.
    pub(super) fn incarnation_key(&self, id: u32) -> String {
        self.key(&format!("incarnation/{id}"))
    }

    /// Where the card of the latest life of a worker is.
    pub(super) fn latest_key(&self, id: u32) -> String {
        self.key(&format!("latest/{id}"))
    }

    /// The group's kind if it has one, or else `mine`, which it then has.
    pub(super) async fn agree_on_kind(
        &self,
        mine: GroupKind,
    ) -> Result<GroupKind, RendezvousError> {
        let key = self.key("kind");
        let theirs = self.claim(&key, &mine.to_text()).await?;
        GroupKind::from_text(&theirs).ok_or_else(|| corrupt(&key, "it names no kind of group"))
    }

    pub(super) async fn kind(&self) -> Result<Option<GroupKind>, RendezvousError> {
        let key = self.key("kind");
        let Some(text) = self.text(&key).await? else {
            return Ok(None);
        };
        let kind = GroupKind::from_text(&text);
        kind.map(Some)
            .ok_or_else(|| corrupt(&key, "it names no kind of group"))
    }

    pub(super) async fn founding(&self) -> Result<Option<Founding>, RendezvousError> {
        let key = self.key("founders");
        let bytes = self.run(self.store.try_get(&key)).await?;
        bytes
            .map(|bytes| Founding::decode(&key, &bytes))
            .transpose()
    }

    /// Waits for the founding.
    pub(super) async fn await_founding(
        &self,
        deadline: Duration,
    ) -> Result<Founding, RendezvousError> {
        let key = self.key("founders");
        let end = end_of(deadline);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.run(self.store.get(&key, left)).await {
                Ok(bytes) => return Founding::decode(&key, &bytes),
                // The record goes to all ranks at once, and is large if they are many.
                Err(RendezvousError::Store {
                    source: StoreError::NoAnswer { .. },
                    ..
                }) if Instant::now() < end => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits a moment for the card of a life that somebody has taken.
    pub(super) async fn await_card(
        &self,
        node: NodeId,
        deadline: Duration,
    ) -> Result<Option<Card>, RendezvousError> {
        let key = self.card_key(node);
        match self.run(self.store.wait(&[key], deadline)).await {
            Ok(()) => self.card(node).await,
            Err(RendezvousError::Store {
                source: StoreError::Timeout { .. },
                ..
            }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Proposes a founding; returns the one that counts.
    pub(super) async fn found(&self, founding: &Founding) -> Result<Founding, RendezvousError> {
        let key = self.key("founders");
        let proposal = founding
            .encode()
            .map_err(|error| corrupt(&key, &error.to_string()))?;
        let bytes = self.run(self.store.compare_set(&key, b"", &proposal));
        Founding::decode(&key, &bytes.await?)
    }

    /// Says why the group does not come together, to all that wait for it.
    pub(super) async fn publish_failure(
        &self,
        notice: &FailureNotice,
    ) -> Result<(), RendezvousError> {
        let key = self.key("word");
        let bytes = notice
            .encode()
            .map_err(|error| corrupt(&key, &error.to_string()))?;
        self.run(self.store.set(&key, &bytes)).await
    }

    /// The latest such notice, as it is written.
    pub(super) async fn failure(&self) -> Result<Option<Bytes>, RendezvousError> {
        self.run(self.store.try_get(&self.key("word"))).await
    }

    pub(super) async fn set_card(&self, card: &Card) -> Result<(), RendezvousError> {
        let (key, bytes) = (self.card_key(card.node), encode(card)?);
        match self.store.presence() {
            Some(presence) => {
                let set = self.run(presence.compare_set_while_here(&key, b"", &bytes));
                set.await.map(drop)
            }
            None => self.run(self.store.set(&key, &bytes)).await,
        }
    }

    /// Publishes the card of a life, unless another process has taken that life. Says whether it did.
    pub(super) async fn claim_card(&self, card: &Card) -> Result<bool, RendezvousError> {
        let (key, mine) = (self.card_key(card.node), encode(card)?);
        let found = self.compare_set_card(&key, b"", &mine).await?;
        Ok(found == mine)
    }

    pub(super) async fn card(&self, node: NodeId) -> Result<Option<Card>, RendezvousError> {
        let key = self.card_key(node);
        let card = self.card_at(&key).await?;
        match card {
            Some(card) if card.node != node => Err(corrupt(&key, "it is the card of another")),
            card => Ok(card),
        }
    }

    pub(super) async fn latest(&self, id: u32) -> Result<Option<Card>, RendezvousError> {
        let key = self.latest_key(id);
        match self.card_at(&key).await? {
            Some(card) if card.node.worker.0 != id => {
                Err(corrupt(&key, "it is the card of another"))
            }
            card => Ok(card),
        }
    }

    /// The latest cards of all workers of a group of this kind. Some may be gone by now.
    pub(super) async fn latest_cards(&self, kind: GroupKind) -> Result<Vec<Card>, RendezvousError> {
        self.begin("looking for the workers of the group");
        let ranks = match kind {
            GroupKind::Static(size) => size,
            GroupKind::Dynamic => self.number(&self.key("ranks")).await?.unwrap_or(0),
        };
        let unranked = self.number(&self.key("next")).await?.unwrap_or(0);
        // The bounds keep a nonsensical number in the store from sending us around for hours.
        let unranked = FIRST_UNRANKED..FIRST_UNRANKED + unranked.min(MAX_WORLD_SIZE);
        let mut cards = Vec::new();
        for id in (0..ranks.min(MAX_WORLD_SIZE)).chain(unranked) {
            match self.latest(id).await {
                Ok(card) => cards.extend(card),
                Err(error @ RendezvousError::Corrupt { .. }) => {
                    tracing::warn!(%error, id, "skipped a worker whose card cannot be read");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(cards)
    }

    /// Makes `card` the latest of its worker, unless there is a later one.
    pub(super) async fn set_latest(&self, card: &Card) -> Result<(), RendezvousError> {
        let key = self.latest_key(card.node.worker.0);
        let mine = encode(card)?;
        for _ in 0..ATTEMPTS {
            let found = self.run(self.store.try_get(&key)).await?;
            let found = found.unwrap_or_default();
            // What cannot be read cannot be later; it is replaced rather than respected.
            if let Ok(other) = Card::decode(&found)
                && other.node >= card.node
            {
                return Ok(());
            }
            if self.compare_set_card(&key, &found, &mine).await? == mine {
                return Ok(());
            }
        }
        Err(corrupt(&key, "it keeps changing"))
    }

    /// A card goes with its worker, where the store notices that.
    async fn compare_set_card(
        &self,
        key: &str,
        expected: &[u8],
        card: &[u8],
    ) -> Result<Bytes, RendezvousError> {
        let operation = match self.store.presence() {
            Some(presence) => presence.compare_set_while_here(key, expected, card),
            None => self.store.compare_set(key, expected, card),
        };
        self.run(operation).await
    }

    /// Takes the card of a life back that has founded nothing and joined nothing.
    pub(super) async fn withdraw(&self, card: &Card) -> Result<(), RendezvousError> {
        let latest = self.latest_key(card.node.worker.0);
        if self.card_at(&latest).await?.as_ref() == Some(card) {
            self.run(self.store.delete(&latest)).await?;
        }
        let key = self.card_key(card.node);
        self.run(self.store.delete(&key)).await.map(drop)
    }

    /// The value of `key`, which is set to `value` if it had none.
    pub(super) async fn claim(&self, key: &str, value: &str) -> Result<String, RendezvousError> {
        let found = self.run(self.store.compare_set(key, b"", value.as_bytes()));
        into_text(key, found.await?)
    }

    pub(super) async fn text(&self, key: &str) -> Result<Option<String>, RendezvousError> {
        let found = self.run(self.store.try_get(key)).await?;
        found.map(|bytes| into_text(key, bytes)).transpose()
    }

    pub(super) async fn number(&self, key: &str) -> Result<Option<u32>, RendezvousError> {
        let text = self.text(key).await?;
        text.map(|text| into_number(key, &text)).transpose()
    }

    /// The next number at `key`. One that nobody has heard of may be left out.
    pub(super) async fn next(&self, key: &str) -> Result<u32, RendezvousError> {
        let sum = loop {
            match self.run(self.store.add(key, 1)).await {
                // Whether it was added is not known; such a store comes back.
                Err(RendezvousError::Store {
                    source: StoreError::Lost { .. } | StoreError::NoAnswer { .. },
                    ..
                }) if self.store.presence().is_some() => sleep(PAUSE).await,
                sum => break sum?,
            }
        };
        u32::try_from(sum).map_err(|_| corrupt(key, "it has run out of range"))
    }

    /// Replaces the number at `key` by what `next` makes of it, until nobody comes between; returns
    /// the number before, if there was one, and the new one. `None` from `next` leaves it as it is.
    pub(super) async fn update(
        &self,
        key: &str,
        next: impl Fn(Option<u32>) -> Option<u32>,
    ) -> Result<Option<(Option<u32>, u32)>, RendezvousError> {
        for _ in 0..ATTEMPTS {
            let found = self.text(key).await?;
            let number = found.as_deref().map(|text| into_number(key, text));
            let number = number.transpose()?;
            let Some(next) = next(number) else {
                return Ok(None);
            };
            let (found, mine) = (found.unwrap_or_default(), next.to_string());
            let store = &self.store;
            let after = self.run(store.compare_set(key, found.as_bytes(), mine.as_bytes()));
            if after.await? == mine {
                return Ok(Some((number, next)));
            }
        }
        Err(corrupt(key, "it keeps changing"))
    }

    /// Makes the number at `key` at least `least`.
    pub(super) async fn raise(&self, key: &str, least: u32) -> Result<(), RendezvousError> {
        let next = |found: Option<u32>| (found.unwrap_or(0) < least).then_some(least);
        self.update(key, next).await.map(drop)
    }

    /// Runs an operation of the store; its error says what it was for.
    pub(super) async fn run<T>(&self, operation: StoreFuture<'_, T>) -> Result<T, RendezvousError> {
        operation.await.map_err(|source| self.failed(source))
    }

    pub(super) fn failed(&self, source: StoreError) -> RendezvousError {
        let doing = self.doing();
        RendezvousError::Store { doing, source }
    }

    fn card_key(&self, node: NodeId) -> String {
        let (id, incarnation) = (node.worker.0, node.incarnation.0);
        self.key(&format!("card/{id}/{incarnation}"))
    }

    async fn card_at(&self, key: &str) -> Result<Option<Card>, RendezvousError> {
        let found = self.run(self.store.try_get(key)).await?;
        found
            .map(|bytes| Card::decode(&bytes).map_err(|error| corrupt(key, &error.to_string())))
            .transpose()
    }
}

pub(super) fn into_number(key: &str, text: &str) -> Result<u32, RendezvousError> {
    text.parse().map_err(|_| corrupt(key, "it is not a number"))
}

fn into_text(key: &str, bytes: Bytes) -> Result<String, RendezvousError> {
    match String::from_utf8(bytes.into()) {
        Ok(text) if text.len() <= 255 => Ok(text),
        _ => Err(corrupt(key, "it is not a short text")),
    }
}

fn encode(card: &Card) -> Result<Vec<u8>, RendezvousError> {
    card.encode().map_err(|error| RendezvousError::Card {
        reason: error.to_string(),
    })
}
