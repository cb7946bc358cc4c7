//! How much a peer may ask for, and whether a message keeps to it.

use std::time::Duration;

use super::error::PipeError;
use super::message::Size;

/// How much a peer may ask for. What is sent keeps to it as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The most bytes of a message without its tensors, and of its list of tensors.
    pub(crate) payload: u64,
    /// The most bytes of a message, tensors included.
    pub(crate) message: u64,
    /// The most storages of a message.
    pub(crate) tensors: usize,
    /// How long setting up a pipe may take.
    pub(crate) handshake: Duration,
    /// The most pipes that members have opened at a time. So many may be half open besides.
    pub(crate) pipes: usize,
    /// The most pipes besides that belong to nobody yet.
    pub(crate) unclaimed: usize,
    /// Whose memory may be read, and who may read this process's: those who name the same [domain](super::cma_domain).
    pub(crate) cma: Option<&'static str>,
}

impl Limits {
    /// Whether a message of this worker may be sent: the other side would refuse what is larger, and the pipe with it.
    /// The one place where that is decided.
    pub(crate) fn judge(&self, size: &Size) -> Result<(), PipeError> {
        let within = |what, size, limit| match size <= limit {
            true => Ok(()),
            false => Err(PipeError::TooLargeToSend { what, size, limit }),
        };
        within("a payload", size.payload, self.payload)?;
        within("a list of tensors", size.tensor_list, self.payload)?;
        let (count, most) = (size.storages as u64, self.tensors as u64);
        within("a number of tensors", count, most)?;
        let own = size.payload.saturating_add(size.tensor_list);
        let total = own.saturating_add(12).saturating_add(size.storage_bytes);
        within("a size", total, self.message)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload: 256 << 20,
            message: 16 << 30,
            tensors: 16 << 10,
            handshake: Duration::from_secs(10),
            pipes: 1024,
            unclaimed: 256,
            cma: None,
        }
    }
}
