//! Functions that candle has no gradients for, or others than PyTorch (AT-4).

use farref_autograd::candle::{
    self, CpuStorage, CustomOp1, CustomOp2, DType, Layout, Shape, Tensor as Plain,
};

/// The elements of a storage that are one after the other.
fn slice<'a, T>(all: &'a [T], layout: &Layout) -> candle::Result<&'a [T]> {
    let range = layout.contiguous_offsets();
    let slice = range.and_then(|(start, end)| all.get(start..end));
    slice.ok_or_else(|| candle::Error::Msg("elements are not one after the other".to_owned()))
}

fn neither(name: &str) -> candle::Error {
    candle::Error::Msg(format!("{name} is computed in float32 or float64"))
}

/// `1 / (1 + exp(-x))`, also where the exponential is not finite.
struct Sigmoid;

impl CustomOp1 for Sigmoid {
    fn name(&self) -> &'static str {
        "sigmoid"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> candle::Result<(CpuStorage, Shape)> {
        let storage = match x {
            CpuStorage::F32(x) => {
                let x = slice(x, layout)?.iter();
                CpuStorage::F32(x.map(|x| 1.0 / (1.0 + (-x).exp())).collect())
            }
            CpuStorage::F64(x) => {
                let x = slice(x, layout)?.iter();
                CpuStorage::F64(x.map(|x| 1.0 / (1.0 + (-x).exp())).collect())
            }
            _ => return Err(neither(self.name())),
        };
        Ok((storage, layout.shape().clone()))
    }

    fn bwd(&self, _: &Plain, result: &Plain, gradient: &Plain) -> candle::Result<Option<Plain>> {
        let result = result.detach();
        let slope = result.mul(&result.affine(-1.0, 1.0)?)?;
        gradient.mul(&slope).map(Some)
    }
}

/// The first to the power of the second.
struct Power;

impl CustomOp2 for Power {
    fn name(&self) -> &'static str {
        "pow"
    }

    fn cpu_fwd(
        &self,
        base: &CpuStorage,
        base_layout: &Layout,
        exponent: &CpuStorage,
        exponent_layout: &Layout,
    ) -> candle::Result<(CpuStorage, Shape)> {
        let storage = match (base, exponent) {
            (CpuStorage::F32(base), CpuStorage::F32(exponent)) => {
                let base = slice(base, base_layout)?.iter();
                let pairs = base.zip(slice(exponent, exponent_layout)?);
                CpuStorage::F32(pairs.map(|(base, exponent)| base.powf(*exponent)).collect())
            }
            (CpuStorage::F64(base), CpuStorage::F64(exponent)) => {
                let base = slice(base, base_layout)?.iter();
                let pairs = base.zip(slice(exponent, exponent_layout)?);
                CpuStorage::F64(pairs.map(|(base, exponent)| base.powf(*exponent)).collect())
            }
            _ => return Err(neither(self.name())),
        };
        Ok((storage, base_layout.shape().clone()))
    }

    fn bwd(
        &self,
        base: &Plain,
        exponent: &Plain,
        result: &Plain,
        gradient: &Plain,
    ) -> candle::Result<(Option<Plain>, Option<Plain>)> {
        let (tracked, [base, exponent, result]) = (
            (base.track_op(), exponent.track_op()),
            [base, exponent, result].map(Plain::detach),
        );
        let zeros = gradient.zeros_like()?;
        let for_base = |()| {
            let less = exponent.affine(1.0, -1.0)?;
            let slope = exponent.mul(&base.apply_op2_no_bwd(&less, &Self)?)?;
            exponent.eq(0.0)?.where_cond(&zeros, &gradient.mul(&slope)?)
        };
        let for_exponent = |()| {
            let slope = result.mul(&base.log()?)?;
            // Nothing to the power of something is nothing, however the power changes.
            let flat = base.eq(0.0)?.mul(&exponent.ge(0.0)?)?;
            flat.where_cond(&zeros, &gradient.mul(&slope)?)
        };
        let for_base = tracked.0.then_some(()).map(for_base).transpose()?;
        let for_exponent = tracked.1.then_some(()).map(for_exponent).transpose()?;
        Ok((for_base, for_exponent))
    }
}

/// `1 / (1 + exp(-x))`.
pub(super) fn sigmoid(x: &Plain) -> candle::Result<Plain> {
    match x.elem_count() {
        0 => Ok(x.clone()),
        _ => x.contiguous()?.apply_op1(Sigmoid),
    }
}

/// `base ** exponent`. Both have one shape.
pub(super) fn power(base: &Plain, exponent: &Plain) -> candle::Result<Plain> {
    match base.elem_count() {
        0 => Ok(base.clone()),
        _ => base.contiguous()?.apply_op2(&exponent.contiguous()?, Power),
    }
}

/// What is above zero, and zero. The slope at zero is zero, where candle's own has one.
pub(super) fn relu(x: &Plain) -> candle::Result<Plain> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let zeros = x.detach().zeros_like()?;
    // What is no number stays so.
    x.detach().le(0.0)?.where_cond(&zeros, x)
}

/// `value`, which changes in steps with `source`: gradients are zero.
pub(super) fn flat(value: &Plain, source: &Plain) -> candle::Result<Plain> {
    if !source.track_op() || value.elem_count() == 0 {
        return Ok(value.detach());
    }
    let yes = Plain::ones(value.dims(), DType::U8, value.device())?;
    yes.where_cond(&value.detach(), source)
}
