//! candle as a [`Backend`].

use std::collections::HashSet;
use std::sync::Arc;

use candle_core::{CpuStorage, CustomOp1, Layout, Shape, TensorId};
use farref::{Call, Peer};

use crate::engine::{Backend, Observer, Parcel, PassId, Reach, Receipt};
use crate::owners;
use crate::stack;
use crate::tensor::{Candle, Tensor};
use crate::wire;

impl Backend for Candle {
    type Tensor = Tensor;
    type Leaf = TensorId;

    fn reach(root: &Tensor) -> Reach<TensorId> {
        // `sorted_nodes` stops at variables, which parameters and received tensors are.
        let nodes = root.sorted_nodes();
        let leaves = nodes.iter().filter(|node| node.is_variable());
        Reach {
            leaves: leaves.map(|node| node.id()).collect(),
            nodes: nodes.len(),
            elements: nodes.iter().map(|node| node.elem_count()).sum(),
        }
    }

    fn vjp(
        roots: &[(Tensor, Tensor)],
        wanted: &HashSet<TensorId>,
    ) -> Result<Vec<(TensorId, Tensor)>, String> {
        let mut seeded: Option<candle_core::Tensor> = None;
        for (root, gradient) in roots {
            check(root, gradient)?;
            if !root.track_op() {
                continue;
            }
            let text = |error: candle_core::Error| error.to_string();
            let seed = seed(root, gradient).map_err(text)?;
            seeded = Some(match seeded {
                None => seed,
                // Roots may be on several devices.
                Some(sum) => {
                    (seed.to_device(sum.device()).and_then(|seed| sum + seed)).map_err(text)?
                }
            });
        }
        let Some(seeded) = seeded else {
            return Ok(Vec::new());
        };
        let store = seeded.backward().map_err(|error| error.to_string())?;
        // The store has gradients of constants as well. Those of leaves still hang on the graph.
        let gradients = wanted
            .iter()
            .filter_map(|&leaf| Some((leaf, Tensor::from(store.get_id(leaf)?.detach()))));
        Ok(gradients.collect())
    }

    fn add(one: &Tensor, other: &Tensor) -> Result<Tensor, String> {
        check(one, other)?;
        let other = other.to_device(one.device());
        let sum = other.and_then(|other| &**one + other);
        Ok(Tensor::from(sum.map_err(|error| error.to_string())?))
    }

    fn observer(leaf: TensorId) -> Option<Arc<dyn Observer<Tensor>>> {
        owners::of(leaf)
    }

    fn deliver(peer: &Peer, parcel: Parcel<Tensor>) -> Call<Receipt> {
        wire::deliver::on(peer, parcel)
    }

    fn progressed(peer: &Peer, pass: PassId) -> Call<()> {
        wire::progressed::on(peer, pass)
    }

    fn with_room<T>(work: impl FnOnce() -> T) -> T {
        stack::with_room(work)
    }

    fn let_go<T: Send + 'static>(graphs: T) {
        stack::with_room(|| drop(graphs));
    }
}

/// Gradients come from peers: candle is only given what fits.
fn check(tensor: &Tensor, gradient: &Tensor) -> Result<(), String> {
    if tensor.shape() == gradient.shape() && tensor.dtype() == gradient.dtype() {
        return Ok(());
    }
    Err(format!(
        "the gradient of a tensor of shape {:?} and type {:?} has shape {:?} and type {:?}",
        tensor.dims(),
        tensor.dtype(),
        gradient.dims(),
        gradient.dtype()
    ))
}

/// A scalar whose gradient with respect to `root` is `gradient`.
fn seed(root: &Tensor, gradient: &Tensor) -> candle_core::Result<candle_core::Tensor> {
    if root.elem_count() == 0 {
        // There is nothing to go through, and candle's operations on nothing are not all recorded.
        return candle_core::Tensor::zeros((), candle_core::DType::F32, root.device());
    }
    // It may come from another device than the one that the tensor is on.
    let gradient = gradient.to_device(root.device())?;
    if !root.device().is_metal() {
        return root.apply_op1(Seed(gradient));
    }
    (&**root * gradient)?
        .sum_all()?
        .to_dtype(candle_core::DType::F32)
}

/// Forward it is nothing; backward it is the given gradient. Unlike a sum of products it costs nothing
/// and is exact.
struct Seed(candle_core::Tensor);

impl CustomOp1 for Seed {
    fn name(&self) -> &'static str {
        "farref-seed"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), Shape::from(())))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        _: &Layout,
    ) -> candle_core::Result<(candle_core::CudaStorage, Shape)> {
        use candle_core::backend::{BackendDevice, BackendStorage};

        let nothing = Shape::from(());
        let device = storage.device();
        Ok((
            device.zeros_impl(&nothing, candle_core::DType::F32)?,
            nothing,
        ))
    }

    fn bwd(
        &self,
        _: &candle_core::Tensor,
        _: &candle_core::Tensor,
        _: &candle_core::Tensor,
    ) -> candle_core::Result<Option<candle_core::Tensor>> {
        Ok(Some(self.0.clone()))
    }
}
