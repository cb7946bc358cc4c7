//! Optimizers: they replace parameters by better ones, from the gradients in a [`Context`].
//!
//! [`LocalOptimizer`] works on parameters of this worker, [`DistributedOptimizer`] on parameters anywhere.
//! Both are told what to do by an [`OptimizerConfig`]: [`Sgd`], [`Adam`], [`AdamW`], [`Adagrad`] or
//! [`RmsProp`], with PyTorch's defaults. What they compute is what PyTorch computes, operation by
//! operation in the same order, in the parameter's type; results differ by rounding at most, as PyTorch's
//! own do between its kernels (which may fuse a product and a sum).

mod config;
mod distributed;
mod local;
mod rules;

pub use config::{Adagrad, Adam, AdamW, OptimizerConfig, RmsProp, Sgd};
pub use distributed::DistributedOptimizer;
pub use local::LocalOptimizer;

use crate::context::Context;

/// A step that changes nothing is most often one whose pass was forgotten, or made in another context.
fn warn_of_no_gradients(context: &Context, parameters: usize) {
    tracing::warn!(
        context = %context.id(),
        parameters,
        "an optimizer step changed nothing: no parameter of the optimizer has a gradient in the context; was \
         `backward` called on it, with a loss that depends on one of them?"
    );
}
