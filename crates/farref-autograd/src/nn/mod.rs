//! Building blocks that gradients flow through.
//!
//! candle-nn's `LayerNorm`, `RmsNorm`, `softmax_last_dim` and `rope` have fast paths that are not part of
//! the graph: what comes before them silently gets no gradient. The functions here compute the same from
//! operations that are. Like candle's, they compute in `f32` what comes in half precision, and give back
//! the type that came.

mod functional;
mod generator;
mod linear;

pub use functional::{
    cross_entropy, layer_norm, log_softmax_last_dim, mse_loss, rms_norm, rope, softmax_last_dim,
};
pub use generator::Generator;
pub use linear::Linear;
