//! Who founds the group, how the others wait for it, and why it may come to nothing.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{sleep, timeout_at};

use super::EntryAttempt;
use super::predecessor::name_taken;
use crate::error::RendezvousError;
use crate::group::card::{Address, Card};
use crate::group::certificate_tag::{CertificateConflict, CertificateTag};
use crate::group::failure::{FailureCause, FailureNotice};
use crate::group::founding::Founding;
use crate::store::StoreError;

/// How often a worker that waits looks for a founding, which comes before the cards only if the store
/// lost its memory and the workers of a running group wrote theirs into it; and for a notice that the group
/// will not come together.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How soon rank 0 looks again for a card that was a leftover.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

impl EntryAttempt<'_> {
    /// What the first worker of a dynamic group does.
    pub(super) async fn found_alone(&self, me: &Card) -> Result<Founding, RendezvousError> {
        match self.records.founding().await? {
            Some(founding) => Ok(founding),
            None => self.records.found(&Founding::new(vec![me.clone()])?).await,
        }
    }

    /// What the ranks of a static group do. `stale` is the notice of an earlier attempt.
    pub(super) async fn found_together(
        &self,
        size: u32,
        me: &Card,
        stale: Option<Bytes>,
    ) -> Result<Founding, RendezvousError> {
        if let Some(founding) = self.records.founding().await? {
            return Ok(founding);
        }
        if me.node.worker.0 != 0 {
            // Also an additional worker that is early waits for those who found the group.
            return tokio::select! {
                biased;
                settled = self.look_for_founding(me, stale) => settled,
                founding = self.await_founding(size) => founding,
            };
        }
        tokio::select! {
            biased;
            settled = self.look_for_founding(me, stale) => settled,
            founding = self.gather_and_found(size) => founding,
        }
    }

    /// What rank 0 does: waits for the cards of all, and makes a group of them.
    async fn gather_and_found(&self, size: u32) -> Result<Founding, RendezvousError> {
        loop {
            self.await_cards(size).await?;
            if let Some(founding) = self.records.founding().await? {
                return Ok(founding);
            }
            let mut founders = Vec::new();
            for id in 0..size {
                // One that is gone again has been taken back: there will be another.
                founders.extend(self.records.latest(id).await?);
            }
            if founders.len() == size as usize {
                match self.conflict(&founders) {
                    None => return self.records.found(&Founding::new(founders)?).await,
                    Some((error, with)) => {
                        if self.is_any_there(&with).await {
                            return Err(error);
                        }
                        // An earlier attempt has left it; its next life may do better.
                    }
                }
            }
            sleep(RETRY_PAUSE.min(self.time_left())).await;
        }
    }

    /// Rank 0 waits for the cards of all.
    async fn await_cards(&self, size: u32) -> Result<(), RendezvousError> {
        let cards: Vec<String> = (0..size).map(|id| self.records.latest_key(id)).collect();
        match self.records.store.wait(&cards, self.time_left()).await {
            Ok(()) => Ok(()),
            Err(StoreError::Timeout { missing, .. }) => {
                let missing: HashSet<String> = missing.into_iter().collect();
                let is_missing = |id: &u32| missing.contains(&self.records.latest_key(*id));
                let (missing, there) = (0..size).partition(is_missing);
                Err(self.shortage(size, missing, there).await)
            }
            Err(error) => Err(self.records.failed(error)),
        }
    }

    /// The others wait for rank 0 to found the group.
    async fn await_founding(&self, size: u32) -> Result<Founding, RendezvousError> {
        match self.records.await_founding(self.time_left()).await {
            Err(RendezvousError::Store {
                source: StoreError::Timeout { .. },
                ..
            }) => Err(self.shortage(size, Vec::new(), (0..size).collect()).await),
            settled => settled,
        }
    }

    /// Waits for a founding, or for a notice that there will be none.
    async fn look_for_founding(
        &self,
        me: &Card,
        stale: Option<Bytes>,
    ) -> Result<Founding, RendezvousError> {
        loop {
            sleep(POLL_INTERVAL).await;
            if let Some(founding) = self.records.founding().await? {
                return Ok(founding);
            }
            // Invariant 7.
            if let Some(latest) = self.records.latest(me.node.worker.0).await?
                && latest.node > me.node
            {
                return Err(name_taken(&latest));
            }
            let notice = self.records.failure().await?;
            if notice == stale {
                continue;
            }
            if let Some(notice) = notice.as_deref().and_then(FailureNotice::decode) {
                self.told.store(true, Ordering::Relaxed);
                let waited = self.began.elapsed();
                return Err(notice.cause.into_error(self.plan.wire, waited));
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
            let cause = FailureCause::Wire {
                one: (first.name.clone(), first.wire),
                other: (other.name.clone(), other.wire),
            };
            let error = cause.into_error(self.plan.wire, self.began.elapsed());
            return Some((error, with));
        }
        let with = others(|card, first| card.token != first.token);
        if !with.is_empty() {
            let error = RendezvousError::DifferentTokens {
                like: first.name.clone(),
                unlike: with.iter().map(|card| card.name.clone()).collect(),
            };
            return Some((error, with));
        }
        let (one, with, conflict) = certificate_conflict(founders)?;
        let error = RendezvousError::DifferentCertificates {
            one: one.name.clone(),
            others: with.iter().map(|card| card.name.clone()).collect(),
            reason: conflict.describe().to_owned(),
        };
        Some((error, with))
    }

    /// Finds out who came, of those that may be there.
    async fn shortage(&self, size: u32, mut missing: Vec<u32>, there: Vec<u32>) -> RendezvousError {
        // Rank 0 was told by the store who did not come: for that nothing has to be read.
        let is_known = !missing.is_empty();
        let mut is_late = false;
        let mut have = Vec::new();
        for id in there {
            if is_late {
                have.push((id, "name unknown".into()));
                continue;
            }
            match timeout_at(self.end, self.records.latest(id)).await {
                Ok(Ok(Some(card))) => have.push((id, card.name)),
                Ok(Ok(None)) => missing.push(id),
                // Whoever cannot be read is there all the same.
                Ok(Err(_)) => have.push((id, "name unknown".into())),
                Err(_) if is_known => {
                    is_late = true;
                    have.push((id, "name unknown".into()));
                }
                Err(_) => {
                    return RendezvousError::TimedOut {
                        doing: self.records.doing(),
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

/// The first founder that cannot talk to others because of their certificates, and these.
fn certificate_conflict(founders: &[Card]) -> Option<(&Card, Vec<&Card>, CertificateConflict)> {
    let first = &founders.first()?.certificate;
    if founders.iter().all(|card| card.certificate == *first) {
        return None;
    }
    founders.iter().find_map(|one| {
        let between = |other: &Card| match one.node == other.node {
            true => None,
            false => conflict_between(one, other),
        };
        let conflict = founders.iter().find_map(between)?;
        let is_such = |other: &&Card| between(other) == Some(conflict);
        Some((one, founders.iter().filter(is_such).collect(), conflict))
    })
}

/// Why two founders cannot talk.
fn conflict_between(one: &Card, other: &Card) -> Option<CertificateConflict> {
    let conflict = CertificateTag::conflict(one.certificate.as_ref(), other.certificate.as_ref())?;
    (!does_not_matter(conflict, one, other)).then_some(conflict)
}

/// Whether two workers may have a way to talk on which this is no trouble. On Unix sockets certificates are not looked at; but who
/// has one talks to nobody without.
fn does_not_matter(conflict: CertificateConflict, one: &Card, other: &Card) -> bool {
    let same_host = one.host == other.host;
    let mut addresses = one.addresses.iter().chain(&other.addresses);
    addresses.any(|address| match address {
        Address::Memory(_) => true,
        Address::Unix(_) => same_host && conflict == CertificateConflict::Authority,
        Address::Tcp(_) => false,
    })
}
