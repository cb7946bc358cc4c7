//! Takes a worker into its group: an id, a life, and the founders it starts with.
//!
//! 1. Names and ids are bound to each other for good: a name comes with one id, an id with one name.
//! 2. The incarnations of an id grow, also if the store forgets, because they follow the clock. If
//!    the clock did not move far enough, the founders' cards tell of an earlier life.
//! 3. A group is founded once: of several proposals the store keeps the first.
//! 4. In a static group a worker's latest card is in the store only after every entry it needs to be
//!    found by. A worker that finds the cards of all ranks may therefore found the group, and one
//!    that finds a founding need not wait for any card.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use farref_proto::{GroupId, NodeId};
use tokio::time::{Instant, sleep, timeout_at};

use super::card::{Address, Card};
use super::directory::Directory;
use super::environment::check_name;
use super::error::RendezvousError;
use super::ledger::{
    FIRST_UNRANKED, Founding, Kind, Ledger, MAX_WORLD_SIZE, Shortage, corrupt, into_number,
};
use super::store::{Store, StoreError, end_of};

/// How long the other ranks leave the founding to rank 0: if all did it, each would read all cards.
const GRACE: Duration = Duration::from_millis(500);
/// How often a worker that waits for cards looks for a founding, which comes first only if the store
/// lost its memory and the workers of a running group wrote theirs into it; and for word that rank 0
/// has given up.
const LOOK: Duration = Duration::from_secs(1);
/// How long the store's host keeps it after it has given up, so that the others find its word.
pub(crate) const FAREWELL: Duration = Duration::from_millis(1_500);

/// How a worker wants to enter.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its name, unique in the group.
    pub(crate) name: String,
    /// Its rank; needed if there is a world size.
    pub(crate) rank: Option<u32>,
    /// How many workers found the group. Without it, the first to come founds it.
    pub(crate) world_size: Option<u32>,
    /// Where it listens.
    pub(crate) addresses: Vec<Address>,
    /// Which host it runs on.
    pub(crate) host: String,
    /// How long entering may take, the wait for the other workers included.
    pub(crate) timeout: Duration,
    /// All keys of the group start with this and a `/`.
    pub(crate) prefix: String,
}

/// What a worker has after entering.
#[derive(Debug)]
pub(crate) struct Entry {
    /// Its own card.
    pub(crate) me: Card,
    /// The group.
    pub(crate) group: GroupId,
    /// All founders, in the order of their ids, if this life is one of them. `None` if the group
    /// was founded without it: it has to join through a sponsor.
    pub(crate) founders: Option<Vec<Card>>,
    /// Finds other workers.
    pub(crate) directory: Directory,
}

