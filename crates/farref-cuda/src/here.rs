//! What was imported of a pool and is not known to have been given back (CU-9).

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::driver::Device;
use crate::ticket::Token;

/// `M` is what those have who share it.
#[derive(Debug)]
pub(crate) struct Here<M> {
    by_token: HashMap<Token, Entry<M>>,
    /// What each address was imported for last.
    by_pointer: HashMap<u64, Token>,
    /// How many there may be before it is looked which of those have gone that others gave back.
    look_from: usize,
}

/// Memory that was imported.
#[derive(Debug)]
pub(crate) struct Entry<M> {
    device: Device,
    pointer: u64,
    bytes: u64,
    /// What the driver said of the address when it was imported.
    seen: Option<Seen>,
    /// Whether somebody else gives it back, and does not say when.
    is_taken: bool,
    shared: Weak<M>,
}

/// What the driver says of an address: where the allocation begins, how long it is, and which one it is of all that were ever there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    range: (u64, u64),
    /// A driver that does not say it has said nothing before.
    id: Option<u64>,
}

impl Seen {
    fn look(device: &Device, pointer: u64, range: (u64, u64)) -> Self {
        let Device { driver, ordinal } = device;
        let id = driver.allocation_id(*ordinal, pointer).ok();
        Self { range, id }
    }
}

/// Memory that is here.
pub(crate) struct Found<M> {
    pub(crate) pointer: u64,
    pub(crate) bytes: u64,
    pub(crate) shared: Option<Arc<M>>,
}

impl<M> Entry<M> {
    /// Memory that was just imported, of which the driver has said where it begins and how long it is, if it did.
    pub(crate) fn new(
        device: &Device,
        pointer: u64,
        bytes: u64,
        range: Option<(u64, u64)>,
    ) -> Self {
        Self {
            device: device.clone(),
            pointer,
            bytes,
            seen: range.map(|range| Seen::look(device, pointer, range)),
            is_taken: false,
            shared: Weak::new(),
        }
    }

    /// Whether it was not given back. The driver does not know the address of memory that was, or knows it of another one that has come to
    /// be there since.
    fn is_here(&self) -> bool {
        if !self.is_taken {
            return true;
        }
        let Device { driver, ordinal } = &self.device;
        let look = || {
            let range = driver.range(*ordinal, self.pointer).ok()?;
            Some(Seen::look(&self.device, self.pointer, range))
        };
        self.seen.is_some() && look() == self.seen
    }
}

impl<M> Default for Here<M> {
    fn default() -> Self {
        Self {
            by_token: HashMap::new(),
            by_pointer: HashMap::new(),
            look_from: 0,
        }
    }
}

impl<M> Here<M> {
    pub(crate) fn find(&mut self, token: &Token) -> Option<Found<M>> {
        let entry = self.by_token.get(token)?;
        if entry.is_here() {
            return Some(Found {
                pointer: entry.pointer,
                bytes: entry.bytes,
                shared: entry.shared.upgrade(),
            });
        }
        self.remove(token);
        None
    }

    pub(crate) fn insert(&mut self, token: Token, entry: Entry<M>) {
        let pointer = entry.pointer;
        // Whatever was there before was given back, or it would not be there again.
        if let Some(before) = self.by_pointer.insert(pointer, token) {
            self.by_token.remove(&before);
        }
        if self.by_token.len() >= self.look_from {
            self.by_token.retain(|_, entry| entry.is_here());
            let by_token = &self.by_token;
            (self.by_pointer).retain(|at, of| *at == pointer || by_token.contains_key(of));
            self.look_from = 2 * self.by_token.len() + 64;
        }
        self.by_token.insert(token, entry);
    }

    /// It is shared from now on.
    pub(crate) fn share(&mut self, token: &Token, memory: &Arc<M>) {
        if let Some(entry) = self.by_token.get_mut(token) {
            entry.shared = Arc::downgrade(memory);
        }
    }

    /// Somebody else gives it back from now on.
    pub(crate) fn take(&mut self, token: &Token) {
        if let Some(entry) = self.by_token.get_mut(token) {
            entry.is_taken = true;
        }
    }

    /// Somebody took it, and it turned out to have been given back.
    pub(crate) fn forget_taken(&mut self, token: &Token) {
        if self.by_token.get(token).is_some_and(|entry| entry.is_taken) {
            self.remove(token);
        }
    }

    pub(crate) fn remove(&mut self, token: &Token) {
        if let Some(entry) = self.by_token.remove(token)
            && self.by_pointer.get(&entry.pointer) == Some(token)
        {
            self.by_pointer.remove(&entry.pointer);
        }
    }

    /// Whether everything was given back.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.by_token.retain(|_, entry| entry.is_here());
        self.by_token.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.by_token.len().max(self.by_pointer.len())
    }
}
