//! Another process's memory, as it is seen here.
//!
//! The driver has imported memory once for the whole process: importing it again gives the same address, and freeing it once takes it away
//! from all. So each pool is open once, it is known what was imported of it, and nothing is imported twice (CU-9).

use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::{Arc, MutexGuard};

use crate::after_work::AfterWork;
use crate::device_memory::DeviceMemory;
use crate::driver::Device;
use crate::error::{CudaError, DriverError, Result};
use crate::exchange::Given;
use crate::exporters_work::ExportersWork;
use crate::facts::DeviceUuid;
use crate::here::{Entry, Found, Here};
use crate::leaving_pools::{LeavingPools, OwnedImport};
use crate::ledger::{Borrowed, Held};
use crate::open_pools::Slot;
use crate::owned::OwnedStream;
use crate::progress::Progress;
use crate::sys::StreamHandle;
use crate::ticket::{ExportMessage, MOST_BYTES, Secret, Ticket, Token};
use crate::watch::Watch;

/// What the driver aligns allocations to, at the least.
const ALIGNMENT: u64 = 256;

/// Another process's [`SharedPool`](crate::SharedPool).
pub struct ImportedPool {
    device: Device,
    // In the order in which they are given back, after the anchors: the place last.
    pool: OwnedImport,
    number: u64,
    uuid: DeviceUuid,
    anchors: Vec<u64>,
    /// For what is not the program's: the anchors.
    stream: OwnedStream,
    secret: Secret,
    ledger: Arc<Borrowed>,
    after: AfterWork,
    work: Arc<ExportersWork>,
    place: TakenPlace,
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

impl ImportedPool {
    /// One that is not open, of which this was given. Others watch what it waits for, and let go of it when it leaves.
    pub(crate) fn new(
        device: Device,
        given: Given,
        ticket: &Ticket,
        slot: &Arc<Slot<Self, ImportedMemory>>,
        (watch, leaving): (&Arc<Watch>, &Arc<LeavingPools>),
    ) -> Result<Arc<Self>> {
        let Device { driver, ordinal } = device.clone();
        let Given {
            descriptor,
            ledger,
            process,
        } = given;
        // Those that could not go before may go now.
        leaving.try_again();
        let handle = driver.import_pool(ordinal, descriptor.as_fd())?;
        drop(descriptor);
        let pool = OwnedImport::new(&device, handle, leaving);
        let progress = Progress::open(&device, ledger.as_fd())?;
        let after = AfterWork::with(&driver);
        let work = ExportersWork::new(&device, progress, process, &after, watch);
        let stream = OwnedStream::new(&device)?;
        // Without an anchor imports take longer, and nothing else.
        let import = |anchor: &Token| {
            let data = (*anchor).into();
            driver.import_pointer(ordinal, handle, &data).ok()
        };
        let anchors = ticket.anchors.iter().filter_map(import).collect();
        Ok(Arc::new(Self {
            device,
            pool,
            number: ticket.pool,
            uuid: ticket.uuid,
            anchors,
            stream,
            secret: ticket.secret,
            ledger,
            after,
            work,
            place: TakenPlace(Arc::clone(slot)),
        }))
    }

