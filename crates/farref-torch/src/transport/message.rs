//! What a message is, before it is sent and after it has come.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

use super::Storage;

/// Bytes of a tensor's storage on their way out, wherever they are.
pub(crate) trait StorageBytes {
    /// How many there are. Always the same.
    fn len(&self) -> usize;

    /// The bytes, if they can be seen without a lock.
    fn here(&self) -> Option<&[u8]> {
        None
    }

    /// The bytes, where they stay for as long as this is there. Where they may move, this is a copy of them.
    fn lend(&self) -> Option<Lent> {
        let mut copy = None;
        self.look(0..self.len(), &mut |bytes| copy = Some(bytes.to_vec()));
        copy.map(Lent::new)
    }

    /// Calls `look` once with the bytes in `range`, which is within the length.
    ///
    /// `look` never waits. Whatever lock is around the bytes is held only meanwhile. Where the bytes cannot be
    /// had, `look` is not called: the pipe is given up then, rather than anything else sent in their place.
    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8]));
}

/// Bytes that somebody else may read where they are, until this is dropped.
pub(crate) struct Lent {
    pub(super) address: u64,
    pub(super) length: usize,
    /// What has them.
    _keeps: Box<dyn Send + Sync>,
}

impl Lent {
    /// These bytes.
    pub(crate) fn new(bytes: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        // Where they are once they are where they stay.
        let bytes = Box::new(bytes);
        let seen = (*bytes).as_ref();
        Self {
            address: seen.as_ptr().addr() as u64,
            length: seen.len(),
            _keeps: bytes,
        }
    }

    /// So many bytes at this address, which stay there as long as `keeps` does.
    pub(crate) fn at(address: u64, length: usize, keeps: impl Send + Sync + 'static) -> Self {
        Self {
            address,
            length,
            _keeps: Box::new(keeps),
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x}", self.length, self.address)
    }
}

/// A message to send.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing<S = Bytes> {
    /// PyTorch's number for the kind of message.
    pub(crate) kind: i32,
    /// Which request it is, or answers.
    pub(crate) id: i64,
    pub(crate) payload: Bytes,
    /// The pickle that says of which storages which tensors are.
    pub(crate) tensor_list: Bytes,
    pub(crate) storages: Vec<S>,
}

/// What a message measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Size {
    /// The bytes of the message without its tensors.
    pub(crate) payload: u64,
    /// The bytes of the list of its tensors.
    pub(crate) tensor_list: u64,
    /// How many storages it has, and their bytes.
    pub(crate) storages: usize,
    pub(crate) storage_bytes: u64,
}

impl<S: StorageBytes> Outgoing<S> {
    pub(crate) fn size(&self) -> Size {
        let bytes = self.storages.iter().map(|storage| storage.len() as u64);
        Size {
            payload: self.payload.len() as u64,
            tensor_list: self.tensor_list.len() as u64,
            storages: self.storages.len(),
            storage_bytes: bytes.fold(0, u64::saturating_add),
        }
    }
}

/// A message that has come.
#[derive(Debug)]
pub(crate) struct Incoming {
    /// PyTorch's number for the kind of message.
    pub(crate) kind: i32,
    /// Which request it is, or answers.
    pub(crate) id: i64,
    pub(crate) payload: Bytes,
    /// The pickle that says of which storages which tensors are.
    pub(crate) tensor_list: Bytes,
    pub(crate) storages: Vec<Storage>,
}

fn show(bytes: &[u8], range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
    if let Some(bytes) = bytes.get(range) {
        look(bytes);
    }
}

impl StorageBytes for Bytes {
    fn len(&self) -> usize {
        self.as_ref().len()
    }

    fn here(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn lend(&self) -> Option<Lent> {
        Some(Lent::new(self.clone()))
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        show(self, range, look);
    }
}

impl StorageBytes for Vec<u8> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn here(&self) -> Option<&[u8]> {
        Some(self)
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        show(self, range, look);
    }
}
