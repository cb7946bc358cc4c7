//! A store in etcd, which notices when its users go.
//!
//! Spoken to in JSON over HTTP, which every etcd since 3.4 offers beside gRPC on the same port: the crates for gRPC
//! would be fifty more, and a compiler for its descriptions on every machine that builds this one.
//!
//! | part | job |
//! | --- | --- |
//! | `http` | one connection |
//! | `gateway` | requests and answers, the cluster's members, what etcd's errors mean |
//! | `credentials` | user and password, certificates |
//! | `transaction` | a transaction as etcd writes it down |
//! | `watch` | an answer that goes on, and tells of changes |
//! | `era` | who is there: leases, members, the end of a group and the beginning of the next |
//!
//! # Keys
//!
//! | key under the prefix | value | goes |
//! | --- | --- | --- |
//! | `group` | the name of the present *era*, a random one | never; replaced with each era |
//! | `<era>/here/<lease>` | a user | with its lease |
//! | `<era>/members/<lease>` | a member | with its lease |
//! | `<era>/founded` | that there was a member | with the era |
//! | `<era>/keys/<key>` | what is stored | with the era, or with its user's lease |
//!
//! # Invariants
//!
//! 1. Every operation is one transaction that takes effect only in the era in which its user is.
//! 2. An era begins only when the one before is over: it was founded and no member's lease is left, or it was
//!    not founded and nobody's lease is. Who begins it takes everything of the one before away, in the same
//!    transaction.
//! 3. A user whose lease has run out takes a new one in the era that it was in, and nowhere else. If etcd has lost
//!    everything, the members write that era into it again.
//! 4. No error of etcd or of the network makes a user leave its era, however long it lasts.
//! 5. What can be done twice without harm is asked of another member of the cluster when one does not answer. That includes
//!    [`Store::set`]: the last one counts, and which of two at a time that is nobody knows.
//!    What takes a key away, or counts, is asked for once, and does nothing if the key has changed since: a member that was
//!    hung may get to it when nobody waits for it any more.
//! 6. Whoever watches looks anew once in a while: a watch that has gone dead is not noticed otherwise.

mod credentials;
mod era;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod gateway;
mod http;
mod transaction;
mod watch;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout_at};

use self::era::{Era, LOOK_AGAIN};
use self::gateway::{ANSWER, Gateway, QUICK, Refusal};
use self::transaction::{Kv, Transaction};
use self::watch::{Range, Watch, WatchEvent};
use super::error::StoreError;
use super::limits::{MAX_KEY, MAX_KEYS, check_size, end_of};
use super::{Store, StoreFuture, StorePresence};
use crate::etcd_place::EtcdPlace;

/// The largest value: etcd takes requests of 1.5 MiB, unless told otherwise, and a key beside it.
const MAX_VALUE: usize = 1 << 20;
/// etcd takes 128 operations in a transaction, unless told otherwise.
const KEYS_AT_ONCE: usize = 100;
/// How soon to look again after a watch has broken.
const PAUSE: Duration = Duration::from_millis(200);

/// A store in etcd. Needs the feature `etcd`.
///
/// Whoever has it open has a lease. What is in it is over when all members have gone, and the next group begins
/// with nothing: see [`StorePresence`]. Workers open it by themselves, given `etcd://host:port/prefix`.
///
/// ```no_run
/// use std::time::Duration;
///
/// use farref_rendezvous::{EtcdStore, Store};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let place = "etcd://localhost:2379/jobs/17".parse()?;
/// let store = EtcdStore::open(&place, Duration::from_secs(60)).await?;
/// assert_eq!(store.add("workers", 1).await?, 1);
/// # Ok(())
/// # }
/// ```
pub struct EtcdStore {
    era: Arc<Era>,
}

