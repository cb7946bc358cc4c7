//! Products of matrices.

use farref_autograd::Tensor;
use farref_autograd::candle::{DType, Tensor as Plain};

use super::arguments::Input;
use super::{AtenError, Result, shape, types, whole};

/// The product of vectors, matrices, or many matrices at once.
#[farref::remote(python = "torch.ops.aten.matmul")]
pub(super) fn matmul(input: Input, other: Input) -> Result<Tensor> {
    let (a, b) = (input.tensor.dims(), other.tensor.dims());
    if a.is_empty() || b.is_empty() {
        return AtenError::invalid(format_args!(
            "both arguments to matmul need to be at least 1D, but they are {}D and {}D",
            a.len(),
            b.len()
        ));
    }
    product(&input, &other)
}

/// The product of two matrices.
#[farref::remote(python = "torch.ops.aten.mm")]
pub(super) fn mm(input: Input, mat2: Input) -> Result<Tensor> {
    for (name, matrix) in [("self", &input), ("mat2", &mat2)] {
        let rank = matrix.tensor.rank();
        if rank != 2 {
            return AtenError::invalid(format_args!(
                "mm: {name} must be a matrix, got {rank}-D tensor"
            ));
        }
    }
    product(&input, &mat2)
}

/// The products of as many matrices each.
#[farref::remote(python = "torch.ops.aten.bmm")]
pub(super) fn bmm(input: Input, mat2: Input) -> Result<Tensor> {
    for (name, batch) in [("batch1", &input), ("batch2", &mat2)] {
        if batch.tensor.rank() != 3 {
            return AtenError::invalid(format_args!("{name} must be a 3D tensor"));
        }
    }
    let (a, b) = (input.tensor.dims(), mat2.tensor.dims());
    if a[0] != b[0] || a[2] != b[1] {
        return AtenError::invalid(format_args!(
            "Expected size for first two dimensions of batch2 tensor to be: [{}, {}] but got: [{}, {}].",
            a[0], a[2], b[0], b[1]
        ));
    }
    product(&input, &mat2)
}

/// `input @ weight.t() + bias`.
#[farref::remote(python = "torch.ops.aten.linear")]
pub(super) fn linear(input: Input, weight: Input, bias: Option<Input>) -> Result<Tensor> {
    let rank = weight.tensor.rank();
    if !(1..=2).contains(&rank) {
        return AtenError::invalid(format_args!(
            "linear: weight must be a matrix, got {rank}-D tensor"
        ));
    }
    let turned = match rank {
        2 => weight.tensor.t()?.into(),
        _ => weight.tensor.clone(),
    };
    let weight = Input {
        tensor: turned,
        dtype: weight.dtype,
    };
    if let Some(bias) = &bias {
        same_types(&input, bias)?;
    }
    let dtype = input.dtype;
    let product = matmul(input, weight)?;
    let Some(bias) = bias else {
        return Ok(product);
    };
    let dims = shape::broadcast(product.dims(), bias.tensor.dims())?;
    if dims != product.dims() {
        return AtenError::invalid(format_args!(
            "The expanded size of the bias {:?} must match the size of the product {:?}",
            bias.tensor.dims(),
            product.dims()
        ));
    }
    let result = types::result_as(dtype)?;
    if !result.is_float() {
        let (product, bias) = (product.to_dtype(DType::I64)?, bias.integers()?);
        let sum = whole::zip(&product, &bias, result, |a, b| Ok(a.wrapping_add(b)))?;
        return Ok(sum.into());
    }
    let computed = types::computed_as(result);
    let sum = product
        .to_dtype(computed)?
        .broadcast_add(&bias.converted(computed)?)?;
    Ok(sum.to_dtype(result)?.into())
}

fn same_types(a: &Input, b: &Input) -> Result<()> {
    if a.dtype == b.dtype {
        return Ok(());
    }
    AtenError::invalid(format_args!(
        "expected m1 and m2 to have the same dtype, but got: {} != {}",
        types::spoken(a.dtype),
        types::spoken(b.dtype)
    ))
}

/// The product of two of at least one dimension. A vector is a matrix of one row on the left, of one column on the
/// right, and that dimension is not in the result.
fn product(a: &Input, b: &Input) -> Result<Tensor> {
    same_types(a, b)?;
    let dtype = types::result_as(a.dtype)?;
    let (left, right) = (a.tensor.rank() == 1, b.tensor.rank() == 1);
    let mut a_dims = a.tensor.dims().to_vec();
    let mut b_dims = b.tensor.dims().to_vec();
    if left {
        a_dims.insert(0, 1);
    }
    if right {
        b_dims.push(1);
    }
    let (a_batch, &[rows, inner]) = split(&a_dims)?;
    let (b_batch, &[b_inner, columns]) = split(&b_dims)?;
    if inner != b_inner {
        return AtenError::invalid(format_args!(
            "size mismatch: mat1 and mat2 shapes cannot be multiplied ({rows}x{inner} and {b_inner}x{columns})"
        ));
    }
    let batch = shape::broadcast(a_batch, b_batch)?;
    let with = |sizes: [usize; 2]| [&batch[..], &sizes].concat();
    for dims in [
        with([rows, inner]),
        with([inner, columns]),
        with([rows, columns]),
    ] {
        shape::room(&dims)?;
    }
    let mut result = batch.clone();
    if !left {
        result.push(rows);
    }
    if !right {
        result.push(columns);
    }
    if dtype.is_float() {
        let computed = types::computed_as(dtype);
        let a = a.converted(computed)?.reshape(a_dims)?;
        let b = match right {
            true => b.converted(computed)?.reshape(b_dims)?,
            // As it is: a matrix that was transposed need not be copied.
            false => b.converted(computed)?,
        };
        let product = a.broadcast_matmul(&b)?;
        return Ok(product.reshape(result)?.to_dtype(dtype)?.into());
    }
    let count = batch.iter().product::<usize>();
    let as_batch = |input: &Input, dims: &[usize], sizes: [usize; 2]| -> Result<Plain> {
        let matrices = input.integers()?.reshape(dims)?.broadcast_as(with(sizes))?;
        Ok(matrices.reshape((count, sizes[0], sizes[1]))?)
    };
    let a = as_batch(a, &a_dims, [rows, inner])?;
    let b = as_batch(b, &b_dims, [inner, columns])?;
    Ok(whole::products(&a, &b, dtype)?.reshape(result)?.into())
}

fn split(dims: &[usize]) -> Result<(&[usize], &[usize; 2])> {
    match dims.split_last_chunk() {
        Some(parts) => Ok(parts),
        None => AtenError::invalid("a matrix has two dimensions"),
    }
}
