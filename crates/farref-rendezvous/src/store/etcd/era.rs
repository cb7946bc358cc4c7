//! Who is there: the era that a user is in, its lease, and how an era ends and the next begins.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::gateway::{Gateway, QUICK};
use super::transaction::{Done, Kv, Transaction};
use super::watch::{Range, Watch, WatchEvent};
use crate::store::error::StoreError;

/// How long leaving may take.
const LEAVING: Duration = Duration::from_secs(2);
/// How soon to look again after a watch, or etcd, has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// How soon to look again though a watch says nothing: it may have gone dead, or its member may be cut off.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The era that a user of the store is in.
pub(super) struct Era {
    gateway: Gateway,
    name: String,
    /// What its keys start with.
    keys: String,
    /// Until then requests wait for an etcd that is away, and for a while at any time.
    patient_until: Instant,
    state: Mutex<State>,
    /// Held while a lease is taken or given back.
    renewing: tokio::sync::Mutex<()>,
    /// How often the lease has been lost, and which of that was told.
    losses: watch::Sender<u64>,
    told: AtomicU64,
    /// Whether the user has gone.
    closed: watch::Sender<bool>,
}

#[derive(Clone, Copy, Default)]
struct State {
    lease: Option<i64>,
    is_member: bool,
    has_ended: bool,
}

impl Era {
    /// Enters the present era, or begins the next one (invariant 2).
    pub(super) async fn enter(gateway: Gateway, end: Instant) -> Result<Arc<Self>, StoreError> {
        let prefix = format!("{}/", gateway.place().prefix);
        let group = format!("{prefix}group");
        let lease = match gateway.grant(end).await {
            // Until the end, and to one that has not said a word yet.
            Err(StoreError::Lost { source, .. }) if source.kind() == ErrorKind::UnexpectedEof => {
                return Err(gateway.strange("it closes every connection"));
            }
            lease => lease?,
        };
        loop {
            let found = gateway
                .transact(Transaction::new().get(&group), end)
                .await?;
            let found = found.first(0);
            let present = match found {
                Some(found) => present(&gateway, &prefix, found, end).await?,
                None => None,
            };
            let (attempt, name) = match (found, present) {
                (
                    _,
                    Some(Present {
                        name,
                        is_over: false,
                        ..
                    }),
                ) => {
                    let here = format!("{prefix}{name}/here/{lease}");
                    let enter = Transaction::new().if_value(&group, name.as_bytes());
                    (enter.put(&here, b"", Some(lease)), name)
                }
                (found, present) => {
                    let name = random_name(&gateway)?;
                    let mut begin = match found {
                        Some(found) => Transaction::new().if_unchanged(&group, found.changed),
                        None => Transaction::new().if_missing(&group),
                    };
                    if let Some(old) = present {
                        let kept_by = if old.is_founded { "members" } else { "here" };
                        begin = begin.if_none(&format!("{prefix}{}/{kept_by}/", old.name));
                        begin = begin.delete_all(&format!("{prefix}{}/", old.name));
                    }
                    let here = format!("{prefix}{name}/here/{lease}");
                    begin = begin.put(&group, name.as_bytes(), None);
                    (begin.put(&here, b"", Some(lease)), name)
                }
            };
            let succeeded = match gateway.transact(attempt.once(), end).await {
                // If it was done, it is found to be.
                Err(StoreError::Lost { .. } | StoreError::NoAnswer { .. })
                    if Instant::now() < end =>
                {
                    false
                }
                done => done?.succeeded,
            };
            if succeeded {
                let era = Arc::new(Self::new(gateway, name, Some(lease), end));
                tokio::spawn(Arc::clone(&era).keep());
                return Ok(era);
            }
        }
    }

    /// The present era, without being there.
    pub(super) async fn look(gateway: Gateway, end: Instant) -> Result<Arc<Self>, StoreError> {
        let group = format!("{}/group", gateway.place().prefix);
        let found = gateway
            .transact(Transaction::new().get(&group), end)
            .await?;
        let name = found
            .first(0)
            .and_then(|found| String::from_utf8(found.value.clone()).ok());
        // Nothing is found in an era without a name.
        let name = name.unwrap_or_default();
        Ok(Arc::new(Self::new(gateway, name, None, end)))
    }

    fn new(gateway: Gateway, name: String, lease: Option<i64>, patient_until: Instant) -> Self {
        let keys = format!("{}/{name}/keys/", gateway.place().prefix);
        let state = State {
            lease,
            ..State::default()
        };
        Self {
            gateway,
            name,
            keys,
            patient_until,
            state: Mutex::new(state),
            renewing: tokio::sync::Mutex::default(),
            losses: watch::Sender::default(),
            told: AtomicU64::new(0),
            closed: watch::Sender::default(),
        }
    }

