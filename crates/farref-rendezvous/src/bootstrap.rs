//! Takes a worker into its group: an id, a life, and the founders it starts with.
//!
//! 1. Names and ids are bound to each other for good: a name comes with one id, an id with one name.
//! 2. The incarnations of an id grow, also if the store forgets, because they follow the clock. If
//!    the clock did not move far enough, the founders' cards tell of an earlier life. No two processes
//!    have the same one: it belongs to whose card is there first.
//! 3. A group is founded once: of several proposals the store keeps the first.
//! 4. In a static group a worker's latest card is in the store only after every entry it needs to be
//!    found by. Rank 0, once it finds the cards of all ranks, may therefore found the group, and one
//!    that finds a founding need not wait for any card.
//! 5. Rank 0 waits for as many keys as there are ranks, all others for one: what waiting costs the
//!    store grows with the number of ranks, and not with its square.
//! 6. A worker that is there is not followed by a next life: whoever takes its name is refused before it
//!    has published a card. One that is gone, noticed or not, is no obstacle.
//! 7. Of two lives that did not notice each other, because one was slow to publish its card, the earlier
//!    one finds the later one's while it waits: a worker that was started twice never waits in vain.
//! 8. A worker that comes to a growing group's store and finds nothing there takes no id before the members
//!    of a group that met there, and lost its store's host, had time to write into the new store: the group
//!    does not fall into two because its first worker has gone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use farref_proto::{GroupId, NodeId};
use tokio::time::{Instant, sleep, timeout_at};

use super::card::{Address, Card, TokenTag};
use super::directory::Directory;
use super::error::RendezvousError;
use super::ledger::{FIRST_UNRANKED, Founding, Kind, Ledger, MAX_WORLD_SIZE, corrupt, into_number};
use super::presence::{Presence, Sign};
use super::settings::check_name;
use super::store::{Store, StoreError, end_of};
use super::word::{Cause, Word};

/// How often a worker that waits looks for a founding, which comes before the cards only if the store
/// lost its memory and the workers of a running group wrote theirs into it; and for word that the group
/// will not come together.
const LOOK: Duration = Duration::from_secs(1);
/// How long an earlier life of this worker may take to say that it is there.
const PRESENCE: Duration = Duration::from_secs(5);
/// The same for one that may be waiting for the group's founding: then it says nothing.
const PRESENCE_OF_WAITING: Duration = Duration::from_secs(1);
/// How soon rank 0 looks again for a card that was a leftover.
const AGAIN: Duration = Duration::from_millis(100);
/// How long the card of a life that was taken just before this one may take to be published.
const HESITATION: Duration = Duration::from_secs(1);

/// How a worker wants to enter.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name, unique in the group.
    pub name: String,
    /// Its rank; needed if there is a world size.
    pub rank: Option<u32>,
    /// How many workers found the group. Without it, the first to come founds it.
    pub world_size: Option<u32>,
    /// Where it listens.
    pub addresses: Vec<Address>,
    /// Which host it runs on.
    pub host: String,
    /// How long entering may take, the wait for the other workers included.
    pub timeout: Duration,
    /// How long the members of a running group have to write it into an empty store: longer than nothing
    /// if its host may be a new one.
    pub grace: Duration,
    /// All keys of the group start with this and a `/`.
    pub prefix: String,
    /// The version of the wire that it speaks.
    pub wire: u16,
    /// Of its token, if it has one, what all may know.
    pub token: Option<TokenTag>,
    /// Finds out whether an earlier life of it is still there.
    pub presence: Arc<dyn Presence>,
}

/// What a worker has after entering.
#[derive(Debug)]
pub struct Entry {
    /// Its own card.
    pub me: Card,
    /// The group.
    pub group: GroupId,
    /// All founders, in the order of their ids, if this life is one of them. `None` if the group
    /// was founded without it: it has to join through a sponsor.
    pub founders: Option<Vec<Card>>,
    /// Finds other workers.
    pub directory: Directory,
}

/// Enters the group that meets in `store`.
pub async fn enter(store: Arc<dyn Store>, plan: Plan) -> Result<Entry, RendezvousError> {
    let began = Instant::now();
    check_plan(&plan)?;
    let ledger = Ledger::new(store, plan.prefix.clone());
    let entrance = Entrance {
        ledger: &ledger,
        plan: &plan,
        began,
        end: end_of(plan.timeout),
        told: AtomicBool::new(false),
        published: Mutex::default(),
    };
    let entered = timeout_at(entrance.end, entrance.enter()).await;
    let (kind, me, founding) = entered.unwrap_or_else(|_| {
        Err(RendezvousError::TimedOut {
            doing: ledger.doing(),
            waited: began.elapsed(),
        })
    })?;
    let is_founder = founding.founders.iter().any(|card| card.node == me.node);
    Ok(Entry {
        group: founding.group,
        founders: is_founder.then(|| founding.founders.clone()),
        directory: Directory::new(ledger, kind, me.clone(), founding),
        me,
    })
}

