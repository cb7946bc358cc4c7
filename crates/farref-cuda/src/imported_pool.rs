//! Another process's memory, as it is seen here.
//!
//! The driver has imported memory once for the whole process: importing it again gives the same address, and freeing it once takes it away
//! from all. So it is known here what was imported, and nothing is imported twice (CU-9).

use std::collections::HashMap;
use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::cuda::{Cuda, DeviceMemory};
use crate::driver::{Device, PoolHandle};
use crate::error::{CudaError, DriverError, Result};
use crate::exchange;
use crate::facts::DeviceUuid;
use crate::owned::{OwnedEvent, OwnedStream};
use crate::sys::StreamHandle;
use crate::ticket::{ExportMessage, Host, MAX_ANCHORS, Ticket, Token};

/// What the driver aligns allocations to, at the least.
const ALIGNMENT: u64 = 256;

/// Another process's [`SharedPool`](crate::SharedPool).
pub struct ImportedPool {
    device: Device,
    cuda: Cuda,
    handle: PoolHandle,
    number: u64,
    uuid: DeviceUuid,
    anchors: Vec<u64>,
    event: OwnedEvent,
    /// For what is not the program's: the anchors.
    stream: OwnedStream,
    here: Mutex<Here>,
}

impl fmt::Debug for ImportedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedPool")
            .field("ordinal", &self.device.ordinal)
            .field("uuid", &self.uuid)
            .field("number", &self.number)
            .finish_non_exhaustive()
    }
}

/// Gives up an imported pool unless it is forgotten.
struct Unfinished<'a>(&'a Cuda, u32, PoolHandle);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.give_up(Some((self.1, self.2)));
    }
}

impl ImportedPool {
    /// Opens the pool that a ticket is for.
    ///
    /// Blocks: it asks the other process over a Unix socket, and the driver. So it is not for an async thread.
    pub fn open(cuda: &Cuda, ticket: &Ticket) -> Result<Arc<Self>> {
        if ticket.host != Host::here()? {
            return Err(CudaError::OtherHost);
        }
        if ticket.anchors.len() > MAX_ANCHORS {
            return Err(CudaError::BadTicket("it has too many anchors"));
        }
        let device = cuda.find(ticket.uuid)?;
        let Device { driver, ordinal } = device.clone();
        let descriptor = exchange::ask(ticket)?;
        // Those that could not go before may go now.
        cuda.give_up(None);
        let handle = driver.import_pool(ordinal, descriptor.as_fd())?;
        drop(descriptor);
        let unfinished = Unfinished(cuda, ordinal, handle);
        let event = driver.import_event(ordinal, &ticket.event.into())?;
        let event = OwnedEvent::from_handle(&device, event);
        let stream = OwnedStream::new(&device)?;
        // Without an anchor imports take longer, and nothing else.
        let import = |anchor: &Token| {
            let data = (*anchor).into();
            driver.import_pointer(ordinal, handle, &data).ok()
        };
        let anchors = ticket.anchors.iter().filter_map(import).collect();
        std::mem::forget(unfinished);
        Ok(Arc::new(Self {
            device,
            cuda: cuda.clone(),
            handle,
            number: ticket.pool,
            uuid: ticket.uuid,
            anchors,
            event,
            stream,
            here: Mutex::default(),
        }))
    }

    /// The device's number in this process, which may be another one than in the pool's own.
    pub fn ordinal(&self) -> u32 {
        self.device.ordinal
    }

