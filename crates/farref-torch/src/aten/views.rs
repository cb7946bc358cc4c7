//! The same elements in another shape or order, or of several tensors in one.

use farref_autograd::Tensor;
use farref_autograd::candle::{DType, Device, Tensor as Plain};

use super::arguments::{Ignored, Input, Operand, Sizes};
use super::{AtenError, Result, shape, types};

/// The matrix with rows for columns.
#[farref::remote(python = "torch.ops.aten.t")]
pub(super) fn t(input: Input) -> Result<Tensor> {
    match input.tensor.rank() {
        0 | 1 => same(&input),
        2 => transpose(input, 0, 1),
        rank => AtenError::invalid(format_args!(
            "t() expects a tensor with <= 2 dimensions, but self is {rank}D"
        )),
    }
}

/// Two dimensions swapped.
#[farref::remote(python = "torch.ops.aten.transpose")]
pub(super) fn transpose(input: Input, dim0: i64, dim1: i64) -> Result<Tensor> {
    let rank = input.tensor.rank();
    let (dim0, dim1) = (shape::dimension(dim0, rank)?, shape::dimension(dim1, rank)?);
    let same = same(&input)?;
    match rank {
        0 => Ok(same),
        _ => Ok(same.transpose(dim0, dim1)?.into()),
    }
}

/// Dimensions in another order.
#[farref::remote(python = "torch.ops.aten.permute")]
pub(super) fn permute(input: Input, dims: Sizes) -> Result<Tensor> {
    let Sizes(dims) = dims;
    let rank = input.tensor.rank();
    if dims.len() != rank {
        return AtenError::invalid(format_args!(
            "permute: the tensor has {rank} dimensions, which is not the size {} of the list of dims",
            dims.len()
        ));
    }
    shape::dimensions(&dims, rank)?;
    let dims = dims.iter().map(|&dim| shape::dimension(dim, rank));
    let dims = dims.collect::<Result<Vec<_>>>()?;
    let same = same(&input)?;
    match rank {
        0 => Ok(same),
        _ => Ok(same.permute(dims)?.into()),
    }
}

/// The elements in another shape.
#[farref::remote(python = "torch.ops.aten.reshape")]
pub(super) fn reshape(input: Input, shape: Sizes) -> Result<Tensor> {
    let same = same(&input)?;
    let dims = shape::reshaped(same.elem_count(), &shape.0)?;
    Ok(same.reshape(dims)?.into())
}

/// Another name of `reshape`: what arrives is contiguous.
#[farref::remote(python = "torch.ops.aten.view")]
pub(super) fn view(input: Input, size: Sizes) -> Result<Tensor> {
    reshape(input, size)
}

/// Dimensions made one.
#[farref::remote(python = "torch.ops.aten.flatten")]
pub(super) fn flatten(
    input: Input,
    start_dim: Option<i64>,
    end_dim: Option<i64>,
) -> Result<Tensor> {
    let rank = input.tensor.rank();
    let start = shape::dimension(start_dim.unwrap_or(0), rank)?;
    let end = shape::dimension(end_dim.unwrap_or(-1), rank)?;
    if start > end {
        return AtenError::invalid(
            "flatten() has invalid args: start_dim cannot come after end_dim",
        );
    }
    let same = same(&input)?;
    let dims = same.dims();
    let dims = match rank {
        0 => vec![1],
        _ => {
            let one = dims[start..=end].iter().product();
            [&dims[..start], &[one], &dims[end + 1..]].concat()
        }
    };
    Ok(same.reshape(dims)?.into())
}

/// Without dimensions of size one: without all of them, or some.
#[farref::remote(python = "torch.ops.aten.squeeze")]
pub(super) fn squeeze(input: Input, dim: Option<Sizes>) -> Result<Tensor> {
    let same = same(&input)?;
    let rank = same.rank();
    let chosen = match dim {
        Some(Sizes(dims)) => shape::dimensions(&dims, rank)?,
        None => (0..rank).collect(),
    };
    let dims = same.dims().iter().copied().enumerate();
    let dims = dims.filter(|(dim, size)| *size != 1 || !chosen.contains(dim));
    let dims: Vec<usize> = dims.map(|(_, size)| size).collect();
    Ok(same.reshape(dims)?.into())
}

/// With one more dimension, of size one.
#[farref::remote(python = "torch.ops.aten.unsqueeze")]
pub(super) fn unsqueeze(input: Input, dim: i64) -> Result<Tensor> {
    let same = same(&input)?;
    let mut dims = same.dims().to_vec();
    dims.insert(shape::dimension(dim, dims.len() + 1)?, 1);
    Ok(same.reshape(dims)?.into())
}

