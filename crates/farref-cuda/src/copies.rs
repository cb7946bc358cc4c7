//! Copies between the host and a device, in windows, so that whoever sends or reads the bytes does that while others are still being
//! copied.

use std::fmt;
use std::ops::Range;

use crate::error::{CudaError, Result};
use crate::pinned::PinnedPool;
use crate::sys::{HostBlock, StreamHandle};

/// The length of an upload's windows: long enough for the device's full rate, short enough for the processor's cache.
const WINDOW: usize = 2 << 20;
/// From this length on two threads fill windows: one alone is slower than the device.
const BY_TWO_FROM: usize = 8 << 20;
/// How many windows a thread has: one is filled while the other is copied.
const WINDOWS: usize = 2;

/// Bytes of a device that are being copied to the host, all windows at once and in order.
///
/// Windows are given back to their pool when it is dropped, also if they are not complete.
pub struct Download {
    windows: Vec<HostBlock>,
    window: usize,
    bytes: usize,
    pool: PinnedPool,
}

impl Download {
    pub(crate) fn begin(
        pool: &PinnedPool,
        pointer: u64,
        bytes: usize,
        stream: StreamHandle,
        window: usize,
    ) -> Result<Self> {
        let window = if window == 0 { bytes } else { window }.max(1);
        let mut download = Self {
            windows: Vec::with_capacity(bytes.div_ceil(window)),
            window,
            bytes,
            pool: pool.clone(),
        };
        for from in (0..bytes).step_by(window) {
            let length = window.min(bytes - from);
            let mut block = pool.take_any(length);
            let begun = block.begin_download(pointer + from as u64, length, stream);
            download.windows.push(block);
            begun?;
        }
        Ok(download)
    }

    /// How many bytes there are.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether these bytes have come: [`look`](Self::look) does not wait then.
    pub fn is_ready(&self, range: Range<usize>) -> bool {
        let windows = self.windows_of(&range).unwrap_or(0..0);
        self.windows[windows].iter().all(|window| !window.is_busy())
    }

    /// Waits for these bytes, and shows them, in order and in as many pieces as they have windows. Others are not waited for.
    pub fn look(&self, range: Range<usize>, show: &mut dyn FnMut(&[u8])) -> Result<()> {
        for index in self.windows_of(&range)? {
            let window = &self.windows[index];
            window.wait()?;
            let begin = index * self.window;
            let length = self.window.min(self.bytes - begin);
            let part = range.start.max(begin) - begin..range.end.min(begin + length) - begin;
            // It was waited for.
            if let Some(bytes) = window.bytes() {
                show(&bytes[part]);
            }
        }
        Ok(())
    }

    /// Waits for all of them, and copies them.
    pub fn to_vec(&self) -> Result<Vec<u8>> {
        let mut all = Vec::with_capacity(self.bytes);
        self.look(0..self.bytes, &mut |bytes| all.extend_from_slice(bytes))?;
        Ok(all)
    }

    /// Which windows cover these bytes.
    fn windows_of(&self, range: &Range<usize>) -> Result<Range<usize>> {
        if range.start > range.end || range.end > self.bytes {
            return Err(CudaError::OutOfRange {
                from: range.start as u64,
                to: range.end as u64,
                bytes: self.bytes as u64,
            });
        }
        if range.is_empty() {
            return Ok(0..0);
        }
        Ok(range.start / self.window..range.end.div_ceil(self.window))
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        for window in self.windows.drain(..) {
            self.pool.put_back(window);
        }
    }
}

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Download")
            .field("bytes", &self.bytes)
            .field("window", &self.window)
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
    let lane = |first, step| upload_lane(pool, source, first, step, pointer, stream);
    if source.len() <= BY_TWO_FROM {
        return lane(0, 1);
    }
    std::thread::scope(|scope| {
        let other = std::thread::Builder::new().name("farref-upload".to_owned());
        let other = other.spawn_scoped(scope, || lane(1, 2));
        let here = lane(0, 2);
        let there = match other {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            // There is no thread for it.
            Err(_) => lane(1, 2),
        };
        here.and(there)
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
    let pieces = source.chunks(WINDOW).enumerate().skip(first).step_by(step);
    let mut copy = |(count, (index, piece)): (usize, (usize, &[u8]))| -> Result<()> {
        if blocks.len() < WINDOWS {
            blocks.push(pool.take_any(piece.len()));
        }
        // The last piece may be shorter than its window.
        let block = &mut blocks[count % WINDOWS];
        block.wait()?;
        if let Some(bytes) = block.bytes_mut() {
            bytes[..piece.len()].copy_from_slice(piece);
        }
        let to = pointer + (index * WINDOW) as u64;
        Ok(block.begin_upload(0..piece.len(), to, stream)?)
    };
    let copied = pieces.enumerate().try_for_each(&mut copy);
    for block in blocks {
        pool.put_back(block);
    }
    copied
}
