//! Operators of two: element by element, with broadcasting.

use farref_autograd::Tensor;
use farref_autograd::candle::{self, DType, Device, Tensor as Plain};

use super::arguments::{Number, Operand};
use super::{AtenError, Result, shape, smooth, types, whole};
use crate::rpc::tensors::Dtype;

/// `input + alpha * other`.
#[farref::remote(python = "torch.ops.aten.add")]
pub(super) fn add(input: Operand, other: Operand, alpha: Option<Number>) -> Result<Tensor> {
    sum(&input, &other, alpha, false)
}

/// `input - alpha * other`.
#[farref::remote(python = "torch.ops.aten.sub")]
pub(super) fn sub(input: Operand, other: Operand, alpha: Option<Number>) -> Result<Tensor> {
    if input.is_bool() || other.is_bool() {
        return AtenError::invalid(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, \
             use the `~` or `logical_not()` operator instead.",
        );
    }
    sum(&input, &other, alpha, true)
}

/// Another name of `sub`.
#[farref::remote(python = "torch.ops.aten.subtract")]
pub(super) fn subtract(input: Operand, other: Operand, alpha: Option<Number>) -> Result<Tensor> {
    sub(input, other, alpha)
}

/// `input * other`.
#[farref::remote(python = "torch.ops.aten.mul")]
pub(super) fn mul(input: Operand, other: Operand) -> Result<Tensor> {
    let dtype = types::common([&input, &other])?;
    let product = match types::is_float(dtype) {
        true => floats(&input, &other, dtype, Plain::broadcast_mul)?,
        false => integers(&input, &other, dtype, |a, b| Ok(a.wrapping_mul(b)))?,
    };
    Ok(product.into())
}

/// Another name of `mul`.
#[farref::remote(python = "torch.ops.aten.multiply")]
pub(super) fn multiply(input: Operand, other: Operand) -> Result<Tensor> {
    mul(input, other)
}

/// `input / other`, rounded if that is asked for.
#[farref::remote(python = "torch.ops.aten.div")]
pub(super) fn div(input: Operand, other: Operand, rounding_mode: Option<String>) -> Result<Tensor> {
    let dtype = types::common([&input, &other])?;
    let Some(mode) = rounding_mode else {
        let quotient = floats(&input, &other, types::floating(dtype), Plain::broadcast_div)?;
        return Ok(quotient.into());
    };
    let down = match &*mode {
        "floor" => true,
        "trunc" => false,
        _ => {
            return AtenError::invalid(format_args!(
                "div expected rounding_mode to be one of None, 'trunc', or 'floor' but found '{mode}'"
            ));
        }
    };
    let quotient = match types::is_float(dtype) {
        true => floats(&input, &other, dtype, |a, b| {
            let exact = a.broadcast_div(b)?;
            smooth::flat(&rounded(a, b, down)?, &exact)
        })?,
        false => integers(&input, &other, dtype, |a, b| whole::quotient(a, b, down))?,
    };
    Ok(quotient.into())
}

/// Another name of `div`.
#[farref::remote(python = "torch.ops.aten.divide")]
pub(super) fn divide(
    input: Operand,
    other: Operand,
    rounding_mode: Option<String>,
) -> Result<Tensor> {
    div(input, other, rounding_mode)
}

/// Another name of `div`, without rounding.
#[farref::remote(python = "torch.ops.aten.true_divide")]
pub(super) fn true_divide(input: Operand, other: Operand) -> Result<Tensor> {
    div(input, other, None)
}

/// `input ** exponent`.
#[farref::remote(python = "torch.ops.aten.pow")]
pub(super) fn pow(input: Operand, exponent: Operand) -> Result<Tensor> {
    let dtype = types::common([&input, &exponent])?;
    if types::is_float(dtype) {
        let known = match exponent {
            Operand::Number(number) => Some(number.to_f64()),
            Operand::Tensor(_) => None,
        };
        let power = match known {
            Some(2.0) => floats(&input, &exponent, dtype, |base, _| base.sqr())?,
            Some(0.5) => floats(&input, &exponent, dtype, |base, _| base.sqrt())?,
            _ => floats(&input, &exponent, dtype, |base, exponent| {
                let dims = base
                    .shape()
                    .broadcast_shape_binary_op(exponent.shape(), "pow")?;
                smooth::power(&base.broadcast_as(&dims)?, &exponent.broadcast_as(&dims)?)
            })?,
        };
        return Ok(power.into());
    }
    if let Operand::Number(number) = exponent
        && number.to_i64() < 0
    {
        return AtenError::invalid("Integers to negative integer powers are not allowed.");
    }
    let power = integers(&input, &exponent, dtype, |a, b| Ok(whole::power(a, b)))?;
    Ok(power.into())
}

