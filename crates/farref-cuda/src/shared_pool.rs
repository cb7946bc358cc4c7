//! Memory of this process's that others may use.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::{FdFlags, fcntl_setfd};

use crate::cuda::Cuda;
use crate::driver::{Device, DriverResult};
use crate::error::{CudaError, DriverError, Result};
use crate::exchange::Offer;
use crate::facts::DeviceUuid;
use crate::fence::Fence;
use crate::ledger::{Ledger, Loan};
use crate::owned::{OwnedPool, OwnedStream};
use crate::sys::StreamHandle;
use crate::ticket::{ExportMessage, Host, MOST_BYTES, Ticket, Token};
use crate::watch::{Watch, Watched};

/// The length of an anchor.
const ANCHOR: u64 = 512;

/// How much memory a [`SharedPool`] takes, and gives away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolOptions {
    /// So many bytes are taken of the device at once, as one piece. What is allocated later comes out of it, as far as there is room, and is not
    /// taken of the device then. (An importer maps each allocation by itself, about a microsecond per MiB, wherever it comes from.) Zero takes
    /// none.
    pub reserve: u64,
    /// So many bytes are out at most ([`SharedPool::exported_bytes`]).
    pub limit: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            reserve: 0,
            limit: u64::MAX,
        }
    }
}

/// One device of this process whose memory others may use: what is allocated on it from now on is of a pool that can be
/// exported.
///
/// It ends when it and all its [`Exported`] are dropped; memory that was allocated of it stays until it is freed.
pub struct SharedPool {
    // In the order in which they are given back.
    offer: Offer,
    anchor: Option<Anchor>,
    fence: Fence,
    stream: OwnedStream,
    pool: OwnedPool,
    device: Device,
    uuid: DeviceUuid,
    host: Host,
    limit: u64,
    ledger: Arc<Ledger>,
    lingering: Arc<Watch>,
    out: Mutex<Out>,
}

/// Whatever owns memory that is out.
type Kept = Box<dyn Any + Send + Sync>;

/// What is out.
#[derive(Default)]
struct Out {
    bytes: u64,
    by_pointer: HashMap<u64, Known>,
}

/// An allocation that is out, so that whoever has the [`Exported`] has kept it since.
struct Known {
    token: Token,
    /// How long it is.
    bytes: u64,
    /// How many [`Exported`] there are of it.
    times: usize,
    /// How many of its bytes count as out: as many as the longest of these has had.
    counted: u64,
    loan: Loan,
    /// Whatever owns it, if it is not out any more and may be used all the same.
    lingering: Vec<Kept>,
}

/// A small allocation inside the reserve that is never freed: see [`PoolOptions::reserve`].
#[derive(Debug)]
struct Anchor {
    pointer: u64,
    token: Token,
}

