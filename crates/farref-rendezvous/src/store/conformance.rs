//! Whether a store keeps what [`Store`] promises: one check for each guarantee, for stores of any make.
//!
//! What is checked here is what every store of this crate is held to, and what a program can hold its own to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::task::JoinSet;

use super::{Store, StoreError, StoreFuture};

/// Longer than anything takes that ends at all.
const SOON: Duration = Duration::from_secs(30);
/// How long is waited for what does not come.
const SHORT: Duration = Duration::from_millis(60);

/// A store does not do what [`Store`] promises: which guarantee it breaks, and how.
///
/// ```
/// use std::sync::Arc;
///
/// use farref_rendezvous::{BrokenGuarantee, MemoryStore, check_store};
///
/// # #[tokio::main]
/// # async fn main() {
/// // Two stores are not two ways into one.
/// let (one, other) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
/// let broken: BrokenGuarantee = check_store(one, other).await.unwrap_err();
/// assert_eq!(broken.guarantee, 1);
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the store breaks guarantee {guarantee} of `Store`: {how}")]
#[non_exhaustive]
pub struct BrokenGuarantee {
    /// Its number in the documentation of [`Store`].
    pub guarantee: u8,
    /// What was seen.
    pub how: String,
}

/// Checks that a store keeps every guarantee of [`Store`]: for the tests of whoever makes one.
///
/// `store` and `other` are two ways into one store, as two workers have them. The check takes keys of its own
/// and leaves nothing in the store, unless it fails; it takes about a second, and it needs a tokio runtime.
///
/// ```
/// use std::sync::Arc;
///
/// use farref_rendezvous::{MemoryStore, check_store};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::BrokenGuarantee> {
/// let store = MemoryStore::new();
/// check_store(Arc::new(store.clone()), Arc::new(store)).await
/// # }
/// ```
pub async fn check_store(
    store: Arc<dyn Store>,
    other: Arc<dyn Store>,
) -> Result<(), BrokenGuarantee> {
    let mut nonce = [0; 8];
    // Keys that are not random are as good, unless two check one store at the same time.
    let _ = SystemRandom::new().fill(&mut nonce);
    let nonce = u64::from_le_bytes(nonce);
    let pair = |guarantee| Pair {
        one: Arc::clone(&store),
        other: Arc::clone(&other),
        prefix: format!("farref conformance/{nonce:016x}/{guarantee}"),
        guarantee,
    };
    visible(pair(1)).await?;
    compared(pair(2)).await?;
    added(pair(3)).await?;
    deleted(pair(4)).await?;
    awaited(pair(5)).await?;
    awaited_in_vain(pair(6)).await?;
    large(pair(7)).await?;
    given_up(pair(8)).await
}

/// Two ways into one store, and which guarantee is being checked.
struct Pair {
    one: Arc<dyn Store>,
    other: Arc<dyn Store>,
    prefix: String,
    guarantee: u8,
}

impl Pair {
    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn broken(&self, how: impl fmt::Display) -> BrokenGuarantee {
        BrokenGuarantee {
            guarantee: self.guarantee,
            how: how.to_string(),
        }
    }

    /// Runs an operation that must succeed, and soon.
    async fn run<T>(&self, what: &str, operation: StoreFuture<'_, T>) -> Checked<T> {
        match tokio::time::timeout(SOON, operation).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(self.broken(format_args!("{what} failed: {error}"))),
            Err(_) => Err(self.broken(format_args!("{what} took longer than {SOON:?}"))),
        }
    }

    fn expect<T: PartialEq + fmt::Debug>(&self, what: &str, found: T, expected: T) -> Checked<()> {
        match found == expected {
            true => Ok(()),
            false => Err(self.broken(format_args!("{what}: {found:?}, not {expected:?}"))),
        }
    }

    /// The value of a key, as the other sees it.
    async fn seen(&self, key: &str) -> Checked<Option<Vec<u8>>> {
        let value = self.run("try_get", self.other.try_get(key)).await?;
        Ok(value.map(Vec::from))
    }

    /// Takes the keys of a check away again.
    async fn clear(&self, keys: &[&String]) -> Checked<()> {
        for key in keys {
            self.run("delete", self.one.delete(key)).await?;
        }
        Ok(())
    }
}

type Checked<T> = Result<T, BrokenGuarantee>;

async fn visible(pair: Pair) -> Checked<()> {
    let key = pair.key("value");
    let what = "the value of a key that was never set";
    pair.expect(what, pair.seen(&key).await?, None)?;
    for value in [&b"first"[..], b"", &[0, 255, b'\n', 7]] {
        pair.run("set", pair.one.set(&key, value)).await?;
        let seen = pair.seen(&key).await?;
        pair.expect("what the other sees of a value", seen, Some(value.into()))?;
        let got = pair
            .run("get", pair.other.get(&key, Duration::ZERO))
            .await?;
        pair.expect("what the other gets without waiting", &got[..], value)?;
    }
    pair.clear(&[&key]).await?;
    let what = "the value of a key that was deleted";
    pair.expect(what, pair.seen(&key).await?, None)
}

