//! Random numbers for initial values.

use candle_core::{DType, Device, Shape};

use crate::error::Result;
use crate::tensor::Tensor;

/// A source of random numbers that depends on nothing but its seed: the same on every worker, machine
/// and release. (SplitMix64. Not for secrets.)
///
/// ```
/// use farref_autograd::{candle::DType, nn::Generator};
///
/// let one = Generator::new(7).uniform((2, 3), -1.0, 1.0, DType::F64)?;
/// let other = Generator::new(7).uniform((2, 3), -1.0, 1.0, DType::F64)?;
/// assert_eq!(one.to_vec2::<f64>()?, other.to_vec2::<f64>()?);
/// # Ok::<(), farref_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Generator {
    state: u64,
}

impl Generator {
    /// A source with this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The next number between zero and one, without one.
    pub fn next_f64(&mut self) -> f64 {
        // As many bits as a fraction has.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A tensor of numbers that are evenly distributed between `low` and `high`.
    pub fn uniform(
        &mut self,
        shape: impl Into<Shape>,
        low: f64,
        high: f64,
        dtype: DType,
    ) -> Result<Tensor> {
        let shape = shape.into();
        let numbers: Vec<f64> = (0..shape.elem_count())
            .map(|_| low + (high - low) * self.next_f64())
            .collect();
        let tensor = candle_core::Tensor::from_vec(numbers, shape, &Device::Cpu)?;
        Ok(tensor.to_dtype(dtype)?.into())
    }
}
