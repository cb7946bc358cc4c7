//! Functions that gradients flow through.

use candle_core::{D, DType, Tensor as Plain};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// The exponentials of the last dimension, as shares of their sum.
///
/// ```
/// use farref_autograd::{Tensor, nn::softmax_last_dim};
///
/// let x = Tensor::from_vec(vec![0.0f64, 0.0, 0.0, 0.0], (2, 2))?;
/// let shares = softmax_last_dim(&x)?;
/// assert_eq!(shares.to_vec2::<f64>()?, [[0.5, 0.5], [0.5, 0.5]]);
/// # Ok::<(), farref_autograd::Error>(())
/// ```
pub fn softmax_last_dim(x: &Plain) -> Result<Tensor> {
    precisely(x, |x| {
        let exponentials = from_greatest(x)?.exp()?;
        exponentials.broadcast_div(&exponentials.sum_keepdim(D::Minus1)?)
    })
}

/// The logarithm of [`softmax_last_dim`], without its rounding.
pub fn log_softmax_last_dim(x: &Plain) -> Result<Tensor> {
    precisely(x, |x| {
        let x = from_greatest(x)?;
        x.broadcast_sub(&x.exp()?.sum_keepdim(D::Minus1)?.log()?)
    })
}

/// `x` less its greatest element in the last dimension, which keeps exponentials in range. The result of
/// the functions above does not depend on how much is taken off, so nothing flows through that.
fn from_greatest(x: &Plain) -> candle_core::Result<Plain> {
    x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)
}

/// Normalizes the last dimension to a mean of zero and a variance of one, then scales and shifts it.
pub fn layer_norm(x: &Plain, weight: &Plain, bias: Option<&Plain>, eps: f64) -> Result<Tensor> {
    let normal = precisely(x, |x| {
        let centered = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
        let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
        centered.broadcast_div(&variance.affine(1.0, eps)?.sqrt()?)
    })?;
    let scaled = normal.broadcast_mul(weight)?;
    Ok(match bias {
        Some(bias) => scaled.broadcast_add(bias)?.into(),
        None => scaled.into(),
    })
}

/// Divides the last dimension by the root of the mean of its squares, then scales it.
pub fn rms_norm(x: &Plain, weight: &Plain, eps: f64) -> Result<Tensor> {
    let normal = precisely(x, |x| {
        let size = x.sqr()?.mean_keepdim(D::Minus1)?;
        x.broadcast_div(&size.affine(1.0, eps)?.sqrt()?)
    })?;
    Ok(normal.broadcast_mul(weight)?.into())
}

/// How improbable the right answers are: the mean of the negative logarithms of their shares. `logits`
/// has the shape (n, classes), `targets` has n numbers of classes (integers).
pub fn cross_entropy(logits: impl AsRef<Plain>, targets: impl AsRef<Plain>) -> Result<Tensor> {
    let (logits, targets) = (logits.as_ref(), targets.as_ref());
    let (rows, classes) = logits.dims2()?;
    if targets.dims() != [rows] || !targets.dtype().is_int() {
        return Err(Error::Mismatch {
            expected: format!("{rows} targets that are integers"),
            found: crate::state::describe(targets),
        });
    }
    // To candle, the greatest number of a type is an index of nothing, and gives zero.
    let numbers = targets.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    if let Some(wrong) = numbers
        .iter()
        .find(|&&class| usize::try_from(class).map_or(true, |class| class >= classes))
    {
        return Err(Error::Invalid(format!(
            "target {wrong} is none of the {classes} classes: they are counted from 0"
        )));
    }
    let shares = log_softmax_last_dim(logits)?;
    let targets = targets.detach().unsqueeze(1)?.contiguous()?;
    Ok(shares.gather(&targets, 1)?.mean_all()?.neg()?.into())
}

/// The mean of the squares of the differences.
pub fn mse_loss(x: impl AsRef<Plain>, target: impl AsRef<Plain>) -> Result<Tensor> {
    Ok(x.as_ref().sub(target.as_ref())?.sqr()?.mean_all()?.into())
}

/// Rotates pairs of elements by angles that depend on the position: rotary embedding. `x` has the shape
/// (.., positions, width); elements `i` and `i + width / 2` make a pair. `cos` and `sin` have the shape
/// (at least positions, width / 2).
pub fn rope(x: &Plain, cos: &Plain, sin: &Plain) -> Result<Tensor> {
    let (&[positions, width], true) = (x.dims().last_chunk().unwrap_or(&[0, 1]), x.rank() >= 2)
    else {
        return Err(rope_mismatch("x of shape (.., positions, width)", x));
    };
    if width % 2 != 0 {
        return Err(rope_mismatch("x of an even width", x));
    }
    let half = width / 2;
    for angles in [cos, sin] {
        if !matches!(angles.dims(), &[rows, columns] if rows >= positions && columns == half) {
            let expected = format!("angles of shape ({positions} or more, {half})");
            return Err(rope_mismatch(&expected, angles));
        }
    }
    let cos = cos.narrow(0, 0, positions)?;
    let sin = sin.narrow(0, 0, positions)?;
    let first = x.narrow(D::Minus1, 0, half)?;
    let second = x.narrow(D::Minus1, half, half)?;
    let turned = [
        first
            .broadcast_mul(&cos)?
            .sub(&second.broadcast_mul(&sin)?)?,
        second
            .broadcast_mul(&cos)?
            .add(&first.broadcast_mul(&sin)?)?,
    ];
    Ok(Plain::cat(&turned, D::Minus1)?.into())
}

fn rope_mismatch(expected: &str, found: &Plain) -> Error {
    Error::Mismatch {
        expected: expected.to_owned(),
        found: format!("the shape {:?}", found.dims()),
    }
}

/// Computes in `f32` what comes in half precision or less.
fn precisely(
    x: &Plain,
    compute: impl FnOnce(&Plain) -> candle_core::Result<Plain>,
) -> Result<Tensor> {
    let computed = match x.dtype() {
        DType::F32 | DType::F64 => compute(x)?,
        dtype => compute(&x.to_dtype(DType::F32)?)?.to_dtype(dtype)?,
    };
    Ok(computed.into())
}
