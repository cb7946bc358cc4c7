//! Sums and means.

use farref_autograd::Tensor;
use farref_autograd::candle::{DType, Tensor as Plain};

use super::arguments::{Input, Number, Sizes, Type};
use super::{AtenError, Result, shape, types, whole};
use crate::rpc::tensors::Dtype;

/// The sum of all elements.
#[farref::remote(python = "torch.ops.aten.sum")]
pub(super) fn sum(input: Input, dtype: Option<Type>) -> Result<Tensor> {
    sum_of(&input, None, None, dtype)
}

/// Sums over some dimensions; over all, if there are none.
#[farref::remote(python = "torch.ops.aten.sum.dim_IntList")]
pub(super) fn sum_dim(
    input: Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    sum_of(&input, dim, keepdim, dtype)
}

/// Both, as Python calls them.
#[farref::remote(python = "torch.sum")]
pub(super) fn sum_python(
    input: Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    sum_of(&input, dim, keepdim, dtype)
}

/// The mean of all elements.
#[farref::remote(python = "torch.ops.aten.mean")]
pub(super) fn mean(input: Input, dtype: Option<Type>) -> Result<Tensor> {
    mean_of(&input, None, None, dtype)
}

/// Means over some dimensions; over all, if there are none.
#[farref::remote(python = "torch.ops.aten.mean.dim")]
pub(super) fn mean_dim(
    input: Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    mean_of(&input, dim, keepdim, dtype)
}

/// Both, as Python calls them.
#[farref::remote(python = "torch.mean")]
pub(super) fn mean_python(
    input: Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    mean_of(&input, dim, keepdim, dtype)
}

fn sum_of(
    input: &Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    let dtype = match dtype {
        Some(Type(dtype)) => dtype,
        None if types::is_float(input.dtype) => input.dtype,
        None => Dtype::Long,
    };
    let over = Over::new(input, dim, keepdim)?;
    let dtype = types::result_as(dtype)?;
    if dtype.is_float() {
        let elements = input.converted(types::computed_as(dtype))?;
        return Ok(over.floats(&elements)?.to_dtype(dtype)?.into());
    }
    // The elements are converted first, and only then added up.
    let elements = input.converted(dtype)?.to_dtype(DType::I64)?;
    Ok(over.integers(&elements, dtype)?.into())
}

fn mean_of(
    input: &Input,
    dim: Option<Sizes>,
    keepdim: Option<bool>,
    dtype: Option<Type>,
) -> Result<Tensor> {
    let asked = dtype.is_some();
    let dtype = dtype.map_or(input.dtype, |Type(dtype)| dtype);
    if !types::is_float(dtype) {
        let what = if asked { "Optional" } else { "Input" };
        return AtenError::invalid(format_args!(
            "mean(): could not infer output dtype. {what} dtype must be either a floating point or complex dtype. \
             Got: {dtype}"
        ));
    }
    let over = Over::new(input, dim, keepdim)?;
    let dtype = types::result_as(dtype)?;
    let computed = types::computed_as(dtype);
    let sum = over.floats(&input.converted(computed)?)?;
    let count = Number::Float(over.count as f64).tensor(computed)?;
    Ok(sum.broadcast_div(&count)?.to_dtype(dtype)?.into())
}

/// What is added up.
struct Over {
    dims: Vec<usize>,
    /// How many elements make one of the result.
    count: usize,
    /// The shape of the result.
    result: Vec<usize>,
}

impl Over {
    fn new(input: &Input, dim: Option<Sizes>, keepdim: Option<bool>) -> Result<Self> {
        let shape = input.tensor.dims();
        let dims = match dim {
            Some(Sizes(dims)) if !dims.is_empty() => shape::dimensions(&dims, shape.len())?,
            _ => (0..shape.len()).collect(),
        };
        // The one dimension of a tensor that has none.
        let dims: Vec<usize> = dims.into_iter().filter(|&dim| dim < shape.len()).collect();
        let sizes = shape.iter().copied().enumerate();
        let result: Vec<usize> = match keepdim.unwrap_or(false) {
            true => sizes
                .map(|(dim, size)| if dims.contains(&dim) { 1 } else { size })
                .collect(),
            false => sizes
                .filter(|(dim, _)| !dims.contains(dim))
                .map(|(_, size)| size)
                .collect(),
        };
        // Of a tensor without elements, the result may have some.
        shape::room(&result)?;
        Ok(Self {
            count: dims.iter().map(|&dim| shape[dim]).product(),
            dims,
            result,
        })
    }

    fn floats(&self, elements: &Plain) -> Result<Plain> {
        let sum = match self.dims.is_empty() {
            true => elements.clone(),
            false => elements.sum_keepdim(&self.dims[..])?,
        };
        Ok(sum.reshape(&self.result[..])?)
    }

    fn integers(&self, elements: &Plain, dtype: DType) -> Result<Plain> {
        let kept = (0..elements.rank()).filter(|dim| !self.dims.contains(dim));
        let order: Vec<usize> = kept.chain(self.dims.iter().copied()).collect();
        let elements = match order.is_empty() {
            true => elements.clone(),
            false => elements.permute(&order[..])?,
        };
        whole::sums(&elements, self.count, &self.result, dtype)
    }
}
