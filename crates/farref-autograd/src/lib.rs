//! Distributed autograd on far references: gradients flow back through remote calls.
//!
//! A model may be spread over workers and trained as one. Calls made inside of a [`Context`] that carry
//! tensors which need gradients are remembered on both sides; [`Context::backward`] runs them in reverse,
//! over as many workers as took part, and leaves the gradients in the context, on the worker that has the
//! parameter.
//!
//! ```
//! use farref_autograd::{Context, Parameter, Tensor, candle::{DType, Device}};
//!
//! #[farref::remote]
//! fn double(x: Tensor) -> Result<Tensor, farref_autograd::Error> {
//!     Ok(Tensor::from((&*x * 2.0)?))
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = farref::testing::Cluster::start(2).await?;
//! let (me, other) = (cluster.worker(0), cluster.worker(0).peer("worker1")?);
//!
//! let weight = Parameter::new(&farref_autograd::candle::Tensor::ones(3, DType::F64, &Device::Cpu)?)?;
//! let context = Context::new(me)?;
//! let loss = context
//!     .run(async {
//!         let doubled = double::on(&other, weight.tensor()).await?;
//!         Ok::<_, farref_autograd::Error>(Tensor::from(doubled.sum_all()?))
//!     })
//!     .await?;
//! context.backward(&[&loss]).await?;
//!
//! let gradient = context.gradient(&weight).ok_or("no gradient")?;
//! assert_eq!(gradient.to_vec1::<f64>()?, [2.0, 2.0, 2.0]);
//! context.release().await?;
//! # drop(loss);
//! # cluster.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! `docs/autograd.md` tells how it works, what its limits are, and how it compares to PyTorch.

pub mod engine;
mod error;
mod failure;

#[cfg(feature = "candle")]
mod context;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
mod dropping;
#[cfg(all(feature = "candle", any(test, feature = "fuzzing")))]
mod fuzzing;
#[cfg(feature = "candle")]
mod module;
#[cfg(feature = "candle")]
pub mod nn;
#[cfg(feature = "candle")]
pub mod optim;
#[cfg(feature = "candle")]
mod owners;
#[cfg(feature = "candle")]
mod parameter;
#[cfg(feature = "candle")]
mod pipeline;
#[cfg(feature = "candle")]
mod place;
#[cfg(feature = "candle")]
mod sent_tensor;
#[cfg(feature = "candle")]
mod several;
#[cfg(feature = "candle")]
mod stack;
#[cfg(feature = "candle")]
mod state;
#[cfg(feature = "candle")]
mod stored;
#[cfg(feature = "candle")]
mod tensor;
#[cfg(feature = "candle")]
mod threads;
#[cfg(feature = "candle")]
mod view;
#[cfg(feature = "candle")]
mod vjp;
#[cfg(feature = "candle")]
mod wire;

/// The tensor library, as this crate uses it.
#[cfg(feature = "candle")]
pub use candle_core as candle;
pub use error::{Error, Mismatched, Result, StateMismatch};

#[cfg(feature = "candle")]
pub use crate::{
    context::{Backward, Context, REMOTE_BACKWARD, RemoteLoss},
    module::{Hosted, Input, Module, RemoteModule},
    parameter::{Parameter, RemoteParameter},
    pipeline::Pipeline,
    state::{StateDict, load_file, save_file},
    tensor::{Candle, Tensor},
};

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(all(feature = "candle", any(test, feature = "fuzzing")))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::fuzzing::tensors;
}
