//! Arithmetic with integers, which wraps around (AT-2): candle's does not in programs that check for overflows.
//!
//! All types of integers are computed as `i64`. What the narrower ones lose at the end, they would have lost on
//! the way.

use farref_autograd::candle::{DType, Device, Tensor as Plain};

use super::{AtenError, Result, shape};

/// The elements of integers, as if they had that shape.
fn elements(integers: &Plain, dims: &[usize]) -> Result<Vec<i64>> {
    shape::room(dims)?;
    if dims.contains(&0) {
        return Ok(Vec::new());
    }
    Ok(integers.broadcast_as(dims)?.flatten_all()?.to_vec1()?)
}

fn tensor(elements: Vec<i64>, dims: &[usize], dtype: DType) -> Result<Plain> {
    Ok(Plain::from_vec(elements, dims, &Device::Cpu)?.to_dtype(dtype)?)
}

/// A function of each element.
pub(super) fn map(integers: &Plain, dtype: DType, function: impl Fn(i64) -> i64) -> Result<Plain> {
    let all = elements(integers, integers.dims())?;
    let all = all.into_iter().map(function).collect();
    tensor(all, integers.dims(), dtype)
}

/// A function of elements of two.
pub(super) fn zip(
    a: &Plain,
    b: &Plain,
    dtype: DType,
    function: impl Fn(i64, i64) -> Result<i64>,
) -> Result<Plain> {
    let dims = shape::broadcast(a.dims(), b.dims())?;
    let (a, b) = (elements(a, &dims)?, elements(b, &dims)?);
    let both = a.into_iter().zip(b).map(|(a, b)| function(a, b));
    tensor(both.collect::<Result<_>>()?, &dims, dtype)
}

/// A power. To a negative one, only 1 and -1 have integers.
pub(super) fn power(base: i64, exponent: i64) -> i64 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 if exponent % 2 == 0 => 1,
            -1 => -1,
            _ => 0,
        };
    }
    let (mut base, mut exponent, mut power) = (base, exponent, 1_i64);
    while exponent > 0 {
        if exponent & 1 == 1 {
            power = power.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    power
}

/// A quotient without its fraction.
pub(super) fn quotient(a: i64, b: i64, down: bool) -> Result<i64> {
    if b == 0 {
        return AtenError::invalid("ZeroDivisionError");
    }
    let quotient = a.wrapping_div(b);
    let rounded_up = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
    Ok(match down && rounded_up {
        true => quotient.wrapping_sub(1),
        false => quotient,
    })
}

/// Sums over the last so many elements each.
pub(super) fn sums(integers: &Plain, each: usize, dims: &[usize], dtype: DType) -> Result<Plain> {
    let count = shape::room(dims)?;
    let all = elements(integers, integers.dims())?;
    let sum = |items: &[i64]| {
        items
            .iter()
            .fold(0_i64, |sum, item| sum.wrapping_add(*item))
    };
    let sums = match each {
        0 => vec![0; count],
        each => all.chunks(each).map(sum).collect(),
    };
    tensor(sums, dims, dtype)
}

/// Products of matrices: `a` is (batches, rows, inner), `b` is (batches, inner, columns).
pub(super) fn products(a: &Plain, b: &Plain, dtype: DType) -> Result<Plain> {
    let ((batches, rows, inner), (_, _, columns)) = (a.dims3()?, b.dims3()?);
    let dims = [batches, rows, columns];
    let mut products = vec![0_i64; shape::room(&dims)?];
    let (a, b) = (elements(a, a.dims())?, elements(b, b.dims())?);
    for (place, row) in products.chunks_mut(columns.max(1)).enumerate() {
        let batch = place / rows.max(1);
        for middle in 0..inner {
            let factor = a[place * inner + middle];
            let others = &b[(batch * inner + middle) * columns..][..columns];
            for (sum, other) in row.iter_mut().zip(others) {
                *sum = sum.wrapping_add(factor.wrapping_mul(*other));
            }
        }
    }
    tensor(products, &dims, dtype)
}
