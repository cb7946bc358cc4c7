//! Takes a worker into its group: an id, a life, and the founders it starts with.
//!
//! | part | job |
//! | --- | --- |
//! | `claim` | takes an id and an incarnation, and publishes a card |
//! | `predecessor` | finds out whether an earlier life of the worker is still there |
//! | `gather` | founds the group, with the other founders, or waits for somebody who does |
//!
//! # Invariants
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

mod claim;
mod gather;
mod predecessor;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::GroupId;
use tokio::time::{Instant, timeout_at};

use super::card::{Address, Card, TokenTag};
use super::certificate_tag::CertificateTag;
use super::directory::Directory;
use super::failure::{FailureCause, FailureNotice};
use super::founding::{Founding, GroupKind};
use super::liveness::LivenessProbe;
use super::records::GroupRecords;
use crate::error::RendezvousError;
use crate::identity::{check_name, check_rank};
use crate::store::{Store, StoreError, end_of};

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
    /// Of its certificate, if it has one, what the others are to know.
    pub certificate: Option<CertificateTag>,
    /// Finds out whether an earlier life of it is still there.
    pub probe: Arc<dyn LivenessProbe>,
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

/// Enters the group that meets in `store`. Whoever has founded it, or was let in by a sponsor, has then to
/// [settle](Directory::settle).
///
/// ```
/// use std::pin::Pin;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use farref_rendezvous::group::{Address, Card, Liveness, LivenessProbe, Plan, enter};
/// use farref_rendezvous::{MemoryStore, RendezvousError};
///
/// /// Of no worker there was an earlier life.
/// #[derive(Debug)]
/// struct AllAreNew;
///
/// impl LivenessProbe for AllAreNew {
///     fn probe<'a>(
///         &'a self,
///         _: &'a Card,
///         _: Duration,
///     ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>> {
///         Box::pin(async { Ok(Liveness::Gone) })
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), RendezvousError> {
/// let plan = |rank: u32| Plan {
///     name: format!("worker{rank}"),
///     rank: Some(rank),
///     world_size: Some(2),
///     addresses: vec![Address::Memory(format!("a pipe of {rank}"))],
///     host: "this".to_owned(),
///     timeout: Duration::from_secs(60),
///     grace: Duration::ZERO,
///     prefix: "example".to_owned(),
///     wire: 1,
///     token: None,
///     certificate: None,
///     probe: Arc::new(AllAreNew),
/// };
/// let store = Arc::new(MemoryStore::new());
/// let (zero, one) = tokio::try_join!(enter(store.clone(), plan(0)), enter(store, plan(1)))?;
/// assert_eq!(zero.group, one.group);
/// assert_eq!(zero.founders, one.founders);
/// assert_eq!(one.directory.lookup(zero.me.node).await?, zero.me);
/// # Ok(())
/// # }
/// ```
pub async fn enter(store: Arc<dyn Store>, plan: Plan) -> Result<Entry, RendezvousError> {
    let began = Instant::now();
    check_name(&plan.name)?;
    check_rank(plan.rank, plan.world_size)?;
    let records = GroupRecords::new(store, plan.prefix.clone());
    let attempt = EntryAttempt {
        records: &records,
        plan: &plan,
        began,
        end: end_of(plan.timeout),
        told: AtomicBool::new(false),
        published: Mutex::default(),
    };
    let entered = timeout_at(attempt.end, attempt.enter()).await;
    let (kind, me, founding) = entered.unwrap_or_else(|_| {
        Err(RendezvousError::TimedOut {
            doing: records.doing(),
            waited: began.elapsed(),
        })
    })?;
    let is_founder = founding.founders.iter().any(|card| card.node == me.node);
    let group = founding.group;
    let founders = is_founder.then(|| founding.founders.clone());
    let directory = Directory::new(records, kind, me.clone(), founding);
    Ok(Entry {
        me,
        group,
        founders,
        directory,
    })
}

/// One attempt of a worker to enter its group.
struct EntryAttempt<'a> {
    records: &'a GroupRecords,
    plan: &'a Plan,
    began: Instant,
    end: Instant,
    /// Whether another worker has told this one why the group does not come together.
    told: AtomicBool,
    /// The card that this worker has published last.
    published: Mutex<Option<Card>>,
}

