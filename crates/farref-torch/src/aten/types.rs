//! Which type a result has (AT-1), and tensors of that type.

use farref_autograd::candle::{DType, Device, Tensor as Plain};

use super::arguments::{Input, Number, Operand};
use super::{AtenError, Result};
use crate::rpc::tensors::Dtype;

/// candle's type for the elements of an argument.
fn held_as(dtype: Dtype) -> Result<DType> {
    Ok(match dtype {
        Dtype::Byte | Dtype::Bool => DType::U8,
        Dtype::UInt32 => DType::U32,
        Dtype::Short => DType::I16,
        Dtype::Int => DType::I32,
        Dtype::Long => DType::I64,
        Dtype::Half => DType::F16,
        Dtype::BFloat16 => DType::BF16,
        Dtype::Float => DType::F32,
        Dtype::Double => DType::F64,
        other => {
            return AtenError::unsupported(format_args!("does not compute with torch.{other}"));
        }
    })
}

/// candle's type for the elements of a result.
pub(super) fn result_as(dtype: Dtype) -> Result<DType> {
    match dtype {
        Dtype::Bool => AtenError::unsupported(
            "has no tensors of torch.bool to return (uint8 would do: convert the arguments, or ask for another \
             dtype)",
        ),
        other => held_as(other),
    }
}

pub(super) fn is_float(dtype: Dtype) -> bool {
    matches!(
        dtype,
        Dtype::Half | Dtype::BFloat16 | Dtype::Float | Dtype::Double
    )
}

/// The type that floating point elements are computed in.
pub(super) fn computed_as(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// What PyTorch's errors call a type.
pub(super) fn spoken(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::Byte => "unsigned char",
        Dtype::Short => "short",
        Dtype::Int => "int",
        Dtype::Long => "long int",
        Dtype::Half => "c10::Half",
        Dtype::BFloat16 => "c10::BFloat16",
        Dtype::Float => "float",
        Dtype::Double => "double",
        other => other.python_name(),
    }
}

/// The type that holds what both hold: `torch.promote_types`.
pub(super) fn promote(one: Dtype, other: Dtype) -> Result<Dtype> {
    /// Of integers and of floating point numbers, the higher one wins.
    fn rank(dtype: Dtype) -> Option<u8> {
        Some(match dtype {
            Dtype::Bool => 0,
            Dtype::Byte => 1,
            Dtype::Short => 2,
            Dtype::Int => 3,
            Dtype::Long => 4,
            Dtype::UInt32 => 5,
            Dtype::Half => 6,
            Dtype::BFloat16 => 7,
            Dtype::Float => 8,
            Dtype::Double => 9,
            _ => return None,
        })
    }
    match (one, other) {
        (Dtype::Half, Dtype::BFloat16) | (Dtype::BFloat16, Dtype::Half) => return Ok(Dtype::Float),
        _ if one == other => return Ok(one),
        _ => {}
    }
    let (Some(low), Some(high)) = (rank(one), rank(other)) else {
        let unknown = if rank(one).is_none() { one } else { other };
        return held_as(unknown).map(|_| unknown);
    };
    let (low, high) = if low < high {
        (one, other)
    } else {
        (other, one)
    };
    if high == Dtype::UInt32 && low != Dtype::Bool {
        return AtenError::invalid(format_args!(
            "Promotion for uint16, uint32, uint64 types is not supported, attempted to promote {low} and {high}"
        ));
    }
    Ok(high)
}

/// The type of a result of these: `torch.result_type`.
pub(super) fn common<'a>(operands: impl IntoIterator<Item = &'a Operand>) -> Result<Dtype> {
    /// Tensors with dimensions, tensors without, numbers: what goes first counts most.
    #[derive(Default)]
    struct Kinds([Option<Dtype>; 3]);

    impl Kinds {
        fn take(&mut self, kind: usize, dtype: Dtype) -> Result<()> {
            let held = &mut self.0[kind];
            *held = Some(match *held {
                Some(held) => promote(held, dtype)?,
                None => dtype,
            });
            Ok(())
        }
    }

    fn combine(first: Option<Dtype>, second: Option<Dtype>) -> Result<Option<Dtype>> {
        Ok(match (first, second) {
            (Some(first), Some(second)) if !is_float(first) => {
                match first == Dtype::Bool || is_float(second) {
                    true => Some(promote(first, second)?),
                    false => Some(first),
                }
            }
            (first, second) => first.or(second),
        })
    }

    let mut kinds = Kinds::default();
    for operand in operands {
        match operand {
            Operand::Tensor(input) => {
                kinds.take(usize::from(input.tensor.rank() == 0), input.dtype)?
            }
            Operand::Number(number) => kinds.take(2, of_number(*number))?,
        }
    }
    let [with_dims, without, numbers] = kinds.0;
    match combine(with_dims, combine(without, numbers)?)? {
        Some(dtype) => Ok(dtype),
        None => AtenError::invalid("an operator has at least one operand"),
    }
}

/// The type that a number has by itself.
pub(super) fn of_number(number: Number) -> Dtype {
    match number {
        Number::Bool(_) => Dtype::Bool,
        Number::Int(_) => Dtype::Long,
        Number::Float(_) => Dtype::Float,
    }
}

/// What functions such as `exp` return: integers become `float32`.
pub(super) fn floating(dtype: Dtype) -> Dtype {
    match is_float(dtype) {
        true => dtype,
        false => Dtype::Float,
    }
}

impl Input {
    /// Its elements as those of another type.
    pub(super) fn converted(&self, to: DType) -> Result<Plain> {
        Ok(self.tensor.to_dtype(to)?)
    }

    /// Its elements as integers.
    pub(super) fn integers(&self) -> Result<Plain> {
        self.converted(DType::I64)
    }
}

impl Operand {
    /// A tensor of that type; a number has no dimensions.
    pub(super) fn converted(&self, to: DType) -> Result<Plain> {
        match self {
            Self::Tensor(input) => input.converted(to),
            Self::Number(number) => number.tensor(to),
        }
    }
}

impl Number {
    /// A tensor of no dimensions.
    pub(super) fn tensor(self, dtype: DType) -> Result<Plain> {
        let cpu = &Device::Cpu;
        let tensor = match (dtype, self) {
            (DType::F32, Self::Int(value)) => Plain::new(value as f32, cpu)?,
            (DType::F32 | DType::F64 | DType::F16 | DType::BF16, _) => {
                Plain::new(self.to_f64(), cpu)?
            }
            _ => Plain::new(self.to_i64(), cpu)?,
        };
        Ok(tensor.to_dtype(dtype)?)
    }
}
