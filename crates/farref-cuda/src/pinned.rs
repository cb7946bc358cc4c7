//! Page-locked memory of the host, which a device copies from and to several times as quickly as plain memory.
//!
//! Locking memory takes longer than most copies. So what was used is kept, in blocks of a few lengths, and given back when nobody has
//! used it for a while (CU-7). A thread does that; it is there as long as something is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::Cuda;
use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::sys::{HostBlock, StreamHandle};

/// The least length of a block: a page.
const LEAST: usize = 4 << 10;

/// How many threads copy at most, however many processors there are: so many are as quick as the device.
const MOST_THREADS: usize = 8;

/// How much memory a [`PinnedPool`] locks, how long it keeps it, and how it is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PinnedOptions {
    /// So many bytes are locked at most, in use or kept.
    pub limit: u64,
    /// What was not used for so long is given back.
    pub idle: Duration,
    /// So many threads at most copy what is to go to the device into locked memory. One alone is several times as slow as the
    /// device.
    pub threads: usize,
}

impl Default for PinnedOptions {
    fn default() -> Self {
        Self {
            limit: 1 << 30,
            idle: Duration::from_secs(10),
            threads: std::thread::available_parallelism()
                .map_or(1, |all| all.get().min(MOST_THREADS)),
        }
    }
}

/// Page-locked memory for copies from and to one device. Cheap to clone.
#[derive(Clone)]
pub struct PinnedPool(Arc<Pool>);

struct Pool {
    device: Device,
    options: PinnedOptions,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// By their lengths; of each length those used last are last.
    blocks: BTreeMap<usize, Vec<(HostBlock, Instant)>>,
    /// Bytes that are locked, in use or kept.
    locked: u64,
    has_thread: bool,
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPool")
            .field("ordinal", &self.0.device.ordinal)
            .field("locked_bytes", &self.locked_bytes())
            .field("options", &self.0.options)
            .finish()
    }
}

impl PinnedPool {
    /// A pool for a device, with nothing in it.
    pub fn new(cuda: &Cuda, ordinal: u32, options: PinnedOptions) -> Result<Self> {
        Ok(Self(Arc::new(Pool {
            device: cuda.device(ordinal)?,
            options,
            kept: Mutex::default(),
        })))
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.device.ordinal
    }

    /// How many bytes are locked, in use or kept.
    pub fn locked_bytes(&self) -> u64 {
        self.0.lock().locked
    }

    /// How many threads copy at most.
    pub(crate) fn threads(&self) -> usize {
        self.0.options.threads
    }

    /// Memory of so many bytes, with whatever was in it before.
    ///
    /// Fails with [`CudaError::LimitReached`] if too much is locked.
    pub fn take(&self, bytes: usize) -> Result<PinnedBuffer> {
        Ok(PinnedBuffer {
            block: Some(self.take_block(bytes)?),
            bytes,
            pool: self.clone(),
        })
    }

    /// The same, or plain memory if too much is locked.
    pub(crate) fn take_any(&self, bytes: usize) -> HostBlock {
        (self.take_block(bytes)).unwrap_or_else(|_| HostBlock::plain(&self.0.device, bytes))
    }

    pub(crate) fn take_block(&self, bytes: usize) -> Result<HostBlock> {
        let refused = |locked| CudaError::LimitReached {
            asked: bytes as u64,
            used: locked,
            limit: self.0.options.limit,
        };
        let mut kept = self.0.lock();
        let limit = usize::try_from(self.0.options.limit).unwrap_or(usize::MAX);
        // What has no room in any case takes nothing from others.
        let capacity = class(bytes).filter(|&capacity| capacity <= limit);
        let capacity = capacity.ok_or_else(|| refused(kept.locked))?;
        // The shortest one that is long enough, and not much too long.
        for (_, blocks) in kept.blocks.range_mut(capacity..capacity.saturating_mul(2)) {
            // One whose last copy is still under way is of no use yet.
            let is_free = |(block, _): &(HostBlock, Instant)| !block.is_busy(block.capacity());
            if let Some(at) = blocks.iter().rposition(is_free) {
                return Ok(blocks.remove(at).0);
            }
        }
        let mut given_back = Vec::new();
        while kept.locked + capacity as u64 > self.0.options.limit {
            // What others do not need now makes room.
            let Some(block) = kept.pop(|_| true) else {
                let error = refused(kept.locked);
                // The driver takes its time to unlock what makes no room after all.
                drop(kept);
                return Err(error);
            };
            given_back.push(block);
        }
        kept.locked += capacity as u64;
        drop(kept);
        drop(given_back);
        HostBlock::locked(&self.0.device, capacity).map_err(|error| {
            self.0.lock().locked -= capacity as u64;
            error.into()
        })
    }

