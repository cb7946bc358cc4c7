//! Another process's memory, as it is seen here.

use std::fmt;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use crate::cuda::{Cuda, DeviceUuid};
use crate::driver::{Device, PoolHandle};
use crate::error::{CudaError, Result};
use crate::exchange;
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
    pub fn import(
        self: &Arc<Self>,
        message: &ExportMessage,
        stream: StreamHandle,
    ) -> Result<ImportedMemory> {
        if message.pool != self.number {
            return Err(CudaError::BadMessage("it is of another pool"));
        }
        if message.bytes == 0 {
            return Err(CudaError::BadMessage("it is of no bytes"));
        }
        let Device { driver, ordinal } = &self.device;
        let data = message.token.into();
        let memory = ImportedMemory {
            pointer: driver.import_pointer(*ordinal, self.handle, &data)?,
            bytes: message.bytes,
            stream,
            pool: Arc::clone(self),
            is_taken: false,
        };
        if !memory.pointer.is_multiple_of(ALIGNMENT) {
            return Err(CudaError::BadMessage("it does not begin where memory can"));
        }
        let (begin, there) = driver.range(*ordinal, memory.pointer)?;
        let after = memory.pointer.checked_sub(begin);
        let there = after.and_then(|after| there.checked_sub(after));
        if there.is_none_or(|there| message.bytes > there) {
            return Err(CudaError::BadMessage("it says more bytes than there are"));
        }
        driver.stream_wait(*ordinal, stream, self.event.handle)?;
        Ok(memory)
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
    /// `CudaSlice` does.
    pub fn into_raw(mut self) -> u64 {
        // The pool may go before it: the driver keeps what is needed of it.
        self.is_taken = true;
        self.pointer
    }
}

impl Drop for ImportedMemory {
    fn drop(&mut self) {
        if !self.is_taken {
            let Device { driver, ordinal } = &self.pool.device;
            let _ = driver.free(*ordinal, self.pointer, self.stream);
        }
    }
}
