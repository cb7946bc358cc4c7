//! The contents of a store in memory, and who waits for what. No I/O: the TCP server and
//! [`MemoryStore`](super::MemoryStore) share it behind a lock.
//!
//! Invariants:
//! 1. `used` is the sum of what all entries and queued items cost, and never exceeds `limit`.
//! 2. A waiter is listed under a key once for every time it awaits the key, and is gone from every
//!    list as soon as it is woken or cancelled.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tokio::sync::oneshot;

/// What an entry costs beside its bytes: two `Bytes` and the map's own space.
const OVERHEAD: usize = 96;

/// Key, values and waiters.
#[derive(Debug)]
pub(crate) struct Table {
    entries: HashMap<Bytes, Bytes>,
    queues: HashMap<Bytes, VecDeque<Bytes>>,
    waiters: HashMap<WaiterId, Waiter>,
    waiting_for: HashMap<Bytes, VecDeque<WaiterId>>,
    next_waiter: u64,
    used: usize,
    limit: usize,
}

/// Names one wait, so that it can be given up.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct WaiterId(u64);

/// A wait that is not over: the receiver resolves when it is.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: WaiterId,
    pub(crate) done: oneshot::Receiver<()>,
}

/// Why the table refused an operation; nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// There is no room.
    #[error("the store is full")]
    Full,
    /// The value is not a number, or the sum does not fit.
    #[error("the value is not a number that can be added to")]
    NotANumber,
}

#[derive(Debug)]
struct Waiter {
    keys: Vec<Bytes>,
    missing: usize,
    done: oneshot::Sender<()>,
}

impl Table {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: HashMap::new(),
            queues: HashMap::new(),
            waiters: HashMap::new(),
            waiting_for: HashMap::new(),
            next_waiter: 0,
            used: 0,
            limit,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Bytes> {
        self.entries.keys()
    }

    pub(crate) fn value(&self, key: &[u8]) -> Option<&Bytes> {
        self.entries.get(key)
    }