    /// Takes a block back, also if a copy is still under way.
    pub(crate) fn put_back(&self, block: HostBlock) {
        if !block.is_locked() {
            return;
        }
        let mut kept = self.0.lock();
        let blocks = kept.blocks.entry(block.capacity()).or_default();
        blocks.push((block, Instant::now()));
        if !kept.has_thread {
            let pool = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("farref-pinned".to_owned());
            // Without a thread it is kept until the pool goes.
            kept.has_thread = thread.spawn(move || Pool::clean_up(&pool)).is_ok();
        }
    }
}

/// The length of the block for so many bytes: a power of two, or one of seven steps to the next; whole pages.
fn class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(LEAST);
    bytes.checked_next_multiple_of(LEAST.max(1 << (bytes.ilog2() - 3)))
}

impl Kept {
    /// Takes a kept block out that is not busy: the one that was not used for longest, of those that may be taken.
    fn pop(&mut self, may: impl Fn(Instant) -> bool) -> Option<HostBlock> {
        let oldest = |blocks: &Vec<(HostBlock, Instant)>| {
            let free = |(block, since): &(HostBlock, Instant)| {
                may(*since) && !block.is_busy(block.capacity())
            };
            let at = blocks.iter().position(free)?;
            Some((blocks[at].1, at))
        };
        let found = self.blocks.iter();
        let found = found.filter_map(|(&capacity, blocks)| {
            oldest(blocks).map(|(since, at)| (since, capacity, at))
        });
        let (_, capacity, at) = found.min()?;
        let blocks = self.blocks.get_mut(&capacity)?;
        let (block, _) = blocks.remove(at);
        if blocks.is_empty() {
            self.blocks.remove(&capacity);
        }
        self.locked -= capacity as u64;
        Some(block)
    }
}

impl Pool {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what is idle, until nothing is kept or nobody has the pool any more.
    fn clean_up(pool: &std::sync::Weak<Self>) {
        loop {
            // Kept no longer than needed: the pool's end does not wait for this thread.
            let Some(here) = pool.upgrade() else { return };
            let idle = here.options.idle;
            let mut kept = here.lock();
            let mut given_back = Vec::new();
            while let Some(block) = kept.pop(|since| since.elapsed() >= idle) {
                given_back.push(block);
            }
            let is_over = kept.blocks.values().all(Vec::is_empty);
            kept.has_thread = !is_over;
            drop(kept);
            if is_over {
                return;
            }
            drop(given_back);
            drop(here);
            std::thread::sleep(idle.clamp(Duration::from_millis(1), Duration::from_secs(1)));
        }
    }
}

/// Page-locked memory. Goes back to its pool when dropped.
pub struct PinnedBuffer {
    /// `None` only while it is dropped.
    block: Option<HostBlock>,
    bytes: usize,
    pool: PinnedPool,
}

impl PinnedBuffer {
    /// Begins to copy all of it into device memory, and does not wait. It goes back to its pool, which does not give it to anybody before
    /// that is done.
    pub(crate) fn begin_upload(mut self, pointer: u64, stream: StreamHandle) -> Result<()> {
        let bytes = self.bytes;
        match &mut self.block {
            Some(block) => Ok(block.begin_upload(bytes, pointer, stream)?),
            None => Ok(()),
        }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let block = self.block.as_ref();
        // No copy is under way while somebody has the buffer.
        block
            .and_then(|block| block.bytes(self.bytes))
            .unwrap_or(&[])
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (block, bytes) = (self.block.as_mut(), self.bytes);
        (block.and_then(|block| block.bytes_mut(bytes))).unwrap_or(&mut [])
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put_back(block);
        }
    }
}

impl fmt::Debug for PinnedBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