    pub(crate) fn is_of(&self, ticket: &Ticket) -> bool {
        self.secret.is(&ticket.secret.0) && self.uuid == ticket.uuid
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
        self.check_message(message)?;
        let mut here = self.lock();
        if here.find(&message.token).is_some() {
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
        self.check_message(message)?;
        let mut here = self.lock();
        match here.find(&message.token) {
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
        self.lock().share(&message.token, &memory);
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
            let found = self.lock().find(&message.token);
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
        let copy = DeviceMemory::allocate(&self.device, bytes, stream)?;
        driver.copy_within(*ordinal, from, copy.pointer(), bytes, stream)?;
        Ok(copy)
    }

    /// What a message says that needs nobody to be asked.
    fn check_message(&self, message: &ExportMessage) -> Result<()> {
        if message.pool != self.number {
            return Err(CudaError::BadMessage("it is of another pool"));
        }
        if message.bytes == 0 {
            return Err(CudaError::BadMessage("it is of no bytes"));
        }
        if message.bytes > MOST_BYTES {
            return Err(CudaError::BadMessage(
                "it is of more bytes than can be shared",
            ));
        }
        Ok(())
    }

    /// Imports what is not here.
    fn take(
        self: &Arc<Self>,
        mut here: MutexGuard<'_, Here<ImportedMemory>>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<ImportedMemory> {
        let Device { driver, ordinal } = &self.device;
        let token = message.token;
        let held = self.ledger.take(message.loan)?;
        let pointer = driver.import_pointer(*ordinal, self.pool.handle, &token.into())?;
        let range = driver.range(*ordinal, pointer);
        let range = range.map_err(CudaError::from);
        let there = range.as_ref().map_or(0, |&(begin, there)| {
            let after = pointer.checked_sub(begin);
            after
                .and_then(|after| there.checked_sub(after))
                .unwrap_or(0)
        });
        let seen = range.as_ref().ok().copied();
        here.insert(token, Entry::new(&self.device, pointer, there, seen));
        drop(here);
        // From here on dropping it gives it back.
        let memory = ImportedMemory {
            pointer,
            bytes: message.bytes,
            there,
            token,
            stream,
            pool: Arc::clone(self),
            held: Some(held),
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
    ///
    /// Fails with [`CudaError::ExporterGone`] if the exporter has died: its work may never have been done. If it dies after this, before its work
    /// is done, `stream` goes on all the same, some milliseconds later, and [`check`](Self::check) says that elements may be missing. Fails
    /// with [`CudaError::Captured`] if there is something to wait for and the stream is captured.
    pub fn wait(&self, stream: StreamHandle) -> Result<()> {
        self.work.wait(stream)
    }

    /// Whether streams here may still wait for work of the exporter's, as far as was looked.
    pub fn is_behind(&self) -> bool {
        self.work.is_behind()
    }

    /// Looks whether the work that streams here were given a wait for is done, and fails with [`CudaError::ExporterGone`] if the exporter has died
    /// before that was seen: then elements may be missing in what it has exported last. Quick, and waits for nothing.
    pub fn check(&self) -> Result<()> {
        self.work.check()
    }

    #[cfg(test)]
    pub(crate) fn work(&self) -> &ExportersWork {
        &self.work
    }

    #[cfg(test)]
    pub(crate) fn known(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Here<ImportedMemory>> {
        self.place.0.here()
    }
}

/// The place of a pool that is open. When this is dropped, nothing is left of the pool.
struct TakenPlace(Arc<Slot<ImportedPool, ImportedMemory>>);

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.0.has_closed();
    }
}

/// Whether the driver does not know an address.
fn is_invalid(error: &CudaError) -> bool {
    matches!(error, CudaError::Driver(error) if error.code == DriverError::INVALID_VALUE)
}

/// Said of a message that is longer than its memory.
const TOO_LONG: CudaError = CudaError::BadMessage("it says more bytes than there are");

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
    /// None if somebody else gives it back.
    held: Option<Held>,
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

    /// Where it begins, and what keeps it. It is not given back any more: whoever calls this does that, once, with `cuMemFreeAsync`, as candle's
    /// `CudaSlice` does, and drops the other when that is [done](AfterWork). Until then it cannot be imported again.
    pub fn into_raw(mut self) -> (u64, Held) {
        // The pool may go before it: the driver keeps what is needed of it.
        let held = self.held.take();
        (self.pointer, held.expect("it is taken here only"))
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
        let Some(held) = self.held.take() else {
            here.take(&self.token);
            return;
        };
        // Under the lock: nobody imports it in between.
        let Device { driver, ordinal } = &self.pool.device;
        let _ = driver.free(*ordinal, self.pointer, self.stream);
        here.remove(&self.token);
        drop(here);
        // LE-1
        if driver.is_capturing(*ordinal, self.stream) != Ok(false)
            || driver.is_idle(*ordinal, self.stream) != Ok(true)
        {
            let job = Box::new(move || drop(held));
            // There is the device.
            let _ = self.pool.after.run(*ordinal, self.stream, job);
        }
    }
}
