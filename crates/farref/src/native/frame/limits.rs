//! The largest frame that is taken in, and so that is sent: limits on its head, its body and its parts.

/// What is taken in at most.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) message_bytes: u64,
    pub(crate) head_bytes: u32,
    pub(crate) parts: u32,
}

impl Limits {
    /// Whether a message may be sent. Leaves room for the frame's own part of the head.
    pub(super) fn allow(&self, head: usize, parts: usize, size: usize) -> bool {
        head as u64 + 128 <= u64::from(self.head_bytes)
            && parts as u64 <= u64::from(self.parts)
            && size as u64 + 128 <= self.message_bytes
    }
}