impl fmt::Debug for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPool")
            .field("ordinal", &self.device.ordinal)
            .field("uuid", &self.uuid)
            .field("exported_bytes", &self.exported_bytes())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl SharedPool {
    /// Makes a pool, and makes it the device's current one.
    ///
    /// It must be made before anything is allocated on the device whose memory others are to use: before candle's
    /// `Device::new_cuda`. Blocks for as long as the driver needs.
    pub fn create(cuda: &Cuda, ordinal: u32, options: PoolOptions) -> Result<Arc<Self>> {
        let device = cuda.device(ordinal)?;
        let abilities = device.driver.abilities(ordinal)?;
        let missing = [
            (abilities.pools, "it has no memory pools"),
            (abilities.pool_descriptors, "its pools cannot be exported"),
        ];
        if let Some((_, missing)) = missing.into_iter().find(|(has, _)| !has) {
            return Err(CudaError::Unsupported { ordinal, missing });
        }
        let free = device.driver.memory(ordinal)?.free;
        if options.reserve > free {
            let asked = options.reserve;
            return Err(CudaError::NotEnoughMemory { asked, free });
        }
        let uuid = device.driver.uuid(ordinal)?;
        let host = Host::here()?;
        let pool = OwnedPool::new(&device)?;
        let stream = OwnedStream::new(&device)?;
        let ledger = Arc::new(Ledger::new()?);
        let fence = Fence::new(&device, ledger.as_fd())?;
        let descriptor = device.driver.export_pool(ordinal, pool.handle)?;
        fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(io::Error::from)?;
        let offer = cuda.exchange()?.offer(descriptor, Arc::clone(&ledger));
        let mut shared = Self {
            offer,
            anchor: None,
            fence,
            stream,
            pool,
            device,
            uuid,
            host,
            limit: options.limit,
            ledger,
            lingering: Arc::clone(cuda.lingering()),
            out: Mutex::default(),
        };
        if options.reserve > 0 {
            shared.anchor = shared.reserve(options.reserve)?;
        }
        // Last: nobody's allocations are of a pool that could not be made.
        (shared.device.driver).make_current(ordinal, shared.pool.handle)?;
        Ok(Arc::new(shared))
    }

    /// Takes memory of the device, which the pool keeps when it is freed, and puts an anchor into it, if it can.
    fn reserve(&self, bytes: u64) -> Result<Option<Anchor>> {
        let Device { driver, ordinal } = &self.device;
        let allocate =
            |bytes| driver.allocate(*ordinal, Some(self.pool.handle), bytes, self.stream.handle);
        let begin = allocate(bytes)?;
        let synchronized = self.stream.synchronize();
        driver.free(*ordinal, begin, self.stream.handle)?;
        synchronized?;
        self.stream.synchronize()?;
        let pointer = allocate(ANCHOR)?;
        let is_inside = (begin..begin.saturating_add(bytes)).contains(&pointer);
        let token = match driver.export_pointer(*ordinal, pointer) {
            Ok(data) if is_inside => data.into(),
            // Without it imports take longer, and nothing else.
            _ => {
                driver.free(*ordinal, pointer, self.stream.handle)?;
                return Ok(None);
            }
        };
        Ok(Some(Anchor { pointer, token }))
    }

    /// The GPU that it is on.
    pub fn uuid(&self) -> DeviceUuid {
        self.uuid
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> u32 {
        self.device.ordinal
    }

    /// Its number among the pools of this process.
    pub fn number(&self) -> u64 {
        self.offer.number()
    }

    /// Whether there is an anchor in the reserve: a little memory that importers keep. (It was to have the reserve mapped once; the driver was seen
    /// to map each allocation all the same.)
    pub fn is_anchored(&self) -> bool {
        self.anchor.is_some()
    }

    /// What another process needs once.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            host: self.host,
            socket: self.offer.socket().to_owned(),
            secret: self.offer.secret(),
            pool: self.offer.number(),
            uuid: self.uuid,
            anchors: self.anchor.iter().map(|anchor| anchor.token).collect(),
        }
    }

    /// How many bytes are out. Memory counts once, however many [`Exported`] there are of it, and as long as another process may use it.
    pub fn exported_bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Exports memory of the pool, `bytes` from `pointer` on, where an allocation begins. Importers will wait for the work that
    /// `stream` was given so far.
    ///
    /// The memory must stay allocated as long as the [`Exported`] is kept, which is until every importer has released it:
    /// [`Exported::keep`] takes whatever owns it.
    ///
    /// Fails with [`CudaError::LimitReached`] if too much is out, and with [`CudaError::TooLarge`] if the allocation is longer than 4 GiB: whoever asks
    /// copies instead.
    pub fn export(
        self: &Arc<Self>,
        pointer: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> Result<Exported> {
        let (token, loan) = self.count(pointer, bytes)?;
        let exported = Exported {
            message: ExportMessage {
                pool: self.offer.number(),
                bytes,
                token,
                loan,
            },
            pointer,
            pool: Arc::clone(self),
            kept: None,
        };
        // If it fails, dropping this gives back what was counted.
        self.fence.record(stream)?;
        Ok(exported)
    }

    /// Importers that [wait](crate::ImportedPool::wait) from now on wait for the work, too, that `stream` was given so far. For memory of other
    /// pools that this process has worked on and hands on: what it has done there its own pool says, and not the other one.
    ///
    /// Says whether there is anything to wait for.
    pub fn record(&self, stream: StreamHandle) -> Result<bool> {
        self.fence.record(stream)
    }

    /// Counts memory as out, if it may be.
    fn count(&self, pointer: u64, bytes: u64) -> Result<(Token, Loan)> {
        let mut out = self.lock();
        out.forget_what_nobody_keeps(pointer);
        let used = out.bytes;
        let counted = (out.by_pointer.get(&pointer)).map_or(0, |known| known.counted);
        let more = bytes.saturating_sub(counted);
        let total = used.checked_add(more).filter(|&total| total <= self.limit);
        let total = total.ok_or(CudaError::LimitReached {
            asked: bytes,
            used,
            limit: self.limit,
        })?;
        let known = match out.by_pointer.entry(pointer) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(self.look_up(pointer, bytes)?),
        };
        if bytes == 0 || bytes > known.bytes {
            // It was out before, or it would not be known.
            return Err(CudaError::NotAnAllocation { pointer, bytes });
        }
        if known.times == 0 {
            self.ledger.lend_again(known.loan)?;
        }
        known.times += 1;
        known.counted = known.counted.max(bytes);
        let said = (known.token, known.loan);
        out.bytes = total;
        Ok(said)
    }

    /// Asks the driver about an allocation, and for what exports it.
    fn look_up(&self, pointer: u64, bytes: u64) -> Result<Known> {
        let Device { driver, ordinal } = &self.device;
        let of = unless_invalid(driver.pool_of(*ordinal, pointer))?.flatten();
        if of != Some(self.pool.handle) {
            return Err(CudaError::NotOurs { pointer });
        }
        let range = unless_invalid(driver.range(*ordinal, pointer))?;
        let there = range.filter(|&(begin, there)| begin == pointer && bytes > 0 && bytes <= there);
        let (_, there) = there.ok_or(CudaError::NotAnAllocation { pointer, bytes })?;
        if there > MOST_BYTES {
            return Err(CudaError::TooLarge {
                bytes: there,
                limit: MOST_BYTES,
            });
        }
        Ok(Known {
            loan: self.ledger.lend()?,
            lingering: Vec::new(),
            token: driver.export_pointer(*ordinal, pointer)?.into(),
            bytes: there,
            times: 0,
            counted: 0,
        })
    }

    /// One [`Exported`] less. What it has kept goes, unless another process may still use the memory (CU-1).
    fn give_back(self: &Arc<Self>, pointer: u64, kept: Option<Kept>) {
        let mut out = self.lock();
        let Some(known) = out.by_pointer.get_mut(&pointer) else {
            return;
        };
        known.times -= 1;
        if known.times == 0 {
            self.ledger.end(known.loan);
            if !self.ledger.is_unused(known.loan) {
                known.lingering.extend(kept);
                drop(out);
                let pool = Arc::clone(self);
                (self.lingering).add(Box::new(Lingering { pool, pointer }));
                // If there is no thread, the next one tries again; until then memory stays.
                let _ = self.lingering.start();
                return;
            }
        }
        let gone = self.forget_unless_out(&mut out, pointer);
        drop(out);
        drop((kept, gone));
    }

    /// Lets go of memory that is not out, if no other process can use it any more. Says whether there is nothing left to do.
    fn let_go_of_unused(&self, pointer: u64) -> bool {
        let mut out = self.lock();
        let known = out.by_pointer.get(&pointer);
        let lingers = known.filter(|known| known.times == 0);
        if lingers.is_some_and(|known| !self.ledger.is_unused(known.loan)) {
            return false;
        }
        let gone = self.forget_unless_out(&mut out, pointer);
        drop(out);
        drop(gone);
        true
    }

    fn forget_unless_out(&self, out: &mut Out, pointer: u64) -> Option<Known> {
        let known = out.by_pointer.get(&pointer)?;
        if known.times > 0 {
            return None;
        }
        // From now on the memory may be freed, and another allocation begin there.
        self.ledger.forget(known.loan);
        out.remove(pointer)
    }

    /// As if so many numbers had been given to streams.
    #[cfg(test)]
    pub(crate) fn start_from(&self, number: u32) {
        self.fence.start_from(number);
    }

    fn lock(&self) -> MutexGuard<'_, Out> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Out {
    fn remove(&mut self, pointer: u64) -> Option<Known> {
        let known = self.by_pointer.remove(&pointer)?;
        self.bytes = self.bytes.saturating_sub(known.counted);
        Some(known)
    }

    /// Memory that is not out and that nothing was kept of may have been freed: what is there now is another allocation.
    fn forget_what_nobody_keeps(&mut self, pointer: u64) {
        let known = self.by_pointer.get(&pointer);
        if known.is_some_and(|known| known.times == 0 && known.lingering.is_empty()) {
            self.remove(pointer);
        }
    }
}

