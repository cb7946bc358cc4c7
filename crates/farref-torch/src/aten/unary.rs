//! Functions of each element, and of the elements along a dimension.

use farref_autograd::Tensor;
use farref_autograd::candle::{self, Tensor as Plain};

use super::arguments::{Input, Type};
use super::{AtenError, Result, shape, smooth, types, whole};
use crate::rpc::tensors::Dtype;

/// `-input`.
#[farref::remote(python = "torch.ops.aten.neg")]
pub(super) fn neg(input: Input) -> Result<Tensor> {
    if input.dtype == Dtype::Bool {
        return AtenError::invalid(
            "Negation, the `-` operator, on a bool tensor is not supported. If you are trying to invert a mask, use \
             the `~` or `logical_not()` operator instead.",
        );
    }
    kept(&input, Plain::neg, i64::wrapping_neg)
}

/// Another name of `neg`.
#[farref::remote(python = "torch.ops.aten.negative")]
pub(super) fn negative(input: Input) -> Result<Tensor> {
    neg(input)
}

/// What is above zero, and zero.
#[farref::remote(python = "torch.ops.aten.relu")]
pub(super) fn relu(input: Input) -> Result<Tensor> {
    if input.dtype == Dtype::Bool {
        return AtenError::invalid("Boolean inputs not supported for relu");
    }
    kept(&input, smooth::relu, |element| element.max(0))
}

/// `input * input`.
#[farref::remote(python = "torch.ops.aten.square")]
pub(super) fn square(input: Input) -> Result<Tensor> {
    if input.dtype == Dtype::Bool {
        // As the power that it is in PyTorch.
        let elements = input.integers()?;
        return Ok(elements.into());
    }
    kept(&input, Plain::sqr, |element| element.wrapping_mul(element))
}

/// The exponential.
#[farref::remote(python = "torch.ops.aten.exp")]
pub(super) fn exp(input: Input) -> Result<Tensor> {
    floating(&input, Plain::exp)
}

/// The natural logarithm.
#[farref::remote(python = "torch.ops.aten.log")]
pub(super) fn log(input: Input) -> Result<Tensor> {
    floating(&input, Plain::log)
}

/// The root.
#[farref::remote(python = "torch.ops.aten.sqrt")]
pub(super) fn sqrt(input: Input) -> Result<Tensor> {
    floating(&input, Plain::sqrt)
}

/// The hyperbolic tangent.
#[farref::remote(python = "torch.ops.aten.tanh")]
pub(super) fn tanh(input: Input) -> Result<Tensor> {
    floating(&input, Plain::tanh)
}

/// `1 / (1 + exp(-input))`.
#[farref::remote(python = "torch.ops.aten.sigmoid")]
pub(super) fn sigmoid(input: Input) -> Result<Tensor> {
    floating(&input, smooth::sigmoid)
}

/// The sine.
#[farref::remote(python = "torch.ops.aten.sin")]
pub(super) fn sin(input: Input) -> Result<Tensor> {
    floating(&input, Plain::sin)
}

/// The cosine.
#[farref::remote(python = "torch.ops.aten.cos")]
pub(super) fn cos(input: Input) -> Result<Tensor> {
    floating(&input, Plain::cos)
}

/// The exponentials along a dimension, as shares of their sum.
#[farref::remote(python = "torch.ops.aten.softmax")]
pub(super) fn softmax(input: Input, dim: i64, dtype: Option<Type>) -> Result<Tensor> {
    along("softmax", &input, dim, dtype, |x, dim| {
        let exponentials = from_greatest(x, dim)?.exp()?;
        exponentials.broadcast_div(&exponentials.sum_keepdim(dim)?)
    })
}

/// The logarithms of `softmax`.
#[farref::remote(python = "torch.ops.aten.log_softmax")]
pub(super) fn log_softmax(input: Input, dim: i64, dtype: Option<Type>) -> Result<Tensor> {
    along("log_softmax", &input, dim, dtype, |x, dim| {
        let x = from_greatest(x, dim)?;
        x.broadcast_sub(&x.exp()?.sum_keepdim(dim)?.log()?)
    })
}

/// A function that keeps the type.
fn kept(
    input: &Input,
    floats: impl FnOnce(&Plain) -> candle::Result<Plain>,
    integers: impl Fn(i64) -> i64,
) -> Result<Tensor> {
    if types::is_float(input.dtype) {
        return floating(input, floats);
    }
    let dtype = types::result_as(input.dtype)?;
    Ok(whole::map(&input.integers()?, dtype, integers)?.into())
}

/// A function that makes floating point numbers of all others.
fn floating(
    input: &Input,
    function: impl FnOnce(&Plain) -> candle::Result<Plain>,
) -> Result<Tensor> {
    let dtype = types::result_as(types::floating(input.dtype))?;
    let computed = input.converted(types::computed_as(dtype))?;
    Ok(function(&computed)?.to_dtype(dtype)?.into())
}

/// A function of the elements along a dimension.
fn along(
    name: &str,
    input: &Input,
    dim: i64,
    dtype: Option<Type>,
    function: impl FnOnce(&Plain, usize) -> candle::Result<Plain>,
) -> Result<Tensor> {
    let dtype = dtype.map_or(input.dtype, |Type(dtype)| dtype);
    if !types::is_float(dtype) {
        return AtenError::invalid(format_args!("\"{name}\" not implemented for '{dtype}'"));
    }
    let dim = shape::dimension(dim, input.tensor.rank())?;
    let dtype = types::result_as(dtype)?;
    let x = input.converted(types::computed_as(dtype))?;
    // What has no dimensions has one element.
    let dims = x.dims().to_vec();
    let x = match dims.len() {
        0 => x.reshape(1)?,
        _ => x,
    };
    let result = match x.elem_count() {
        0 => x,
        _ => function(&x, dim)?,
    };
    Ok(result.reshape(dims)?.to_dtype(dtype)?.into())
}

/// `x` less its greatest element, which keeps exponentials in range. Nothing flows through that: the result does
/// not depend on it.
fn from_greatest(x: &Plain, dim: usize) -> candle::Result<Plain> {
    x.broadcast_sub(&x.detach().max_keepdim(dim)?)
}
