//! New tensors.

use farref_autograd::Tensor;
use farref_autograd::candle::{DType, Device, Tensor as Plain};

use super::arguments::{Cpu, Ignored, Input, Number, Sizes, Strided, Type};
use super::{AtenError, Result, shape, types};
use crate::rpc::tensors::Dtype;

/// Zeros.
#[farref::remote(python = "torch.ops.aten.zeros")]
pub(super) fn zeros(
    size: Sizes,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(Type(Dtype::Float));
    full(
        size,
        Number::Int(0),
        Some(dtype),
        layout,
        device,
        pin_memory,
    )
}

/// Ones.
#[farref::remote(python = "torch.ops.aten.ones")]
pub(super) fn ones(
    size: Sizes,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
) -> Result<Tensor> {
    let dtype = dtype.unwrap_or(Type(Dtype::Float));
    full(
        size,
        Number::Int(1),
        Some(dtype),
        layout,
        device,
        pin_memory,
    )
}

/// The same number everywhere. It says the type, if nothing else does.
#[farref::remote(python = "torch.ops.aten.full")]
pub(super) fn full(
    size: Sizes,
    fill_value: Number,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
) -> Result<Tensor> {
    let dims = shape::sizes(&size.0)?;
    let Type(dtype) = dtype.unwrap_or_else(|| Type(types::of_number(fill_value)));
    filled(&dims, fill_value, dtype, (layout, device, pin_memory))
}

/// Zeros in the shape of another tensor.
#[farref::remote(python = "torch.ops.aten.zeros_like")]
pub(super) fn zeros_like(
    input: Input,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
    memory_format: Option<Ignored>,
) -> Result<Tensor> {
    let zero = Number::Int(0);
    full_like(
        input,
        zero,
        dtype,
        layout,
        device,
        pin_memory,
        memory_format,
    )
}

/// Ones in the shape of another tensor.
#[farref::remote(python = "torch.ops.aten.ones_like")]
pub(super) fn ones_like(
    input: Input,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
    memory_format: Option<Ignored>,
) -> Result<Tensor> {
    let one = Number::Int(1);
    full_like(input, one, dtype, layout, device, pin_memory, memory_format)
}

/// The same number everywhere, in the shape and type of another tensor.
#[farref::remote(python = "torch.ops.aten.full_like")]
pub(super) fn full_like(
    input: Input,
    fill_value: Number,
    dtype: Option<Type>,
    layout: Option<Strided>,
    device: Option<Cpu>,
    pin_memory: Option<bool>,
    memory_format: Option<Ignored>,
) -> Result<Tensor> {
    let _ = memory_format;
    let Type(dtype) = dtype.unwrap_or(Type(input.dtype));
    let dims = input.tensor.dims();
    filled(dims, fill_value, dtype, (layout, device, pin_memory))
}

/// Layout and device were looked at when they were read.
type Where = (Option<Strided>, Option<Cpu>, Option<bool>);

fn filled(dims: &[usize], value: Number, dtype: Dtype, place: Where) -> Result<Tensor> {
    let (_, _, pinned) = place;
    if pinned == Some(true) {
        return AtenError::unsupported("has no pinned memory");
    }
    shape::room(dims)?;
    let element = types::result_as(dtype)?;
    check(value, dtype, element)?;
    let tensor = match element {
        DType::F64 => Plain::full(value.to_f64(), dims, &Device::Cpu)?,
        DType::F32 => Plain::full(value.to_f64() as f32, dims, &Device::Cpu)?,
        DType::I64 => Plain::full(value.to_i64(), dims, &Device::Cpu)?,
        _ => value.tensor(element)?.broadcast_as(dims)?.contiguous()?,
    };
    Ok(tensor.into())
}

/// Whether a number fits into a type. Unsigned ones take negative numbers of their size.
fn check(value: Number, dtype: Dtype, element: DType) -> Result<()> {
    let (least, most) = match element {
        DType::U8 => (-255.0, 255.0),
        DType::U32 => (-f64::from(u32::MAX), f64::from(u32::MAX)),
        DType::I16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        DType::I32 => (f64::from(i32::MIN), f64::from(i32::MAX)),
        // The greatest of these is no `f64`; the next below is.
        DType::I64 => (i64::MIN as f64, (i64::MAX - 1023) as f64),
        DType::F16 => (-65504.0, 65504.0),
        DType::BF16 | DType::F32 => (f64::from(f32::MIN), f64::from(f32::MAX)),
        _ => (f64::MIN, f64::MAX),
    };
    let fits = match value {
        Number::Int(_) | Number::Bool(_) if element == DType::I64 => true,
        Number::Float(value) if element.is_float() && !value.is_finite() => true,
        _ => (least..=most).contains(&value.to_f64()),
    };
    if fits {
        return Ok(());
    }
    AtenError::invalid(format_args!(
        "value cannot be converted to type {} without overflow",
        types::spoken(dtype)
    ))
}
