//! Copies between the host and a device, in windows, so that whoever sends or reads the bytes does that while others are still being
//! copied.

use std::fmt;
use std::ops::Range;

use crate::error::{CudaError, Result};
use crate::pinned::PinnedPool;
use crate::sys::{HostBlock, StreamHandle};

/// The length of a window: long enough for the device's full rate, short enough for the processor's cache.
const WINDOW: usize = 2 << 20;
/// The least length. A short copy has several windows as well, so that its steps overlap.
const LEAST_WINDOW: usize = 256 << 10;
/// The most windows of a download. Of longer ones windows are longer.
const MOST: usize = 128;
/// Each thread that fills windows of an upload has about that many bytes to copy, or it is not worth it.
const LANE: usize = 4 << 20;
/// How many windows such a thread has: one is filled while the other is copied.
const WINDOWS: usize = 2;
/// How many windows a short copy has, and a thread that fills all of them alone: it need not wait for the device.
const SHORT: usize = 4;

/// The length of the windows of a copy of so many bytes.
fn window(bytes: usize) -> usize {
    bytes.div_ceil(SHORT).clamp(LEAST_WINDOW, WINDOW)
}

/// Bytes of a device that are being copied to the host: into one piece of memory, from its beginning on.
///
/// The memory goes back to its pool when this is dropped, also if it is not complete.
pub struct Download {
    /// `None` only while it is dropped.
    block: Option<HostBlock>,
    bytes: usize,
    pool: PinnedPool,
}

impl Download {
    pub(crate) fn begin(
        pool: &PinnedPool,
        pointer: u64,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<Self> {
        let block = pool.take_block(bytes)?;
        let window = window(bytes).max(bytes.div_ceil(MOST));
        let mut download = Self {
            block: Some(block),
            bytes,
            pool: pool.clone(),
        };
        if let Some(block) = &mut download.block {
            block.begin_download(pointer, bytes, window, stream)?;
        }
        Ok(download)
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where the first one is, or will be: an address of this process.
    pub fn address(&self) -> usize {
        self.block.as_ref().map_or(0, HostBlock::address)
    }

    /// Whether these bytes have come: [`look`](Self::look) does not wait then.
    pub fn is_ready(&self, range: Range<usize>) -> bool {
        (self.block.as_ref()).is_some_and(|block| !block.is_busy(range.end.min(self.bytes)))
    }

    /// Waits for these bytes, and shows them, all at once. Those after them are not waited for.
    pub fn look(&self, range: Range<usize>, show: &mut dyn FnMut(&[u8])) -> Result<()> {
        let out_of_range = CudaError::OutOfRange {
            from: range.start as u64,
            to: range.end as u64,
            bytes: self.bytes as u64,
        };
        let Some(block) = self.block.as_ref().filter(|_| range.end <= self.bytes) else {
            return Err(out_of_range);
        };
        block.wait(range.end)?;
        let bytes = block.bytes(range.end).and_then(|bytes| bytes.get(range));
        show(bytes.ok_or(out_of_range)?);
        Ok(())
    }

    /// Waits until it has begun: until its stream has done what it was given before, and the first bytes are there. So it is here
    /// that an error of that work shows, and from here on nobody waits for more than a copy.
    pub fn wait_begun(&self) -> Result<()> {
        self.look(0..self.bytes.min(1), &mut |_| ())
    }

    /// Waits for all of them.
    pub fn wait_all(&self) -> Result<()> {
        self.look(0..self.bytes, &mut |_| ())
    }

    /// Waits for all of them, and copies them.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut all = Vec::new();
        self.look(0..self.bytes, &mut |bytes| all = bytes.to_vec())?;
        Ok(all)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.pool.put_back(block);
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// Copies bytes to a device. Returns when all of them have been read; the stream has then been given all copies.
pub(crate) fn upload(
    pool: &PinnedPool,
    source: &[u8],
    pointer: u64,
    stream: StreamHandle,
) -> Result<()> {
    let lanes = source.len() / LANE;
    let lanes = lanes.clamp(1, pool.threads().max(1));
    let lane = &|first| upload_lane(pool, source, first, lanes, pointer, stream);
    if lanes == 1 {
        return lane(0);
    }
    std::thread::scope(|scope| {
        let others = (1..lanes).map(|first| {
            let thread = std::thread::Builder::new().name("farref-upload".to_owned());
            (first, thread.spawn_scoped(scope, move || lane(first)))
        });
        let others: Vec<_> = others.collect();
        let mut copied = lane(0);
        for (first, other) in others {
            let there = match other {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // There is no thread for it.
                Err(_) => lane(first),
            };
            copied = copied.and(there);
        }
        copied
    })
}

/// Every `step`-th window, from `first` on.
fn upload_lane(
    pool: &PinnedPool,
    source: &[u8],
    first: usize,
    step: usize,
    pointer: u64,
    stream: StreamHandle,
) -> Result<()> {
    let mut blocks: Vec<HostBlock> = Vec::new();
    let window = window(source.len());
    let windows = if step == 1 { SHORT } else { WINDOWS };
    let pieces = source.chunks(window).enumerate().skip(first).step_by(step);
    let mut copy = |(count, (index, piece)): (usize, (usize, &[u8]))| -> Result<()> {
        if blocks.len() < windows {
            blocks.push(pool.take_any(piece.len()));
        }
        // The last piece may be shorter than its window.
        let block = &mut blocks[count % windows];
        block.wait(block.capacity())?;
        if let Some(bytes) = block.bytes_mut(piece.len()) {
            bytes.copy_from_slice(piece);
        }
        let to = pointer + (index * window) as u64;
        Ok(block.begin_upload(piece.len(), to, stream)?)
    };
    let copied = pieces.enumerate().try_for_each(&mut copy);
    for block in blocks {
        pool.put_back(block);
    }
    copied
}