/// A copy, which it is for the peer in any case.
#[farref::remote(python = "torch.ops.aten.clone")]
pub(super) fn clone(input: Input, memory_format: Option<Ignored>) -> Result<Tensor> {
    let _ = memory_format;
    same(&input)
}

/// The elements without their history.
#[farref::remote(python = "torch.ops.aten.detach")]
pub(super) fn detach(input: Input) -> Result<Tensor> {
    Ok(same(&input)?.detach().into())
}

/// Tensors behind each other.
#[farref::remote(python = "torch.ops.aten.cat")]
pub(super) fn cat(tensors: Vec<Input>, dim: Option<i64>) -> Result<Tensor> {
    if tensors.is_empty() {
        return AtenError::invalid("torch.cat(): expected a non-empty list of Tensors");
    }
    if let Some(place) = tensors.iter().position(|input| input.tensor.rank() == 0) {
        return AtenError::invalid(format_args!(
            "zero-dimensional tensor (at position {place}) cannot be concatenated"
        ));
    }
    let (tensors, dtype) = converted(tensors)?;
    // From before PyTorch had tensors without elements in other shapes: these fit all.
    let is_nothing = |tensor: &Plain| tensor.dims() == [0];
    let Some(first) = tensors.iter().find(|tensor| !is_nothing(tensor)) else {
        return Ok(Plain::zeros(0, dtype, &Device::Cpu)?.into());
    };
    let mut nothing = first.dims().to_vec();
    let dim = shape::dimension(dim.unwrap_or(0), nothing.len())?;
    nothing[dim] = 0;
    let mut dims = nothing.clone();
    let mut parts = Vec::with_capacity(tensors.len());
    for (place, tensor) in tensors.iter().enumerate() {
        if is_nothing(tensor) {
            parts.push(tensor.reshape(&nothing[..])?);
            continue;
        }
        let sizes = tensor.dims();
        if sizes.len() != dims.len() {
            return AtenError::invalid(format_args!(
                "Tensors must have same number of dimensions: got {} and {} (sizes {:?} and {sizes:?})",
                dims.len(),
                sizes.len(),
                first.dims()
            ));
        }
        let differs = (0..dims.len()).find(|&other| other != dim && dims[other] != sizes[other]);
        if let Some(other) = differs {
            return AtenError::invalid(format_args!(
                "Sizes of tensors must match except in dimension {dim}. Expected size {} but got size {} for tensor \
                 number {place} in the list.",
                dims[other], sizes[other]
            ));
        }
        dims[dim] = dims[dim].saturating_add(sizes[dim]);
        parts.push(tensor.clone());
    }
    shape::room(&dims)?;
    Ok(Plain::cat(&parts, dim)?.into())
}

/// Another name of `cat`.
#[farref::remote(python = "torch.ops.aten.concat")]
pub(super) fn concat(tensors: Vec<Input>, dim: Option<i64>) -> Result<Tensor> {
    cat(tensors, dim)
}

/// Tensors of one shape behind each other, in a dimension of its own.
#[farref::remote(python = "torch.ops.aten.stack")]
pub(super) fn stack(tensors: Vec<Input>, dim: Option<i64>) -> Result<Tensor> {
    let Some(first) = tensors.first() else {
        return AtenError::invalid("stack expects a non-empty TensorList");
    };
    let dims = first.tensor.dims().to_vec();
    for (place, input) in tensors.iter().enumerate() {
        if input.tensor.dims() != dims {
            return AtenError::invalid(format_args!(
                "stack expects each tensor to be equal size, but got {dims:?} at entry 0 and {:?} at entry {place}",
                input.tensor.dims()
            ));
        }
    }
    let dim = shape::dimension(dim.unwrap_or(0), dims.len() + 1)?;
    let mut result = dims;
    result.insert(dim, tensors.len());
    shape::room(&result)?;
    let (tensors, _) = converted(tensors)?;
    Ok(Plain::stack(&tensors, dim)?.into())
}

/// All as tensors of one type.
fn converted(tensors: Vec<Input>) -> Result<(Vec<Plain>, DType)> {
    let operands: Vec<Operand> = tensors.into_iter().map(Operand::Tensor).collect();
    let dtype = types::result_as(types::common(&operands)?)?;
    let tensors = operands.iter().map(|operand| operand.converted(dtype));
    Ok((tensors.collect::<Result<_>>()?, dtype))
}

/// What is given back with the elements that it has.
fn same(input: &Input) -> Result<Tensor> {
    types::result_as(input.dtype)?;
    Ok(input.tensor.clone())
}