/// Enters the group that meets in `store`.
pub(crate) async fn enter(store: Arc<dyn Store>, plan: Plan) -> Result<Entry, RendezvousError> {
    let began = Instant::now();
    check_plan(&plan)?;
    let ledger = Ledger::new(store, plan.prefix.clone());
    let entrance = Entrance {
        ledger: &ledger,
        plan: &plan,
        began,
        end: end_of(plan.timeout),
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
pub(crate) fn check_rank(
    rank: Option<u32>,
    world_size: Option<u32>,
) -> Result<(), RendezvousError> {
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
}

impl Entrance<'_> {
    /// What is left of the time for waiting: a little less than all, so that the reason why
    /// waiting was in vain can still be found out.
    fn patience(&self) -> Duration {
        let reserve = (self.plan.timeout / 10).min(Duration::from_secs(2));
        (self.end - reserve).saturating_duration_since(Instant::now())
    }

    async fn enter(&self) -> Result<(Kind, Card, Founding), RendezvousError> {
        self.ledger.begin("agreeing on the kind of group");
        let kind = self.kind().await?;
        self.ledger.begin("taking an id");
        let id = self.id(kind).await?;
        let mut me = self.come_to_life(id).await?;
        self.ledger.begin("waiting for the founding of the group");
        let founding = match kind {
            Kind::Static(size) if id < size => self.found_together(size, &me).await?,
            // An additional worker that is early waits for those who found the group.
            Kind::Static(_) => self.ledger.await_founding(self.patience()).await?,
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
            me = self.come_to_life(id).await?;
        }
        Ok((kind, me, founding))
    }

    /// Takes an incarnation and publishes the card of it.
    async fn come_to_life(&self, id: u32) -> Result<Card, RendezvousError> {
        self.ledger.begin("taking an incarnation");
        let incarnation = self.incarnation(id).await?;
        self.ledger.begin("publishing this worker's card");
        let me = Card {
            node: NodeId::new(id, incarnation),
            name: self.plan.name.clone(),
            addresses: self.plan.addresses.clone(),
            host: self.plan.host.clone(),
        };
        self.ledger.set_card(&me).await?;
        self.ledger.set_latest(&me).await?;
        Ok(me)
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
                mine: rank,
                other,
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
                mine: name.clone(),
                other,
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

    async fn incarnation(&self, id: u32) -> Result<u32, RendezvousError> {
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

    async fn found_together(&self, size: u32, me: &Card) -> Result<Founding, RendezvousError> {
        if let Some(founding) = self.ledger.founding().await? {
            return Ok(founding);
        }
        let cards: Vec<String> = (0..size).map(|id| self.ledger.latest_key(id)).collect();
        let waited = tokio::select! {
            founding = self.look_for_founding(me) => return founding,
            waited = self.ledger.store.wait(&cards, self.patience()) => waited,
        };
        match waited {
            Ok(()) => {}
            Err(StoreError::Timeout { missing, .. }) => {
                let missing: HashSet<String> = missing.into_iter().collect();
                let is_missing = |id: &u32| missing.contains(&self.ledger.latest_key(*id));
                let (missing, there) = (0..size).partition(is_missing);
                return Err(self.give_up(size, missing, there).await);
            }
            Err(error) => return Err(self.ledger.failed(error)),
        }
        if self.plan.rank != Some(0) {
            match self.ledger.await_founding(GRACE.min(self.patience())).await {
                Err(RendezvousError::Store {
                    source: StoreError::Timeout { .. },
                    ..
                }) => {}
                settled => return settled,
            }
        } else if let Some(founding) = self.ledger.founding().await? {
            return Ok(founding);
        }
        let mut founders = Vec::new();
        for id in 0..size {
            let card = self.ledger.latest(id).await?;
            founders.push(
                card.ok_or_else(|| {
                    corrupt(&self.ledger.latest_key(id), "it was there and is gone")
                })?,
            );
        }
        self.ledger.found(&Founding::new(founders)?).await
    }

    /// Waits for a founding, or for rank 0 to give up.
    async fn look_for_founding(&self, me: &Card) -> Result<Founding, RendezvousError> {
        loop {
            sleep(LOOK).await;
            if let Some(founding) = self.ledger.founding().await? {
                return Ok(founding);
            }
            // What concerned an earlier life is history.
            if let Some(shortage) = self.ledger.shortage().await?
                && shortage.lives.contains(&me.node)
            {
                return Err(shortage.into_error(self.began.elapsed()));
            }
        }
    }

    /// Finds out who came. Rank 0 leaves word of it: its store may go with it, and the others
    /// would learn no more than that.
    async fn give_up(&self, size: u32, missing: Vec<u32>, there: Vec<u32>) -> RendezvousError {
        let mut shortage = Shortage {
            world_size: size,
            missing,
            have: Vec::new(),
            lives: Vec::new(),
        };
        for id in there {
            // Whoever cannot be read is there all the same.
            let latest = timeout_at(self.end, self.ledger.latest(id)).await;
            let name = match latest {
                Ok(Ok(Some(card))) => {
                    shortage.lives.push(card.node);
                    card.name
                }
                _ => "name unknown".into(),
            };
            shortage.have.push((id, name));
        }
        if self.plan.rank == Some(0) {
            let told = timeout_at(self.end, self.ledger.set_shortage(&shortage)).await;
            if !matches!(told, Ok(Ok(()))) {
                tracing::debug!(?told, "the others are not told who is missing");
            }
        }
        shortage.into_error(self.began.elapsed())
    }
}
