//! Objects that live on the peer.

use std::collections::BTreeMap;

use farref_torch::{PyException, PyValue, RawTensor};

use super::values::number;

/// A number that counts up.
pub(super) struct Counter(i64);

#[farref::remote(python = "peer_api.Counter")]
impl Counter {
    pub fn new(start: Option<PyValue>) -> Result<Self, PyException> {
        start.as_ref().map_or(Ok(0), number).map(Self)
    }

    pub fn add(&mut self, n: Option<PyValue>) -> Result<i64, PyException> {
        self.0 += n.as_ref().map_or(Ok(1), number)?;
        Ok(self.0)
    }

    pub fn value(&self) -> i64 {
        self.0
    }

    pub fn fail(&self, text: String) -> Result<(), PyException> {
        Err(PyException::new("ValueError", text))
    }
}

/// Tensors under names.
#[derive(Default)]
struct Store(BTreeMap<String, RawTensor>);

#[farref::remote(python = "peer_api.Store")]
impl Store {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn put(&mut self, name: String, tensor: RawTensor) {
        self.0.insert(name, tensor);
    }

    pub fn get(&self, name: String) -> Result<RawTensor, PyException> {
        let found = self.0.get(&name).cloned();
        found.ok_or_else(|| PyException::new("KeyError", name))
    }

    pub fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}