    /// The GPU that it is on.
    pub fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// Imports what a message says. What `stream` is given from now on waits for the work that the exporter's stream had been given
    /// before the export.
    ///
    /// Quick, and waits for nothing. The memory is the exporter's: it must be told when nobody reads it any more here,
    /// which is after the work that does has been done ([`AfterWork`](crate::AfterWork)).
    ///
    /// A process has imported memory once. Fails with [`CudaError::AlreadyImported`] as long as it was not given back, also by
    /// whoever [took](ImportedMemory::into_raw) it.
    pub fn import(
        self: &Arc<Self>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<ImportedMemory> {
        self.check(message)?;
        let mut here = self.lock();
        if here.find(&self.device, &message.token).is_some() {
            return Err(CudaError::AlreadyImported);
        }
        self.take(here, message, stream)
    }

    /// The same, but memory that is here already is shared with those who have it, unless somebody [took](ImportedMemory::into_raw)
    /// it. It is given back after what the stream of the first one was given: whoever works with it on another one keeps it
    /// until that is done.
    pub fn import_shared(
        self: &Arc<Self>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<Arc<ImportedMemory>> {
        self.check(message)?;
        let mut here = self.lock();
        match here.find(&self.device, &message.token) {
            None => {}
            Some(Found { shared: None, .. }) => return Err(CudaError::AlreadyImported),
            Some(Found {
                shared: Some(memory),
                ..
            }) => {
                drop(here);
                memory.covers(message.bytes)?;
                self.wait(stream)?;
                return Ok(memory);
            }
        }
        let memory = Arc::new(self.take(here, message, stream)?);
        if let Some(entry) = self.lock().by_token.get_mut(&message.token) {
            entry.shared = Arc::downgrade(&memory);
        }
        Ok(memory)
    }

    /// Copies what a message says into memory of this process, of the device's current pool, also if it has been imported
    /// already. Does not wait: the exporter must be told when the stream has done it.
    pub fn copy(
        self: &Arc<Self>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<DeviceMemory> {
        let mut error = CudaError::AlreadyImported;
        for _ in 0..2 {
            match self.import(message, stream) {
                // It is given back after the copy, on the same stream.
                Ok(memory) => return self.copy_from(memory.pointer, message.bytes, stream),
                Err(CudaError::AlreadyImported) => {}
                Err(error) => return Err(error),
            }
            let found = self.lock().find(&self.device, &message.token);
            if let Some(found) = found {
                if message.bytes > found.bytes {
                    return Err(TOO_LONG);
                }
                self.wait(stream)?;
                match self.copy_from(found.pointer, message.bytes, stream) {
                    Ok(copy) => return Ok(copy),
                    // Whoever took it may have given it back by now: then it can be imported.
                    Err(failed) => {
                        if is_invalid(&failed) {
                            self.lock().forget_taken(&message.token);
                        }
                        error = failed;
                    }
                }
            }
        }
        Err(error)
    }

    fn copy_from(&self, from: u64, bytes: u64, stream: StreamHandle) -> Result<DeviceMemory> {
        let Device { driver, ordinal } = &self.device;
        let copy = self.cuda.allocate(*ordinal, bytes, stream)?;
        driver.copy_within(*ordinal, from, copy.pointer(), bytes, stream)?;
        Ok(copy)
    }

    /// What a message says that needs nobody to be asked.
    fn check(&self, message: &ExportMessage) -> Result<()> {
        if message.pool != self.number {
            return Err(CudaError::BadMessage("it is of another pool"));
        }
        if message.bytes == 0 {
            return Err(CudaError::BadMessage("it is of no bytes"));
        }
        Ok(())
    }

    /// Imports what is not here.
    fn take(
        self: &Arc<Self>,
        mut here: MutexGuard<'_, Here>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<ImportedMemory> {
        let Device { driver, ordinal } = &self.device;
        let token = message.token;
        let pointer = driver.import_pointer(*ordinal, self.handle, &token.into())?;
        let range = driver.range(*ordinal, pointer);
        let range = range.map_err(CudaError::from);
        let there = range.as_ref().map_or(0, |&(begin, there)| {
            let after = pointer.checked_sub(begin);
            after
                .and_then(|after| there.checked_sub(after))
                .unwrap_or(0)
        });
        let seen = range.as_ref().ok().copied();
        here.insert(&self.device, token, Entry::new(pointer, there, seen));
        drop(here);
        // From here on dropping it gives it back.
        let memory = ImportedMemory {
            pointer,
            bytes: message.bytes,
            there,
            token,
            stream,
            pool: Arc::clone(self),
            is_taken: false,
        };
        range?;
        if !pointer.is_multiple_of(ALIGNMENT) {
            return Err(CudaError::BadMessage("it does not begin where memory can"));
        }
        memory.covers(message.bytes)?;
        self.wait(stream)?;
        Ok(memory)
    }

    /// What `stream` is given from now on waits for the work that the exporter's stream had been given before its last export. For
    /// memory that is here already, and comes again.
    pub fn wait(&self, stream: StreamHandle) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        // Most often it is done by now. To wait for it all the same would be work for the GPU, which is switched from one process to
        // the other for that, hundreds of microseconds each time.
        if driver.is_done(*ordinal, self.event.handle) == Ok(true) {
            return Ok(());
        }
        Ok(driver.stream_wait(*ordinal, stream, self.event.handle)?)
    }

    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        let here = self.lock();
        here.by_token.len().max(here.by_pointer.len())
    }

    fn lock(&self) -> MutexGuard<'_, Here> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the driver does not know an address.
fn is_invalid(error: &CudaError) -> bool {
    matches!(error, CudaError::Driver(error) if error.code == DriverError::INVALID_VALUE)
}

/// Said of a message that is longer than its memory.
const TOO_LONG: CudaError = CudaError::BadMessage("it says more bytes than there are");

/// What was imported and is not known to have been given back.
#[derive(Debug, Default)]
struct Here {
    by_token: HashMap<Token, Entry>,
    /// What each address was imported for last.
    by_pointer: HashMap<u64, Token>,
    /// How many there may be before it is looked which of those have gone that others gave back.
    look_from: usize,
}

#[derive(Debug)]
struct Entry {
    pointer: u64,
    bytes: u64,
    /// What the driver said of the address when it was imported.
    seen: Option<(u64, u64)>,
    /// Whether somebody else gives it back, and does not say when.
    is_taken: bool,
    shared: Weak<ImportedMemory>,
}

/// Memory that is here.
struct Found {
    pointer: u64,
    bytes: u64,
    shared: Option<Arc<ImportedMemory>>,
}

impl Entry {
    fn new(pointer: u64, bytes: u64, seen: Option<(u64, u64)>) -> Self {
        Self {
            pointer,
            bytes,
            seen,
            is_taken: false,
            shared: Weak::new(),
        }
    }

    /// Whether it was not given back. The driver does not know the address of memory that was.
    fn is_here(&self, device: &Device) -> bool {
        let range = || device.driver.range(device.ordinal, self.pointer).ok();
        !self.is_taken || (self.seen.is_some() && range() == self.seen)
    }
}

impl Here {
    fn find(&mut self, device: &Device, token: &Token) -> Option<Found> {
        let entry = self.by_token.get(token)?;
        if entry.is_here(device) {
            return Some(Found {
                pointer: entry.pointer,
                bytes: entry.bytes,
                shared: entry.shared.upgrade(),
            });
        }
        self.remove(token);
        None
    }

    fn insert(&mut self, device: &Device, token: Token, entry: Entry) {
        let pointer = entry.pointer;
        // Whatever was there before was given back, or it would not be there again.
        if let Some(before) = self.by_pointer.insert(pointer, token) {
            self.by_token.remove(&before);
        }
        if self.by_token.len() >= self.look_from {
            self.by_token.retain(|_, entry| entry.is_here(device));
            let by_token = &self.by_token;
            (self.by_pointer).retain(|at, of| *at == pointer || by_token.contains_key(of));
            self.look_from = 2 * self.by_token.len() + 64;
        }
        self.by_token.insert(token, entry);
    }

    /// Somebody took it, and it turned out to have been given back.
    fn forget_taken(&mut self, token: &Token) {
        if self.by_token.get(token).is_some_and(|entry| entry.is_taken) {
            self.remove(token);
        }
    }

    fn remove(&mut self, token: &Token) {
        if let Some(entry) = self.by_token.remove(token)
            && self.by_pointer.get(&entry.pointer) == Some(token)
        {
            self.by_pointer.remove(&entry.pointer);
        }
    }
}

impl Drop for ImportedPool {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        for &anchor in &self.anchors {
            let _ = driver.free(*ordinal, anchor, self.stream.handle);
        }
        // A pool does not go before its memory, and nothing else is on this stream.
        if !self.anchors.is_empty() {
            let _ = self.stream.synchronize();
        }
        self.cuda.give_up(Some((*ordinal, self.handle)));
    }
}

/// Memory of another process's. Given back when dropped, after what its stream was given until then.
#[derive(Debug)]
pub struct ImportedMemory {
    pointer: u64,
    bytes: u64,
    /// How much there is of it.
    there: u64,
    token: Token,
    stream: StreamHandle,
    pool: Arc<ImportedPool>,
    /// Whether somebody else gives it back.
    is_taken: bool,
}

impl ImportedMemory {
    /// Where it begins, in this process.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> u32 {
        self.pool.ordinal()
    }

    /// The pool that it is of.
    pub fn pool(&self) -> &Arc<ImportedPool> {
        &self.pool
    }

    /// Where it begins. It is not given back any more: whoever calls this does that, once, with `cuMemFreeAsync`, as candle's
    /// `CudaSlice` does. Until then it cannot be imported again.
    pub fn into_raw(mut self) -> u64 {
        // The pool may go before it: the driver keeps what is needed of it.
        self.is_taken = true;
        self.pointer
    }

    fn covers(&self, bytes: u64) -> Result<()> {
        if bytes > self.there {
            return Err(TOO_LONG);
        }
        Ok(())
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        let mut here = self.pool.lock();
        if self.is_taken {
            if let Some(entry) = here.by_token.get_mut(&self.token) {
                entry.is_taken = true;
            }
            return;
        }
        // Under the lock: nobody imports it in between.
        let Device { driver, ordinal } = &self.pool.device;
        let _ = driver.free(*ordinal, self.pointer, self.stream);
        here.remove(&self.token);
    }
}