async fn compared(pair: Pair) -> Checked<()> {
    let key = pair.key("value");
    let compare_set = async |store: &Arc<dyn Store>, expected: &[u8], desired: &[u8]| {
        let value = pair.run("compare_set", store.compare_set(&key, expected, desired));
        value.await.map(Vec::from)
    };
    let found = compare_set(&pair.one, b"x", b"y").await?;
    let what = "comparing a missing key with something";
    pair.expect(what, found, b"x".into())?;
    let what = "what that has set";
    pair.expect(what, pair.seen(&key).await?, None)?;
    let found = compare_set(&pair.one, b"", b"a").await?;
    let what = "comparing a missing key with nothing";
    pair.expect(what, found, b"a".into())?;
    let found = compare_set(&pair.other, b"", b"b").await?;
    let what = "comparing a value with nothing";
    pair.expect(what, found, b"a".into())?;
    let found = compare_set(&pair.other, b"a", b"b").await?;
    let what = "comparing a value with itself";
    pair.expect(what, found, b"b".into())?;
    let what = "the value after that";
    pair.expect(what, pair.seen(&key).await?, Some(b"b".into()))?;

    // Of those who want the same key at the same time, one gets it, and all learn who.
    let leader = pair.key("leader");
    let mut candidates = JoinSet::new();
    for (number, store) in (0..8_u8).zip([&pair.one, &pair.other].into_iter().cycle()) {
        let (store, leader) = (Arc::clone(store), leader.clone());
        candidates.spawn(async move { store.compare_set(&leader, b"", &[number]).await });
    }
    let mut heard = Vec::new();
    for candidate in candidates.join_all().await {
        let candidate = candidate.map_err(|error| pair.broken(error))?;
        heard.push(candidate.to_vec());
    }
    let elected = pair.seen(&leader).await?.unwrap_or_default();
    let agree = heard.iter().all(|heard| *heard == elected);
    let what = "whether all who compared at the same time heard of the one value";
    pair.expect(what, agree, true)?;
    pair.clear(&[&key, &leader]).await
}

async fn added(pair: Pair) -> Checked<()> {
    let (key, text) = (pair.key("count"), pair.key("text"));
    let mut tasks = JoinSet::new();
    for (_, store) in (0..8).zip([&pair.one, &pair.other].into_iter().cycle()) {
        let (store, key) = (Arc::clone(store), key.clone());
        tasks.spawn(async move {
            let mut sums = Vec::new();
            for _ in 0..10 {
                sums.push(store.add(&key, 1).await?);
            }
            Ok::<_, StoreError>(sums)
        });
    }
    let mut sums = Vec::new();
    for task in tasks.join_all().await {
        sums.extend(task.map_err(|error| pair.broken(error))?);
    }
    sums.sort_unstable();
    let what = "the sums of 80 additions of 1, some at the same time";
    pair.expect(what, sums, (1..=80).collect())?;
    let sum = pair.run("add", pair.one.add(&key, -81)).await?;
    pair.expect("80 and -81", sum, -1)?;
    let what = "the sum as a value";
    pair.expect(what, pair.seen(&key).await?, Some(b"-1".into()))?;

    pair.run("set", pair.one.set(&text, b"words")).await?;
    match pair.other.add(&text, 1).await {
        Err(_) => {}
        Ok(sum) => return Err(pair.broken(format_args!("`words` and 1 are {sum}"))),
    }
    let what = "a text that was to be added to";
    pair.expect(what, pair.seen(&text).await?, Some(b"words".into()))?;
    pair.clear(&[&key, &text]).await
}

async fn deleted(pair: Pair) -> Checked<()> {
    let key = pair.key("value");
    pair.run("set", pair.one.set(&key, b"v")).await?;
    let (one, other) = tokio::join!(pair.one.delete(&key), pair.other.delete(&key));
    let both = [one, other].into_iter().collect::<Result<Vec<_>, _>>();
    let both = both.map_err(|error| pair.broken(error))?;
    let first = both.into_iter().filter(|was_there| *was_there).count();
    let what = "how many of two who delete a key are told that it was there";
    pair.expect(what, first, 1)?;
    let again = pair.run("delete", pair.one.delete(&key)).await?;
    let what = "whether it is there for a third";
    pair.expect(what, again, false)
}

