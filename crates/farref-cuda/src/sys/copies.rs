//! Copies whose caller has to know about the device memory.

use super::stream::StreamHandle;
use crate::copies::{self, Download};
use crate::error::Result;
use crate::pinned::{PinnedBuffer, PinnedPool};

impl PinnedPool {
    /// Begins to copy `bytes` bytes of device memory to the host, in windows, all at once and in order. Does not wait.
    ///
    /// Fails with [`CudaError::LimitReached`](crate::CudaError::LimitReached) if too much memory is locked.
    ///
    /// # Safety
    ///
    /// The device memory must be there, and nobody may write to it, until the stream has done this. (What is given to the same
    /// stream later comes later, also to free it.)
    pub unsafe fn download(
        &self,
        pointer: u64,
        bytes: usize,
        stream: StreamHandle,
    ) -> Result<Download> {
        Download::begin(self, pointer, bytes, stream)
    }

    /// Copies bytes to device memory. They have been read when this returns; the device has them when the stream has done what it
    /// was given, for which this does not wait.
    ///
    /// # Safety
    ///
    /// There must be as much device memory at `pointer`, which nobody else uses until the stream has done this.
    pub unsafe fn upload(&self, source: &[u8], pointer: u64, stream: StreamHandle) -> Result<()> {
        copies::upload(self, source, pointer, stream)
    }
}

impl PinnedBuffer {
    /// Begins to copy all of it to device memory, and does not wait. The buffer goes back to its pool, which does not give it to
    /// anybody before that is done.
    ///
    /// # Safety
    ///
    /// There must be as much device memory at `pointer`, which nobody else uses until the stream has done this.
    pub unsafe fn upload(self, pointer: u64, stream: StreamHandle) -> Result<()> {
        self.begin_upload(pointer, stream)
    }
}