    pub(super) fn gateway(&self) -> &Gateway {
        &self.gateway
    }

    /// What the stored keys start with.
    pub(super) fn keys(&self) -> &str {
        &self.keys
    }

    fn group(&self) -> String {
        format!("{}/group", self.gateway.place().prefix)
    }

    pub(super) fn part(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.gateway.place().prefix, self.name)
    }

    /// Does something in this era (invariant 1). What is read otherwise has the number 1 and so on.
    pub(super) async fn run(&self, transaction: Transaction) -> Result<Done, StoreError> {
        let group = self.group();
        let guarded = Transaction::guarded(&group, self.name.as_bytes(), transaction);
        let done = self.gateway.transact(guarded, self.end()).await?;
        if !done.succeeded && !self.is_named_by(done.first(0)) {
            return Err(self.ended());
        }
        Ok(done)
    }

    /// Until when a request that begins now waits for etcd.
    pub(super) fn end(&self) -> Instant {
        self.patient_until.max(Instant::now() + QUICK)
    }

    fn is_named_by(&self, group: Option<&Kv>) -> bool {
        group.is_some_and(|group| group.value == self.name.as_bytes())
    }

    fn ended(&self) -> StoreError {
        StoreError::Ended {
            place: self.gateway.place().to_string(),
        }
    }

    /// The lease, a new one if there is none.
    pub(super) async fn lease(&self) -> Result<i64, StoreError> {
        let known = self.state().lease;
        match known {
            Some(lease) => Ok(lease),
            None => self.renew(None).await,
        }
    }

    /// Takes a new lease in the place of one that has run out (invariant 3), unless somebody has done so.
    pub(super) async fn renew(&self, lost: Option<i64>) -> Result<i64, StoreError> {
        let _one_at_a_time = self.renewing.lock().await;
        let now = *self.state();
        match now.lease {
            _ if now.has_ended || *self.closed.borrow() => return Err(self.ended()),
            Some(lease) if lost != Some(lease) => return Ok(lease),
            _ => {}
        }
        let lease = self.gateway.grant(self.end()).await?;
        let entered = match self.run(self.arrival(now, lease)).await {
            Err(StoreError::Ended { .. }) if now.is_member => self.write_again(now, lease).await,
            entered => entered.map(drop),
        };
        if let Err(error) = entered {
            if matches!(error, StoreError::Ended { .. }) {
                self.state().has_ended = true;
                self.losses.send_modify(|losses| *losses += 1);
            }
            return Err(error);
        }
        tracing::debug!(lease, "a new lease");
        self.state().lease = Some(lease);
        self.losses.send_modify(|losses| *losses += 1);
        Ok(lease)
    }

    /// etcd has lost everything, or others have begun anew: in the first case it is told of this era again.
    async fn write_again(&self, state: State, lease: i64) -> Result<(), StoreError> {
        let again = self.arrival(state, lease).if_missing(&self.group());
        let again = again.put(&self.group(), self.name.as_bytes(), None);
        if self
            .gateway
            .transact(again.once(), self.end())
            .await?
            .succeeded
        {
            return Ok(());
        }
        // Another member of this era may have been faster, or it is over.
        self.run(self.arrival(state, lease)).await.map(drop)
    }

    /// What says that this user is there.
    fn arrival(&self, state: State, lease: i64) -> Transaction {
        let here = self.part(&format!("here/{lease}"));
        let arrival = Transaction::new().put(&here, b"", Some(lease));
        if !state.is_member {
            return arrival;
        }
        let member = self.part(&format!("members/{lease}"));
        arrival
            .put(&member, b"", Some(lease))
            .put(&self.part("founded"), b"", None)
    }

    /// Makes this user a member, now and whenever it takes a new lease.
    pub(super) async fn settle(&self) -> Result<(), StoreError> {
        self.state().is_member = true;
        loop {
            let lease = self.lease().await?;
            let state = *self.state();
            match self.run(self.arrival(state, lease)).await {
                // Who takes the next one may have begun to before this user was a member.
                Err(StoreError::LeaseLost { .. }) => drop(self.renew(Some(lease)).await?),
                settled => return settled.map(drop),
            }
        }
    }

    /// Waits until all members have gone.
    pub(super) async fn over(&self) -> Result<(), StoreError> {
        let members = self.part("members/");
        loop {
            let look = Transaction::new()
                .look_for(&self.part("founded"))
                .count(&members);
            match self.run(look).await {
                Ok(found) if found.count(0) > 0 && found.count(1) == 0 => return Ok(()),
                Ok(found) => {
                    let watching = self.watch_members(&members, found.revision.saturating_add(1));
                    if !matches!(timeout(LOOK_AGAIN, watching).await, Ok(Err(_))) {
                        continue;
                    }
                }
                Err(StoreError::Ended { .. }) => return Ok(()),
                Err(error) if !error.is_passing() => return Err(error),
                Err(_) => {}
            }
            sleep(PAUSE).await;
        }
    }

    /// Waits until a member has gone.
    async fn watch_members(&self, members: &str, from: i64) -> Result<(), StoreError> {
        let range = Range::Prefix(members.to_owned());
        let mut watch = Watch::open(&self.gateway, &range, from).await?;
        loop {
            match watch.next().await? {
                WatchEvent::Set(_) => {}
                WatchEvent::Deleted | WatchEvent::Missed => return Ok(()),
            }
        }
    }

    /// Waits until the lease was lost, once more than was told.
    pub(super) async fn lost(&self) {
        let mut losses = self.losses.subscribe();
        let told = self.told.load(Ordering::Relaxed);
        let lost = losses.wait_for(|losses| *losses > told).await;
        if let Ok(losses) = lost {
            self.told.fetch_max(*losses, Ordering::Relaxed);
        }
    }

    /// Keeps the lease until the user has gone.
    async fn keep(self: Arc<Self>) {
        let ttl = self.gateway.place().ttl;
        let mut pause = ttl / 3;
        let mut closed = self.closed.subscribe();
        loop {
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => break,
                () = sleep(pause) => {}
            }
            let state = *self.state();
            let Some(lease) = state.lease.filter(|_| !state.has_ended) else {
                continue;
            };
            let keeping = async {
                // Twice before the lease runs out, and two members of the cluster each time.
                let end = Instant::now() + QUICK.min(ttl / 4);
                match self.gateway.keep_alive(lease, end).await {
                    Ok(true) => Ok(()),
                    Ok(false) => self.renew(Some(lease)).await.map(drop),
                    Err(error) => Err(error),
                }
            };
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => break,
                kept = keeping => pause = match kept {
                    Ok(()) => ttl / 3,
                    Err(error) => {
                        // Invariant 4.
                        tracing::debug!(%error, "the lease is not kept this time");
                        ttl / 12
                    }
                },
            }
        }
        self.give_back().await;
    }

    /// Whoever else does it is waited for, or its work taken over if it is given up.
    async fn give_back(&self) {
        let giving = async {
            let _one_at_a_time = self.renewing.lock().await;
            let lease = self.state().lease;
            if let Some(lease) = lease {
                self.gateway.revoke(lease, Instant::now() + LEAVING).await?;
                self.state().lease = None;
            }
            Ok::<_, StoreError>(())
        };
        let given = timeout(LEAVING, giving).await;
        if !matches!(given, Ok(Ok(()))) {
            tracing::debug!(?given, "the lease is left to run out");
        }
    }

    /// Gives the lease back, and waits until that is done.
    pub(super) async fn leave(&self) -> Result<(), StoreError> {
        self.closed.send_replace(true);
        self.give_back().await;
        Ok(())
    }

    /// The same, without waiting.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is known of the era that `group` names.