async fn awaited(pair: Pair) -> Checked<()> {
    let keys = ["set", "compared", "added"].map(|name| pair.key(name));
    let mut waits = JoinSet::new();
    let (waiting, awaited) = (Arc::clone(&pair.one), keys.clone());
    waits.spawn(async move { waiting.wait(&awaited, SOON).await });
    let (getting, last) = (Arc::clone(&pair.one), keys[2].clone());
    waits.spawn(async move { getting.get(&last, SOON).await.map(drop) });
    tokio::time::sleep(SHORT).await;
    // Through the same store as those who wait.
    pair.run("set", pair.one.set(&keys[0], b"1")).await?;
    let compare_set = pair.other.compare_set(&keys[1], b"", b"2");
    pair.run("compare_set", compare_set).await?;
    tokio::time::sleep(SHORT).await;
    if waits.try_join_next().is_some() {
        return Err(pair.broken("a wait has ended before the last of its keys came"));
    }
    pair.run("add", pair.other.add(&keys[2], 3)).await?;
    for ended in waits.join_all().await {
        ended.map_err(|error| {
            pair.broken(format_args!(
                "all keys are there, and a wait ends so: {error}"
            ))
        })?;
    }
    pair.run("wait", pair.other.wait(&keys, Duration::ZERO))
        .await?;
    let [one, two, three] = &keys;
    pair.clear(&[one, two, three]).await
}

async fn awaited_in_vain(pair: Pair) -> Checked<()> {
    let keys = ["here", "gone", "away"].map(|name| pair.key(name));
    pair.run("set", pair.one.set(&keys[0], b"")).await?;
    match tokio::time::timeout(SOON, pair.one.wait(&keys, SHORT)).await {
        Ok(Err(StoreError::Timeout { missing, .. })) => {
            let what = "the keys that were awaited in vain";
            pair.expect(what, missing, keys[1..].to_vec())?;
        }
        Ok(other) => {
            let how = format_args!("waiting in vain ended so: {other:?}");
            return Err(pair.broken(how));
        }
        Err(_) => return Err(pair.broken("a wait goes on after its time")),
    }
    match tokio::time::timeout(SOON, pair.one.get(&keys[1], SHORT)).await {
        Ok(Err(StoreError::Timeout { missing, .. })) => {
            let what = "the key that was to be got";
            pair.expect(what, missing, vec![keys[1].clone()])?;
        }
        Ok(other) => {
            let how = format_args!("getting a missing key ended so: {other:?}");
            return Err(pair.broken(how));
        }
        Err(_) => return Err(pair.broken("a get goes on after its time")),
    }
    pair.run("waiting for nothing", pair.one.wait(&[], Duration::ZERO))
        .await?;
    pair.clear(&[&keys[0]]).await
}

async fn large(pair: Pair) -> Checked<()> {
    // As long as keys may be in every store.
    let longest = (1 << 10) - pair.key("").len();
    let long_key = pair.key(&"k".repeat(longest));
    let long_value = vec![0x5A; 256 << 10];
    pair.run("set", pair.one.set(&long_key, &long_value))
        .await?;
    let seen = pair.seen(&long_key).await?;
    let what = "whether 256 KiB under a key of 1 KiB are seen as they were set";
    pair.expect(what, seen == Some(long_value), true)?;

    let key = pair.key("value");
    pair.run("set", pair.one.set(&key, b"small")).await?;
    for (key, value) in [
        (pair.key(&"k".repeat(9 << 10)), Vec::new()),
        (key.clone(), vec![0; (8 << 20) + 1]),
    ] {
        let set = pair.one.set(&key, &value).await;
        let compared = pair.one.compare_set(&key, b"small", &value).await;
        for (what, done) in [("set", set), ("compare_set", compared.map(drop))] {
            if !matches!(done, Err(StoreError::TooLarge { .. })) {
                let (key, value) = (key.len(), value.len());
                let how =
                    format!("{what} of a key of {key} and a value of {value} bytes: {done:?}");
                return Err(pair.broken(how));
            }
        }
    }
    let what = "what is there after a value that is too large";
    pair.expect(what, pair.seen(&key).await?, Some(b"small".into()))?;
    pair.clear(&[&long_key, &key]).await
}

async fn given_up(pair: Pair) -> Checked<()> {
    let key = pair.key("value");
    for _ in 0..3 {
        let waiting = pair.one.get(&key, SOON);
        if tokio::time::timeout(SHORT / 6, waiting).await.is_ok() {
            return Err(pair.broken("a get of a missing key has ended early"));
        }
        // Begun, perhaps, and dropped.
        drop(tokio::time::timeout(Duration::ZERO, pair.one.set(&key, b"dropped")).await);
        // No user of the store has come to harm.
        pair.run("set", pair.one.set(&key, b"v")).await?;
        let seen = pair.seen(&key).await?;
        // A dropped operation that takes effect late is allowed, once nobody waits for it.
        if seen.as_deref() != Some(b"v") && seen.as_deref() != Some(b"dropped") {
            return Err(pair.broken(format_args!("another value is there: {seen:?}")));
        }
        pair.clear(&[&key]).await?;
        while pair.seen(&key).await?.is_some() {
            pair.clear(&[&key]).await?;
        }
    }
    Ok(())
}
