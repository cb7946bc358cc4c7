//! PyTorch's builtin operators on candle, for peers that call `rpc_sync("worker", torch.add, ..)`.
//!
//! A PyTorch worker sends a builtin operator as its schema and the arguments that it takes, defaults included.
//! Every program that links this crate serves these, with PyTorch's rules for shapes, types, and gradients:
//!
//! | operators | overloads |
//! | --- | --- |
//! | `add`, `sub` (`subtract`) | `.Tensor`, `.Scalar`, with `alpha` |
//! | `mul` (`multiply`), `div` (`divide`, `true_divide`) | `.Tensor`, `.Scalar`; of `div` those with `_mode` |
//! | `pow` | `.Tensor_Tensor`, `.Tensor_Scalar`, `.Scalar` |
//! | `neg` (`negative`), `relu`, `exp`, `log`, `sqrt`, `tanh`, `sigmoid`, `sin`, `cos`, `square` | of tensors |
//! | `softmax`, `log_softmax` | `.int` |
//! | `sum`, `mean` | all elements; `.dim_IntList`, `.dim` |
//! | `matmul`, `mm`, `bmm`, `linear` | |
//! | `t`, `transpose`, `permute`, `reshape`, `view`, `flatten`, `squeeze`, `unsqueeze` | dimensions by number |
//! | `cat` (`concat`), `stack`, `clone`, `detach` | |
//! | `zeros`, `ones`, `full`, `zeros_like`, `ones_like`, `full_like` | |
//!
//! The same operators answer where they are called as Python functions: `torch.add`, `torch.nn.functional.relu`,
//! `torch.Tensor.add`. An operator that is not here is one that a program can serve itself, under its name in
//! PyTorch: `#[farref::remote(python = "torch.ops.aten.gelu")]`, or under that of one overload, such as
//! `torch.ops.aten.max.dim`, which is looked for first.
//!
//! # What differs from PyTorch
//!
//! - Tensors are of `float16`, `bfloat16`, `float32`, `float64`, `uint8`, `uint32`, `int16`, `int32` and `int64`.
//!   Those of `bool` can be arguments, but candle has none: an operator that would return one fails and says so.
//! - Elements in half precision are computed in `float32` and rounded once.
//! - The order in which floating point numbers are added up differs, and so may the last digits of sums and
//!   products of matrices.
//! - Operators of numbers alone (`torch.add(2, 3)`) and of lists are not served, nor are those with `out`.
//! - A result has its own elements. What is a view in PyTorch is a copy for the peer in any case.
//! - `memory_format` changes nothing: results arrive contiguous.
//!
//! # Invariants
//!
//! - **AT-1** Types of results are those of PyTorch: tensors of one dimension or more go before those of none, and
//!   those before numbers, unless a later one is of a higher kind (`bool` < integers < floating point).
//! - **AT-2** Integers wrap around. Nothing that a peer sends makes an operator panic.
//! - **AT-3** No result is larger than [`shape::MAX_ELEMENTS`], and none is made without memory for it.
//! - **AT-4** Gradients flow as in PyTorch, also where candle has other rules or none.
//!
//! | part | job |
//! | --- | --- |
//! | [`arguments`] | what operators take |
//! | [`types`] | which type a result has |
//! | [`shape`] | which shape a result has |
//! | [`pointwise`], [`unary`], [`reduce`], [`matrix`], [`views`], [`create`] | the operators |
//! | [`whole`] | arithmetic with integers |
//! | [`smooth`] | functions that candle has no gradients for |

mod arguments;
mod create;
mod matrix;
mod pointwise;
mod reduce;
mod shape;
mod smooth;
#[cfg(test)]
mod tests;
mod types;
mod unary;
mod views;
mod whole;

use farref_autograd::candle;

/// Why an operator fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AtenError {
    /// The arguments make no sense. In PyTorch's words, where it has some.
    #[error("{0}")]
    Invalid(String),
    /// PyTorch could, this worker cannot.
    #[error("this worker computes with candle, which {0}")]
    Unsupported(String),
    /// candle says no.
    #[error("candle: {0}")]
    Candle(#[from] candle::Error),
}

impl AtenError {
    fn invalid<T>(text: impl std::fmt::Display) -> Result<T, Self> {
        Err(Self::Invalid(text.to_string()))
    }

    fn unsupported<T>(text: impl std::fmt::Display) -> Result<T, Self> {
        Err(Self::Unsupported(text.to_string()))
    }
}

type Result<T, E = AtenError> = std::result::Result<T, E>;

/// The overload in a schema, such as `Tensor` in `aten::add.Tensor(Tensor self, ..)`.
pub(crate) fn overload(schema: &str) -> Option<&str> {
    let (name, _) = schema.split_once('(')?;
    let (_, name) = name.split_once("::")?;
    Some(name.split_once('.')?.1)
}

/// The names that the operator behind a Python function may be served under, the best one first.
pub(crate) fn operators(module: &str, name: &str) -> Vec<String> {
    let name = match module {
        "torch" => name.strip_prefix("Tensor.").unwrap_or(name),
        "torch.nn.functional" | "torch._C._nn" => name,
        // What Python's pickle writes for `torch.add` and for `torch.Tensor.add`.
        "torch._C" => match name.split_once('.') {
            Some(("_VariableFunctionsClass" | "_VariableFunctions", name)) => name,
            Some(("TensorBase" | "_TensorBase", name)) => name,
            _ => return Vec::new(),
        },
        "torch._C._VariableFunctions" => name,
        _ => return Vec::new(),
    };
    vec![format!("torch.{name}"), format!("torch.ops.aten.{name}")]
}
