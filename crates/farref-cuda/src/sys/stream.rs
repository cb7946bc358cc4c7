//! The name of a stream.

/// A stream of this process: work that is done in order.
///
/// The null stream is said as the handle of the legacy default stream, which is the same stream: the driver has been seen to
/// crash with events of other processes on the null one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamHandle(u64);

impl StreamHandle {
    /// The default stream of a device.
    pub const DEFAULT: Self = Self(1);

    /// A `CUstream`, by its value. The null stream is [`DEFAULT`](Self::DEFAULT).
    ///
    /// # Safety
    ///
    /// It must be a stream of this process, of the device that it is used for, and not be destroyed while something that was
    /// given it works with it. The per-thread default stream (2) is another one on each thread: what different threads give it
    /// has no order, so with that one a single thread must do all.
    pub const unsafe fn from_raw(stream: u64) -> Self {
        Self::new(stream)
    }

    pub(crate) const fn new(stream: u64) -> Self {
        if stream == 0 {
            Self::DEFAULT
        } else {
            Self(stream)
        }
    }

    /// The `CUstream`'s value.
    pub const fn raw(self) -> u64 {
        self.0
    }
}