fn check_plan(plan: &Plan) -> Result<(), RendezvousError> {
    check_name(&plan.name)?;
    check_rank(plan.rank, plan.world_size)
}

/// Refuses a rank and a world size that do not go together.
pub fn check_rank(rank: Option<u32>, world_size: Option<u32>) -> Result<(), RendezvousError> {
    let fits = match (rank, world_size) {
        (Some(rank), Some(size)) => size <= MAX_WORLD_SIZE && rank < size,
        (None, Some(_)) => false,
        (Some(rank), None) => rank < MAX_WORLD_SIZE,
        (None, None) => true,
    };
    match fits {
        true => Ok(()),
        false => Err(RendezvousError::Rank {
            rank,
            world_size,
            limit: MAX_WORLD_SIZE,
        }),
    }
}

struct Entrance<'a> {
    ledger: &'a Ledger,
    plan: &'a Plan,
    began: Instant,
    end: Instant,
    /// Whether another worker has told this one why the group does not come together.
    told: AtomicBool,
    /// The card that this worker has published last.
    published: Mutex<Option<Card>>,
}

impl Entrance<'_> {
    /// What is left of the time for waiting: a little less than all, so that the reason why
    /// waiting was in vain can still be found out.
    fn patience(&self) -> Duration {
        let reserve = (self.plan.timeout / 10).min(Duration::from_secs(2));
        (self.end - reserve).saturating_duration_since(Instant::now())
    }

    async fn enter(&self) -> Result<(Kind, Card, Founding), RendezvousError> {
        if !self.plan.grace.is_zero() {
            self.ledger
                .begin("looking for a group that met here before");
            self.await_return(self.plan.grace).await?;
        }
        self.ledger.begin("agreeing on the kind of group");
        let kind = self.kind().await?;
        // What was said before concerned an earlier attempt.
        let heard = match kind {
            Kind::Static(_) => self.ledger.word().await?,
            Kind::Dynamic => None,
        };
        let entered = self.enter_as(kind, heard).await;
        if let (Kind::Static(_), Err(error)) = (kind, &entered) {
            self.tell_of(error).await;
            if error.is_conflict() {
                self.withdraw().await;
            }
        }
        entered
    }

    async fn enter_as(
        &self,
        kind: Kind,
        heard: Option<Bytes>,
    ) -> Result<(Kind, Card, Founding), RendezvousError> {
        self.ledger.begin("taking an id");
        let id = self.id(kind).await?;
        let mut me = self.come_to_life(kind, id, None).await?;
        self.ledger.begin("waiting for the founding of the group");
        let founding = match kind {
            Kind::Static(size) => self.found_together(size, &me, heard).await?,
            Kind::Dynamic => self.found_alone(&me).await?,
        };
        let earlier = founding
            .founders
            .iter()
            .find(|card| card.node.worker == me.node.worker);
        if let Some(earlier) = earlier
            && earlier.node >= me.node
            && *earlier != me
        {
            let key = self.incarnation_key(id);
            self.ledger.raise(&key, earlier.node.incarnation.0).await?;
            me = self.come_to_life(kind, id, Some(earlier)).await?;
        }
        Ok((kind, me, founding))
    }

    /// Takes an incarnation and publishes the card of it, unless an earlier one is still there.
    async fn come_to_life(
        &self,
        kind: Kind,
        id: u32,
        founder: Option<&Card>,
    ) -> Result<Card, RendezvousError> {
        loop {
            self.ledger.begin("taking an incarnation");
            let (before, incarnation) = self.incarnation(id).await?;
            self.ledger
                .begin("looking for an earlier life of this worker");
            match (founder, before) {
                (Some(founder), _) => self.check_absent(kind, founder).await?,
                (None, Some(before)) => self.check_vacant(kind, NodeId::new(id, before)).await?,
                (None, None) => {}
            }
            self.ledger.begin("publishing this worker's card");
            let me = Card {
                node: NodeId::new(id, incarnation),
                name: self.plan.name.clone(),
                addresses: self.plan.addresses.clone(),
                host: self.plan.host.clone(),
                wire: self.plan.wire,
                token: self.plan.token,
            };
            // Two that take the same number at the same moment both read back what they wrote. Their cards
            // differ, so that only one of them has it (invariant 2).
            if self.ledger.claim_card(&me).await? {
                self.ledger.set_latest(&me).await?;
                *self.published() = Some(me.clone());
                return Ok(me);
            }
        }
    }

    fn published(&self) -> MutexGuard<'_, Option<Card>> {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes this worker's card back: the next attempt at the group is not to find it.
    async fn withdraw(&self) {
        let published = self.published().take();
        let Some(me) = published else {
            return;
        };
        let withdrawn = timeout_at(self.end, self.ledger.withdraw(&me)).await;
        if !matches!(withdrawn, Ok(Ok(()))) {
            tracing::debug!(?withdrawn, "this worker's card stays in the store");
        }
    }

    /// Refuses to follow a life that is still there (invariant 6). `before` is the one that was taken
    /// before this one's, by a worker that may never have got further.
    async fn check_vacant(&self, kind: Kind, before: NodeId) -> Result<(), RendezvousError> {
        let latest = match self.ledger.latest(before.worker.0).await {
            // What cannot be read leads nowhere.
            Err(RendezvousError::Corrupt { .. }) => None,
            latest => latest?,
        };
        if let Some(latest) = &latest {
            self.check_absent(kind, latest).await?;
        }
        if latest.is_none_or(|latest| latest.node < before) {
            let patience = HESITATION.min(self.patience());
            match self.ledger.await_card(before, patience).await {
                Ok(Some(card)) => self.check_absent(kind, &card).await?,
                Ok(None) | Err(RendezvousError::Corrupt { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn check_absent(&self, kind: Kind, earlier: &Card) -> Result<(), RendezvousError> {
        // Nobody answers before the group is founded.
        let waits = kind != Kind::Dynamic && self.ledger.founding().await?.is_none();
        let patience = if waits { PRESENCE_OF_WAITING } else { PRESENCE };
        let patience = patience.min(self.patience() / 2);
        match self.plan.presence.ask(earlier, patience).await? {
            Sign::Absent => return Ok(()),
            Sign::Silent if !waits || self.is_another_there(kind, earlier).await? => return Ok(()),
            Sign::Silent | Sign::Present => {}
        }
        Err(name_taken(earlier))
    }

    /// Whether another worker says that it listens where this one did, and came no earlier: then whoever is
    /// there is the other, and waits for the group as well.
    async fn is_another_there(&self, kind: Kind, earlier: &Card) -> Result<bool, RendezvousError> {
        let Kind::Static(size) = kind else {
            return Ok(false);
        };
        for id in (0..size).filter(|&id| id != earlier.node.worker.0) {
            let other = match self.ledger.latest(id).await {
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

    /// Leaves word of what this worker has found out, for those who wait for the same group.
    async fn tell_of(&self, error: &RendezvousError) {
        let Some(cause) = Cause::of(error, &self.plan.name) else {
            return;
        };
        // Of those who wait in vain, it is rank 0 whose store may go with it.
        let is_missing = matches!(cause, Cause::Missing { .. });
        if self.told.load(Ordering::Relaxed) || is_missing && self.plan.rank != Some(0) {
            return;
        }
        let telling = async {
            if self.ledger.founding().await?.is_some() {
                // Nobody waits.
                return Ok(());
            }
            self.ledger.leave_word(&Word::new(cause)?).await
        };
        let told = timeout_at(self.end, telling).await;
        if !matches!(told, Ok(Ok(()))) {
            tracing::debug!(
                ?told,
                "the others are not told why the group does not come together"
            );
        }
    }

    /// Gives the members of a group whose store is gone the time to write into this one (invariant 8).
    async fn await_return(&self, grace: Duration) -> Result<(), RendezvousError> {
        let kind = [self.ledger.key("kind")];
        let patience = grace.min(self.patience());
        match self.ledger.store.wait(&kind, patience).await {
            Ok(()) | Err(StoreError::Timeout { .. }) => Ok(()),
            Err(error) => Err(self.ledger.failed(error)),
        }
    }

    async fn kind(&self) -> Result<Kind, RendezvousError> {
        let mine = match self.plan.world_size {
            Some(size) => Kind::Static(size),
            // Whoever comes without a world size may also be an addition to a static group.
            None => match self.ledger.kind().await? {
                Some(kind) => kind,
                None => Kind::Dynamic,
            },
        };
        let group = self.ledger.agree_on_kind(mine).await?;
        let fits = match (self.plan.world_size, self.plan.rank, group) {
            (None, Some(rank), Kind::Static(size)) => rank < size,
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

    async fn id(&self, kind: Kind) -> Result<u32, RendezvousError> {
        let name = &self.plan.name;
        let name_key = self.ledger.key(&format!("name/{name}"));
        let Some(rank) = self.plan.rank else {
            return self.unranked_id(&name_key).await;
        };
        let had_name = self.ledger.text(&name_key).await?.is_some();
        let found = self.ledger.claim(&name_key, &rank.to_string()).await?;
        let other = into_number(&name_key, &found)?;
        if other != rank {
            return Err(RendezvousError::DuplicateName {
                name: name.clone(),
                first: other,
                second: rank,
            });
        }
        let id_key = self.ledger.key(&format!("id/{rank}"));
        let other = self.ledger.claim(&id_key, name).await?;
        if other != *name {
            // The rank is not ours, so the name must not stay bound to it.
            if !had_name {
                self.ledger.run(self.ledger.store.delete(&name_key)).await?;
            }
            return Err(RendezvousError::DuplicateRank {
                rank,
                first: other,
                second: name.clone(),
            });
        }
        if kind == Kind::Dynamic {
            let ranks = self.ledger.key("ranks");
            self.ledger.raise(&ranks, rank + 1).await?;
        }
        Ok(rank)
    }

    /// The id that goes with the name, or the next one.
    async fn unranked_id(&self, name_key: &str) -> Result<u32, RendezvousError> {
        let known = match self.ledger.text(name_key).await? {
            Some(known) => known,
            None => {
                let next = self.ledger.key("next");
                let number = self.ledger.add(&next).await?;
                let id = number
                    .checked_sub(1)
                    .and_then(|n| n.checked_add(FIRST_UNRANKED));
                let id = id.ok_or_else(|| corrupt(&next, "it has run out of range"))?;
                // Somebody of the same name may have been faster: then we are its next life.
                self.ledger.claim(name_key, &id.to_string()).await?
            }
        };
        let id = into_number(name_key, &known)?;
        let id_key = self.ledger.key(&format!("id/{id}"));
        self.ledger.claim(&id_key, &self.plan.name).await?;
        Ok(id)
    }

    /// The latest incarnation so far, and this one's.
    async fn incarnation(&self, id: u32) -> Result<(Option<u32>, u32), RendezvousError> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs());
        let now = u32::try_from(now).unwrap_or(u32::MAX - 1);
        let key = self.incarnation_key(id);
        let next = |found: Option<u32>| match found {
            Some(found) => found.checked_add(1).map(|next| next.max(now)),
            None => Some(now.max(1)),
        };
        let taken = self.ledger.update(&key, next).await?;
        taken.ok_or_else(|| corrupt(&key, "no greater incarnation is left"))
    }

    fn incarnation_key(&self, id: u32) -> String {
        self.ledger.key(&format!("incarnation/{id}"))
    }

    async fn found_alone(&self, me: &Card) -> Result<Founding, RendezvousError> {
        match self.ledger.founding().await? {
            Some(founding) => Ok(founding),
            None => self.ledger.found(&Founding::new(vec![me.clone()])?).await,
        }
    }

    async fn found_together(
        &self,
        size: u32,
        me: &Card,
        heard: Option<Bytes>,
    ) -> Result<Founding, RendezvousError> {
        if let Some(founding) = self.ledger.founding().await? {
            return Ok(founding);
        }
        if me.node.worker.0 != 0 {
            // Also an additional worker that is early waits for those who found the group.
            return tokio::select! {
                told = self.look_for_founding(me, heard) => told,
                founding = self.await_founding(size) => founding,
            };
        }
        tokio::select! {
            told = self.look_for_founding(me, heard) => told,
            founding = self.gather_and_found(size) => founding,
        }
    }

    /// What rank 0 does: waits for the cards of all, and makes a group of them.
    async fn gather_and_found(&self, size: u32) -> Result<Founding, RendezvousError> {
        loop {
            self.await_cards(size).await?;
            if let Some(founding) = self.ledger.founding().await? {
                return Ok(founding);
            }
            let mut founders = Vec::new();
            for id in 0..size {
                // One that is gone again has been taken back: there will be another.
                founders.extend(self.ledger.latest(id).await?);
            }
            if founders.len() == size as usize {
                match self.conflict(&founders) {
                    None => return self.ledger.found(&Founding::new(founders)?).await,
                    Some((error, with)) => {
                        if self.is_one_there(&with).await {
                            return Err(error);
                        }
                        // An earlier attempt has left it; its next life may do better.
                    }
                }
            }
            sleep(AGAIN.min(self.patience())).await;
        }
    }

    /// Whether one of these is there, and not only its card. The first few are enough to find out.
    async fn is_one_there(&self, cards: &[&Card]) -> bool {
        for card in cards.iter().take(4) {
            let patience = PRESENCE_OF_WAITING.min(self.patience() / 2);
            let sign = self.plan.presence.ask(card, patience).await;
            if !matches!(sign, Ok(Sign::Absent)) {
                return true;
            }
        }
        self.patience().is_zero()
    }

    /// Rank 0 waits for the cards of all.
    async fn await_cards(&self, size: u32) -> Result<(), RendezvousError> {
        let cards: Vec<String> = (0..size).map(|id| self.ledger.latest_key(id)).collect();
        match self.ledger.store.wait(&cards, self.patience()).await {
            Ok(()) => Ok(()),
            Err(StoreError::Timeout { missing, .. }) => {
                let missing: HashSet<String> = missing.into_iter().collect();
                let is_missing = |id: &u32| missing.contains(&self.ledger.latest_key(*id));
                let (missing, there) = (0..size).partition(is_missing);
                Err(self.shortage(size, missing, there).await)
            }
            Err(error) => Err(self.ledger.failed(error)),
        }
    }

    /// The others wait for rank 0 to found the group.
    async fn await_founding(&self, size: u32) -> Result<Founding, RendezvousError> {
        match self.ledger.await_founding(self.patience()).await {
            Err(RendezvousError::Store {
                source: StoreError::Timeout { .. },
                ..
            }) => Err(self.shortage(size, Vec::new(), (0..size).collect()).await),
            settled => settled,
        }
    }

    /// Waits for a founding, or for a sign that there will be none.
    async fn look_for_founding(
        &self,
        me: &Card,
        heard: Option<Bytes>,
    ) -> Result<Founding, RendezvousError> {
        loop {
            sleep(LOOK).await;
            if let Some(founding) = self.ledger.founding().await? {
                return Ok(founding);
            }
            // Invariant 7.
            if let Some(latest) = self.ledger.latest(me.node.worker.0).await?
                && latest.node > me.node
            {
                return Err(name_taken(&latest));
            }
            let word = self.ledger.word().await?;
            if word == heard {
                continue;
            }
            if let Some(word) = word.as_deref().and_then(Word::decode) {
                self.told.store(true, Ordering::Relaxed);
                let waited = self.began.elapsed();
                return Err(word.cause.into_error(self.plan.wire, waited));
            }
        }
    }

    /// Why these could not talk to each other, and with whom rank 0 could not.
    fn conflict<'c>(&self, founders: &'c [Card]) -> Option<(RendezvousError, Vec<&'c Card>)> {
        let first = founders.first()?;
        let others = |differs: fn(&Card, &Card) -> bool| {
            let others = founders.iter().filter(|card| differs(card, first));
            others.collect::<Vec<&Card>>()
        };
        let with = others(|card, first| card.wire != first.wire);
        if let Some(other) = with.first() {
            let cause = Cause::Wire {
                one: (first.name.clone(), first.wire),
                other: (other.name.clone(), other.wire),
            };
            let error = cause.into_error(self.plan.wire, self.began.elapsed());
            return Some((error, with));
        }
        let with = others(|card, first| card.token != first.token);
        let error = RendezvousError::DifferentTokens {
            like: first.name.clone(),
            unlike: with.iter().map(|card| card.name.clone()).collect(),
        };
        (!with.is_empty()).then_some((error, with))
    }

    /// Finds out who came, of those that may be there.
    async fn shortage(&self, size: u32, mut missing: Vec<u32>, there: Vec<u32>) -> RendezvousError {
        let mut have = Vec::new();
        for id in there {
            match timeout_at(self.end, self.ledger.latest(id)).await {
                Ok(Ok(Some(card))) => have.push((id, card.name)),
                Ok(Ok(None)) => missing.push(id),
                // Whoever cannot be read is there all the same.
                Ok(Err(_)) => have.push((id, "name unknown".into())),
                Err(_) => {
                    return RendezvousError::TimedOut {
                        doing: self.ledger.doing(),
                        waited: self.began.elapsed(),
                    };
                }
            }
        }
        if missing.is_empty() && !have.is_empty() {
            // All have been there, and rank 0 is not there any more to found the group.
            have.remove(0);
            missing.push(0);
        }
        missing.sort_unstable();
        RendezvousError::Missing {
            have,
            missing,
            world_size: size,
            waited: self.began.elapsed(),
        }
    }
}

fn name_taken(by: &Card) -> RendezvousError {
    let addresses: Vec<_> = by.addresses.iter().map(Address::to_string).collect();
    RendezvousError::NameTaken {
        name: by.name.clone(),
        address: addresses.join(" and "),
    }
}