impl Drop for SharedPool {
    fn drop(&mut self) {
        if let Some(anchor) = &self.anchor {
            let Device { driver, ordinal } = &self.device;
            let _ = driver.free(*ordinal, anchor.pointer, self.stream.handle);
        }
    }
}

/// Memory that is not out any more as far as anybody says, and that another process may use all the same: it stays until none can
/// ([`ledger`](crate::ledger)).
#[derive(Debug)]
struct Lingering {
    pool: Arc<SharedPool>,
    pointer: u64,
}

impl Watched for Lingering {
    fn is_over(&self) -> bool {
        self.pool.let_go_of_unused(self.pointer)
    }
}

/// The driver does not know such an address.
fn unless_invalid<T>(result: DriverResult<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code == DriverError::INVALID_VALUE => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Memory that is out. When the last one of the same memory is dropped, and no other process can use it, its bytes do not count any more.
pub struct Exported {
    message: ExportMessage,
    pointer: u64,
    pool: Arc<SharedPool>,
    kept: Option<Kept>,
}

impl Exported {
    /// What importers need.
    pub fn message(&self) -> ExportMessage {
        self.message
    }

    /// Keeps whatever owns the memory: it is dropped after this does not count any more, and no other process can use the memory, however it has
    /// gone. On another thread, if that takes a while.
    #[must_use]
    pub fn keep(mut self, owner: impl Any + Send + Sync) -> Self {
        self.kept = Some(Box::new((self.kept.take(), owner)));
        self
    }
}

impl Drop for Exported {
    fn drop(&mut self) {
        self.pool.give_back(self.pointer, self.kept.take());
    }
}

impl fmt::Debug for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exported")
            .field("pointer", &format_args!("{:#x}", self.pointer))
            .field("bytes", &self.message.bytes)
            .finish_non_exhaustive()
    }
}
