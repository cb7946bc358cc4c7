//! Which parameter a leaf is a value of, for the whole process: a tensor that was taken outside of a context,
//! or inside of another one, is a parameter's all the same.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock, Weak};

use candle_core::TensorId;

use crate::engine::Observer;
use crate::tensor::Tensor;

type Owner = dyn Observer<Tensor>;

static OWNERS: LazyLock<RwLock<HashMap<TensorId, Weak<Owner>>>> = LazyLock::new(RwLock::default);

/// The leaf is a value of that parameter.
pub(crate) fn add(leaf: TensorId, owner: &Arc<impl Observer<Tensor>>) {
    let owner = Arc::downgrade(owner);
    let mut owners = OWNERS.write().unwrap_or_else(PoisonError::into_inner);
    owners.insert(leaf, owner);
}

/// Nobody asks for these any more.
pub(crate) fn remove(leaves: impl IntoIterator<Item = TensorId>) {
    let mut owners = OWNERS.write().unwrap_or_else(PoisonError::into_inner);
    for leaf in leaves {
        owners.remove(&leaf);
    }
}

/// Whose value the leaf is, if that is still there.
pub(crate) fn of(leaf: TensorId) -> Option<Arc<Owner>> {
    let owners = OWNERS.read().unwrap_or_else(PoisonError::into_inner);
    owners.get(&leaf)?.upgrade()
}