impl EtcdStore {
    /// Opens the store, waiting up to `deadline` for etcd to answer. Until then operations wait as well if etcd goes away,
    /// and later for up to ten seconds.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{EtcdStore, StoreError};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let place = "etcd://farref@localhost:2379/jobs/17?password-file=/run/secret".parse()?;
    /// match EtcdStore::open(&place, Duration::from_secs(60)).await {
    ///     Err(error @ StoreError::Denied { .. }) => eprintln!("{error}"), // says what to do
    ///     opened => drop(opened?),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn open(place: &EtcdPlace, deadline: Duration) -> Result<Self, StoreError> {
        let gateway = Gateway::new(place)?;
        let era = Era::enter(gateway, end_of(deadline)).await?;
        Ok(Self { era })
    }

    /// Opens the store to read what is in it: nobody notices, and nothing keeps it from ending.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{EtcdStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let place = "etcd://localhost:2379/jobs/17".parse()?;
    /// let store = EtcdStore::look(&place, Duration::from_secs(60)).await?;
    /// println!("{:?}", store.try_get("workers").await?);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look(place: &EtcdPlace, deadline: Duration) -> Result<Self, StoreError> {
        let gateway = Gateway::new(place)?;
        let era = Era::look(gateway, end_of(deadline)).await?;
        Ok(Self { era })
    }

    /// What a key is called in etcd.
    fn key(&self, key: &str) -> Result<String, StoreError> {
        check_size("key", key.len(), MAX_KEY)?;
        Ok(format!("{}{key}", self.era.keys()))
    }

    /// A key and its value, and etcd's count of changes then.
    async fn read(&self, key: &str) -> Result<Option<Kv>, StoreError> {
        let read = Transaction::new().get(key);
        let done = self.era.run(read).await?;
        Ok(done.first(0).cloned())
    }

    async fn compare_set_with(
        &self,
        key: &str,
        expected: &[u8],
        desired: &[u8],
        mortal: bool,
    ) -> Result<Bytes, StoreError> {
        let key = self.key(key)?;
        check_size("value", expected.len(), MAX_VALUE)?;
        check_size("value", desired.len(), MAX_VALUE)?;
        let mut is_missing = expected.is_empty();
        loop {
            let lease = match mortal {
                true => Some(self.era.lease().await?),
                false => None,
            };
            let attempt = match is_missing {
                true => Transaction::new().if_missing(&key),
                false => Transaction::new().if_value(&key, expected),
            };
            let attempt = attempt.put(&key, desired, lease).otherwise_get(&key);
            // If it was done unnoticed, it finds what it was to set.
            let done = match self.era.run(attempt).await {
                Err(StoreError::LeaseLost { .. }) if mortal => {
                    self.era.renew(lease).await?;
                    continue;
                }
                done => done?,
            };
            if done.succeeded {
                return Ok(Bytes::copy_from_slice(desired));
            }
            match done.first(1) {
                None if expected.is_empty() => is_missing = true,
                None => return Ok(Bytes::copy_from_slice(expected)),
                Some(found) if found.value == expected => is_missing = false,
                Some(found) => return Ok(Bytes::copy_from_slice(&found.value)),
            }
        }
    }

    /// Which of the keys are missing, and etcd's count of changes at the time.
    async fn missing(&self, keys: &[String]) -> Result<(Vec<String>, i64), StoreError> {
        let mut missing = Vec::new();
        let mut revision = i64::MAX;
        for keys in keys.chunks(KEYS_AT_ONCE) {
            let mut read = Transaction::new();
            for key in keys {
                read = read.look_for(&self.key(key)?);
            }
            let done = self.era.run(read).await?;
            // A change between two of these is seen again, which does no harm.
            revision = revision.min(done.revision);
            for (index, key) in keys.iter().enumerate() {
                if done.count(index) == 0 {
                    missing.push(key.clone());
                }
            }
        }
        Ok((missing, revision))
    }

    /// Takes the keys off the list that are set from now on, until there is none.
    async fn watch_for(&self, missing: &mut Vec<String>, revision: i64) -> Result<(), StoreError> {
        let range = match &**missing {
            [key] => Range::Key(self.key(key)?),
            _ => Range::Prefix(self.era.keys().to_owned()),
        };
        let from = revision.saturating_add(1);
        let mut watch = Watch::open(self.era.gateway(), &range, from).await?;
        while !missing.is_empty() {
            match watch.next().await? {
                WatchEvent::Set(key) => {
                    let key = key.strip_prefix(self.era.keys()).unwrap_or_default();
                    missing.retain(|awaited| awaited != key);
                }
                WatchEvent::Deleted => {}
                WatchEvent::Missed => return Ok(()),
            }
        }
        Ok(())
    }

    async fn wait_until(&self, keys: &[String], end: Instant) -> Result<(), StoreError> {
        check_size("list of keys", keys.len(), MAX_KEYS)?;
        if keys.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let mut missing = keys.to_vec();
        let mut failure = None;
        // It is looked once at least, however short the time.
        let mut looking_until = end.max(began + QUICK);
        loop {
            let looking_since = Instant::now();
            let found = timeout_at(looking_until, self.missing(&missing)).await;
            looking_until = end;
            let watched = match found {
                Err(_) if looking_since.elapsed() >= ANSWER => {
                    // It is not those who are waited for who are to blame.
                    let waited = looking_since.elapsed();
                    failure = Some(self.era.gateway().refused(Refusal::Silence(waited)));
                    break;
                }
                Err(_) => break,
                Ok(Ok((still, revision))) => {
                    missing = still;
                    if missing.is_empty() {
                        return Ok(());
                    }
                    failure = None;
                    let until = end.min(Instant::now() + LOOK_AGAIN);
                    timeout_at(until, self.watch_for(&mut missing, revision)).await
                }
                Ok(Err(error)) if error.is_passing() => Ok(Err(error)),
                Ok(Err(error)) => return Err(error),
            };
            match watched {
                Ok(Ok(())) if missing.is_empty() => return Ok(()),
                Ok(Ok(())) => sleep(PAUSE).await,
                // Who may not is told so by looking: a watch does not tell permissions from tokens that are too old.
                Ok(Err(error))
                    if error.is_passing() || matches!(error, StoreError::Denied { .. }) =>
                {
                    failure = Some(error);
                    sleep(PAUSE).await;
                }
                Ok(Err(error)) => return Err(error),
                // Invariant 6.
                Err(_) => {}
            }
            if Instant::now() >= end {
                break;
            }
        }
        let waited = began.elapsed();
        Err(failure.unwrap_or(StoreError::Timeout { missing, waited }))
    }
}

