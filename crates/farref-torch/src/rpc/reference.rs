//! What both languages write of a reference: who has the value, under which numbers; and how such numbers and names
//! are read.

use super::error::RpcError;
use crate::pickle::View;

/// A number that no other worker gives: who gave it, and the counter there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GlobalId {
    /// The worker that gave it. At most `i16::MAX` on the wire.
    pub(crate) on: u16,
    /// Its counter. At most `i64::MAX` on the wire.
    pub(crate) number: u64,
}

impl GlobalId {
    pub(crate) const fn new(on: u16, number: u64) -> Self {
        Self { on, number }
    }

    pub(super) fn read(view: View<'_, '_>) -> Result<Self, RpcError> {
        let [on, number] = view.tuple_of()?;
        Self::read_parts(on, number)
    }

    pub(super) fn read_parts(on: View<'_, '_>, number: View<'_, '_>) -> Result<Self, RpcError> {
        Ok(Self {
            on: read_worker(on)?,
            number: read_counter(number)?,
        })
    }

    /// The counter as PyTorch writes it.
    pub(super) fn counter(self) -> i64 {
        i64::try_from(self.number).unwrap_or(i64::MAX)
    }
}

/// A worker's id: PyTorch keeps it in 16 bits, with a sign.
pub(super) fn read_worker(view: View<'_, '_>) -> Result<u16, RpcError> {
    let id = view.int()?;
    let id_of_worker = i16::try_from(id).ok().and_then(|id| u16::try_from(id).ok());
    id_of_worker.ok_or_else(|| RpcError::wrong("the id of a worker is 0 to 32767", id))
}

pub(super) fn read_counter(view: View<'_, '_>) -> Result<u64, RpcError> {
    let number = view.int()?;
    u64::try_from(number).map_err(|_| RpcError::wrong("a counter is not negative", number))
}

/// Which tensor of the message, or how many of something.
pub(super) fn read_index(view: View<'_, '_>) -> Result<usize, RpcError> {
    let number = view.int()?;
    usize::try_from(number).map_err(|_| RpcError::wrong("an index is not negative", number))
}

/// A text that is one.
pub(super) fn read_str<'a>(view: View<'_, 'a>) -> Result<&'a str, RpcError> {
    utf8(view.text()?)
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, RpcError> {
    std::str::from_utf8(bytes)
        .map_err(|_| RpcError::wrong("a name is UTF-8", format!("{} bytes", bytes.len())))
}

/// A reference to a value on its way to another worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fork {
    /// The worker that has the value.
    pub(crate) owner: u16,
    /// Which value.
    pub(crate) rref: GlobalId,
    /// Which of the references to it. The receiver's, from now on.
    pub(crate) fork: GlobalId,
    /// The worker that sends it.
    pub(crate) parent: u16,
    /// The type of the value in TorchScript's words, or `PyObject`. To be passed on as it is.
    pub(crate) type_name: String,
}

impl Fork {
    /// Reads the seven items that stand for a reference in both languages.
    pub(crate) fn read(items: &[View<'_, '_>]) -> Result<Self, RpcError> {
        let [owner, rref_on, rref, fork_on, fork, parent, type_name] = items else {
            return Err(RpcError::wrong("a reference has seven parts", items.len()));
        };
        Ok(Self {
            owner: read_worker(*owner)?,
            rref: GlobalId::read_parts(*rref_on, *rref)?,
            fork: GlobalId::read_parts(*fork_on, *fork)?,
            parent: read_worker(*parent)?,
            type_name: read_str(*type_name)?.to_owned(),
        })
    }

    /// The numbers among the seven items.
    pub(super) fn numbers(&self) -> [i64; 6] {
        [
            self.owner.into(),
            self.rref.on.into(),
            self.rref.counter(),
            self.fork.on.into(),
            self.fork.counter(),
            self.parent.into(),
        ]
    }
}