    /// Whether a wait for `key` would end at once: it has a value, or a queue with something in it.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.entries.contains_key(key) || self.queue_len(key) > 0
    }

    pub(crate) fn set(&mut self, key: Bytes, value: Bytes) -> Result<(), Refusal> {
        self.put(key.clone(), value)?;
        self.wake_all(&key);
        Ok(())
    }

    pub(crate) fn append(&mut self, key: Bytes, more: &[u8]) -> Result<usize, Refusal> {
        let old = self.entries.get(&key).map_or(&[][..], |value| value);
        let value = Bytes::from([old, more].concat());
        let size = value.len();
        self.set(key, value)?;
        Ok(size)
    }

    /// The value after the call; see [`Store::compare_set`](super::Store::compare_set).
    pub(crate) fn compare_set(
        &mut self,
        key: Bytes,
        expected: Bytes,
        desired: Bytes,
    ) -> Result<Bytes, Refusal> {
        match self.entries.get(&key) {
            Some(value) if *value != expected => return Ok(value.clone()),
            None if !expected.is_empty() => return Ok(expected),
            _ => {}
        }
        self.set(key, desired.clone())?;
        Ok(desired)
    }

    pub(crate) fn add(&mut self, key: Bytes, delta: i64) -> Result<i64, Refusal> {
        let sum = self.sum(&key, delta)?;
        self.set(key, Bytes::from(sum.to_string()))?;
        Ok(sum)
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> bool {
        let Some((key, value)) = self.entries.remove_entry(key) else {
            return false;
        };
        self.used -= cost(&key, &value);
        true
    }

    pub(crate) fn push(&mut self, key: Bytes, item: Bytes) -> Result<(), Refusal> {
        self.charge(0, cost(&key, &item))?;
        self.queues.entry(key.clone()).or_default().push_back(item);
        // One item feeds one waiter; were all woken, the others would find the queue empty.
        self.wake_one(&key);
        Ok(())
    }

    /// How many items there were, and the first of them.
    pub(crate) fn pop(&mut self, key: &[u8]) -> (usize, Option<Bytes>) {
        let Some(queue) = self.queues.get_mut(key) else {
            return (0, None);
        };
        let length = queue.len();
        let item = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        if let Some(item) = &item {
            self.used -= cost(key, item);
        }
        (length, item)
    }

    pub(crate) fn queue_len(&self, key: &[u8]) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    /// Waits until every key has been there at some time from now on; `None` if all are there.
    pub(crate) fn wait(&mut self, keys: &[Bytes]) -> Option<Pending> {
        let keys: Vec<Bytes> = keys.iter().filter(|key| !self.has(key)).cloned().collect();
        (!keys.is_empty()).then(|| self.enlist(keys))
    }

    /// Waits until each of `keys`, which have no value now, has been given one.
    pub(crate) fn wait_for_values(&mut self, keys: Vec<Bytes>) -> Pending {
        self.enlist(keys)
    }

    /// Counts the caller in; `None` if it is the last of `world`.
    pub(crate) fn barrier(&mut self, key: Bytes, world: i64) -> Result<Option<Pending>, Refusal> {
        let count = self.sum(&key, 1)?;
        // Not `set`: the waiters of a barrier wait for the last arrival, not for a value.
        self.put(key.clone(), Bytes::from(count.to_string()))?;
        if count < world {
            return Ok(Some(self.enlist(vec![key])));
        }
        self.wake_all(&key);
        Ok(None)
    }

    /// Gives a wait up. No effect if it is over.
    pub(crate) fn cancel(&mut self, id: WaiterId) {
        let Some(waiter) = self.waiters.remove(&id) else {
            return;
        };
        for key in waiter.keys {
            if let Some(ids) = self.waiting_for.get_mut(&key) {
                ids.retain(|listed| *listed != id);
                if ids.is_empty() {
                    self.waiting_for.remove(&key);
                }
            }
        }
    }

    /// Whether nobody waits and no trace of a wait is left.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.waiting_for.is_empty()
    }

    /// How many clients wait.
    #[cfg(test)]
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    #[cfg(test)]
    pub(crate) fn used(&self) -> usize {
        self.used
    }

    fn sum(&self, key: &[u8], delta: i64) -> Result<i64, Refusal> {
        let Some(value) = self.entries.get(key) else {
            return Ok(delta);
        };
        std::str::from_utf8(value)
            .ok()
            .and_then(|text| text.parse::<i64>().ok())
            .and_then(|number| number.checked_add(delta))
            .ok_or(Refusal::NotANumber)
    }

    fn put(&mut self, key: Bytes, value: Bytes) -> Result<(), Refusal> {
        let freed = self.entries.get(&key).map_or(0, |old| cost(&key, old));
        self.charge(freed, cost(&key, &value))?;
        self.entries.insert(key, value);
        Ok(())
    }

    fn charge(&mut self, freed: usize, added: usize) -> Result<(), Refusal> {
        let used = self.used.saturating_sub(freed).saturating_add(added);
        // What makes the table smaller is always allowed, also when the limit is reached.
        if used > self.limit && used > self.used {
            return Err(Refusal::Full);
        }
        self.used = used;
        Ok(())
    }

    fn enlist(&mut self, keys: Vec<Bytes>) -> Pending {
        let id = WaiterId(self.next_waiter);
        self.next_waiter += 1;
        for key in &keys {
            self.waiting_for
                .entry(key.clone())
                .or_default()
                .push_back(id);
        }
        let (sender, done) = oneshot::channel();
        let missing = keys.len();
        let waiter = Waiter {
            keys,
            missing,
            done: sender,
        };
        self.waiters.insert(id, waiter);
        Pending { id, done }
    }

    fn wake_all(&mut self, key: &[u8]) {
        for id in self.waiting_for.remove(key).unwrap_or_default() {
            self.count_down(id);
        }
    }

    /// Counts down in order of arrival until one waiter has all it waits for.
    fn wake_one(&mut self, key: &[u8]) {
        while let Some(id) = self.waiting_for.get_mut(key).and_then(VecDeque::pop_front) {
            if self.count_down(id) {
                break;
            }
        }
        if self.waiting_for.get(key).is_some_and(VecDeque::is_empty) {
            self.waiting_for.remove(key);
        }
    }

    /// Whether the waiter was woken.
    fn count_down(&mut self, id: WaiterId) -> bool {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return false;
        };
        waiter.missing -= 1;
        if waiter.missing > 0 {
            return false;
        }
        // A receiver that is gone has lost interest; its guard would have cancelled it next.
        self.waiters
            .remove(&id)
            .is_some_and(|waiter| waiter.done.send(()).is_ok())
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + OVERHEAD
}