impl Store for EtcdStore {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            check_size("value", value.len(), MAX_VALUE)?;
            let set = Transaction::new().put(&self.key(key)?, value, None);
            self.era.run(set).await.map(drop)
        })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let found = self.read(&self.key(key)?).await?;
            Ok(found.map(|found| found.value.into()))
        })
    }

    fn lost(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.era.lost().await;
            Ok(())
        })
    }

    fn presence(&self) -> Option<&dyn StorePresence> {
        Some(self)
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            let (name, key) = (key, self.key(key)?);
            loop {
                let found = self.read(&key).await?;
                let attempt = Transaction::new();
                let (attempt, sum) = match &found {
                    None => (attempt.if_missing(&key), Some(delta)),
                    Some(found) => {
                        let number = str::from_utf8(&found.value).ok();
                        let number = number.and_then(|text| text.parse::<i64>().ok());
                        let sum = number.and_then(|number| number.checked_add(delta));
                        (attempt.if_unchanged(&key, found.changed), sum)
                    }
                };
                let sum = sum.ok_or_else(|| StoreError::NotANumber { key: name.into() })?;
                let attempt = attempt.put(&key, sum.to_string().as_bytes(), None);
                if self.era.run(attempt.once()).await?.succeeded {
                    return Ok(sum);
                }
            }
        })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(self.compare_set_with(key, expected, desired, false))
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = self.key(key)?;
            while let Some(found) = self.read(&key).await? {
                // Invariant 5.
                let delete = Transaction::new().if_unchanged(&key, found.changed);
                let delete = delete.delete(&key).once();
                if self.era.run(delete).await?.succeeded {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.wait_until(keys, end_of(deadline)))
    }
}

impl StorePresence for EtcdStore {
    fn compare_set_while_here<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(self.compare_set_with(key, expected, desired, true))
    }

    fn settle(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.era.settle())
    }

    fn over(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.era.over())
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        Box::pin(self.era.leave())
    }
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        self.era.close();
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdStore({})", self.era.gateway().place())
    }
}
