//! Objects that live on the peer.

use std::collections::BTreeMap;

use farref_torch::{PyException, PyValue, RawTensor};

use super::values::number;

/// A number that counts up.
pub(super) struct Counter(i64);

#[farref::remote(python = "peer_api.Counter")]
impl Counter {
    pub(crate) fn new(start: Option<PyValue>) -> Result<Self, PyException> {
        start.as_ref().map_or(Ok(0), number).map(Self)
    }

    pub(crate) fn add(&mut self, n: Option<PyValue>) -> Result<i64, PyException> {
        self.0 += n.as_ref().map_or(Ok(1), number)?;
        Ok(self.0)
    }

    pub(crate) fn value(&self) -> i64 {
        self.0
    }

    pub(crate) fn fail(&self, text: String) -> Result<(), PyException> {
        Err(PyException::new("ValueError", text))
    }
}

/// Tensors under names.
#[derive(Default)]
struct Store(BTreeMap<String, RawTensor>);

#[farref::remote(python = "peer_api.Store")]
impl Store {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn put(&mut self, name: String, tensor: RawTensor) {
        self.0.insert(name, tensor);
    }

    pub(crate) fn get(&self, name: String) -> Result<RawTensor, PyException> {
        let found = self.0.get(&name).cloned();
        found.ok_or_else(|| PyException::new("KeyError", name))
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}