/// `a + alpha * b`, or `a - alpha * b`.
fn sum(a: &Operand, b: &Operand, alpha: Option<Number>, minus: bool) -> Result<Tensor> {
    let dtype = types::common([a, b])?;
    let alpha = alpha.unwrap_or(Number::Int(1));
    if matches!(alpha, Number::Bool(_)) && dtype != Dtype::Bool {
        return AtenError::invalid("Boolean alpha only supported for Boolean results.");
    }
    if types::is_float(dtype) {
        let sum = floats(a, b, dtype, |a, b| {
            let scaled = match alpha.is_one() {
                true => b.clone(),
                false => b.affine(alpha.to_f64(), 0.0)?,
            };
            match minus {
                true => a.broadcast_sub(&scaled),
                false => a.broadcast_add(&scaled),
            }
        })?;
        return Ok(sum.into());
    }
    if matches!(alpha, Number::Float(_)) {
        return AtenError::invalid(
            "For integral input tensors, argument alpha must not be a floating point number.",
        );
    }
    let alpha = match minus {
        true => alpha.to_i64().wrapping_neg(),
        false => alpha.to_i64(),
    };
    let sum = integers(
        a,
        b,
        dtype,
        |a, b| Ok(a.wrapping_add(alpha.wrapping_mul(b))),
    )?;
    Ok(sum.into())
}

/// Checks what both operators of integers and of floating point numbers want.
fn check(a: &Operand, b: &Operand) -> Result<()> {
    if a.tensor().is_none() && b.tensor().is_none() {
        return AtenError::unsupported("is for tensors: at least one operand is to be one");
    }
    shape::room(&shape::broadcast(a.dims(), b.dims())?)?;
    Ok(())
}

/// An operator of floating point numbers.
fn floats(
    a: &Operand,
    b: &Operand,
    dtype: Dtype,
    operator: impl FnOnce(&Plain, &Plain) -> candle::Result<Plain>,
) -> Result<Plain> {
    check(a, b)?;
    let dtype = types::result_as(dtype)?;
    let computed = types::computed_as(dtype);
    let result = operator(&a.converted(computed)?, &b.converted(computed)?)?;
    Ok(result.to_dtype(dtype)?)
}

/// An operator of integers.
fn integers(
    a: &Operand,
    b: &Operand,
    dtype: Dtype,
    operator: impl Fn(i64, i64) -> Result<i64>,
) -> Result<Plain> {
    check(a, b)?;
    let dtype = types::result_as(dtype)?;
    let (a, b) = (a.converted(DType::I64)?, b.converted(DType::I64)?);
    whole::zip(&a, &b, dtype, operator)
}

/// A quotient rounded down the way Python does it: the rest has the sign of the divisor.
macro_rules! floored {
    ($name:ident, $float:ty) => {
        fn $name(a: $float, b: $float) -> $float {
            if b == 0.0 {
                return a / b;
            }
            let rest = a % b;
            let mut quotient = (a - rest) / b;
            if rest != 0.0 && (b < 0.0) != (rest < 0.0) {
                quotient -= 1.0;
            }
            if quotient == 0.0 {
                return <$float>::copysign(0.0, a / b);
            }
            let floor = quotient.floor();
            match quotient - floor > 0.5 {
                true => floor + 1.0,
                false => floor,
            }
        }
    };
}

floored!(floored_f32, f32);
floored!(floored_f64, f64);

/// Quotients without their fractions.
fn rounded(a: &Plain, b: &Plain, down: bool) -> candle::Result<Plain> {
    fn zip<T: candle::WithDType>(
        a: &Plain,
        b: &Plain,
        quotient: impl Fn(T, T) -> T,
    ) -> candle::Result<Plain> {
        let dims = a.shape().broadcast_shape_binary_op(b.shape(), "div")?;
        let elements = |tensor: &Plain| tensor.broadcast_as(&dims)?.flatten_all()?.to_vec1::<T>();
        let pairs = elements(a)?.into_iter().zip(elements(b)?);
        let quotients: Vec<T> = pairs.map(|(a, b)| quotient(a, b)).collect();
        Plain::from_vec(quotients, &dims, &Device::Cpu)
    }

    match (a.dtype(), down) {
        (DType::F32, true) => zip(a, b, floored_f32),
        (DType::F32, false) => zip(a, b, |a: f32, b: f32| (a / b).trunc()),
        (_, true) => zip(a, b, floored_f64),
        (_, false) => zip(a, b, |a: f64, b: f64| (a / b).trunc()),
    }
}