struct Present {
    name: String,
    is_founded: bool,
    is_over: bool,
}

async fn present(
    gateway: &Gateway,
    prefix: &str,
    group: &Kv,
    end: Instant,
) -> Result<Option<Present>, StoreError> {
    let name = String::from_utf8(group.value.clone()).unwrap_or_default();
    let is_name = name.len() == 16 && name.chars().all(|c| c.is_ascii_hexdigit());
    if !is_name {
        // Whoever wrote that, it is none of ours: nothing of it is taken away.
        return Ok(None);
    }
    let look = Transaction::new()
        .look_for(&format!("{prefix}{name}/founded"))
        .count(&format!("{prefix}{name}/members/"))
        .count(&format!("{prefix}{name}/here/"));
    let found = gateway.transact(look, end).await?;
    let is_founded = found.count(0) > 0;
    let kept_by = if is_founded { 1 } else { 2 };
    Ok(Some(Present {
        name,
        is_founded,
        is_over: found.count(kept_by) == 0,
    }))
}

fn random_name(gateway: &Gateway) -> Result<String, StoreError> {
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| StoreError::Setup {
            what: gateway.place().to_string(),
            reason: "the system gives no random numbers".to_owned(),
        })?;
    Ok(format!("{:016x}", u64::from_le_bytes(bytes)))
}