impl EntryAttempt<'_> {
    /// What is left of the time for waiting: a little less than all, so that the reason why
    /// waiting was in vain can still be found out.
    fn time_left(&self) -> Duration {
        let reserve = (self.plan.timeout / 4).min(Duration::from_secs(5));
        (self.end - reserve).saturating_duration_since(Instant::now())
    }

    async fn enter(&self) -> Result<(GroupKind, Card, Founding), RendezvousError> {
        if !self.plan.grace.is_zero() {
            self.records
                .begin("looking for a group that met here before");
            self.await_former_group(self.plan.grace).await?;
        }
        self.records.begin("agreeing on the kind of group");
        let kind = self.kind().await?;
        // The notice of an earlier attempt, which does not concern this one.
        let stale = match kind {
            GroupKind::Static(_) => self.records.failure().await?,
            GroupKind::Dynamic => None,
        };
        let entered = self.enter_as(kind, stale).await;
        if let (GroupKind::Static(_), Err(error)) = (kind, &entered) {
            self.publish_failure(error).await;
            if error.is_conflict() {
                self.withdraw().await;
            }
        }
        entered
    }

    async fn enter_as(
        &self,
        kind: GroupKind,
        stale: Option<Bytes>,
    ) -> Result<(GroupKind, Card, Founding), RendezvousError> {
        self.records.begin("taking an id");
        let id = self.id(kind).await?;
        let mut me = self.claim_incarnation(kind, id, None).await?;
        self.records.begin("waiting for the founding of the group");
        let founding = match kind {
            GroupKind::Static(size) => self.found_together(size, &me, stale).await?,
            GroupKind::Dynamic => self.found_alone(&me).await?,
        };
        let earlier = founding
            .founders
            .iter()
            .find(|card| card.node.worker == me.node.worker);
        if let Some(earlier) = earlier
            && earlier.node >= me.node
            && *earlier != me
        {
            let key = self.records.incarnation_key(id);
            self.records.raise(&key, earlier.node.incarnation.0).await?;
            me = self.claim_incarnation(kind, id, Some(earlier)).await?;
        }
        Ok((kind, me, founding))
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
        let withdrawn = timeout_at(self.end, self.records.withdraw(&me)).await;
        if !matches!(withdrawn, Ok(Ok(()))) {
            tracing::debug!(?withdrawn, "this worker's card stays in the store");
        }
    }

    /// Tells those who wait for the same group what this worker has found out.
    async fn publish_failure(&self, error: &RendezvousError) {
        let Some(cause) = FailureCause::of(error, &self.plan.name) else {
            return;
        };
        // Of those who wait in vain, it is rank 0 whose store may go with it.
        let is_missing = matches!(cause, FailureCause::Missing { .. });
        if self.told.load(Ordering::Relaxed) || is_missing && self.plan.rank != Some(0) {
            return;
        }
        let publishing = async {
            if self.records.founding().await?.is_some() {
                // Nobody waits.
                return Ok(());
            }
            self.records
                .publish_failure(&FailureNotice::new(cause)?)
                .await
        };
        let published = timeout_at(self.end, publishing).await;
        if !matches!(published, Ok(Ok(()))) {
            tracing::debug!(
                ?published,
                "the others are not told why the group does not come together"
            );
        }
    }

    /// Gives the members of a group whose store is gone the time to write into this one (invariant 8).
    async fn await_former_group(&self, grace: Duration) -> Result<(), RendezvousError> {
        // The last of what a newcomer must not be without: its kind and the ids given away come before it.
        let founders = [self.records.key("founders")];
        let timeout = grace.min(self.time_left());
        match self.records.store.wait(&founders, timeout).await {
            Ok(()) | Err(StoreError::Timeout { .. }) => Ok(()),
            Err(error) => Err(self.records.failed(error)),
        }
    }
}
