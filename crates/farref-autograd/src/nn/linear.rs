//! A linear layer.

use candle_core::DType;

use super::generator::Generator;
use crate::error::{Error, Result};
use crate::module::Module;
use crate::parameter::Parameter;
use crate::tensor::Tensor;

/// `x W^T + b`, over the last dimension of `x`.
///
/// ```
/// use farref_autograd::candle::DType;
/// use farref_autograd::nn::{Generator, Linear};
/// use farref_autograd::{Module, Tensor};
///
/// let layer = Linear::new(3, 2, DType::F32, &mut Generator::new(0))?;
/// let x = Tensor::from_vec(vec![1.0f32; 12], (4, 3))?;
/// assert_eq!(layer.forward(&x)?.dims(), [4, 2]);
/// # Ok::<(), farref_autograd::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` numbers, with a bias, that begins as PyTorch's does: evenly
    /// distributed up to `1 / sqrt(inputs)`.
    pub fn new(
        inputs: usize,
        outputs: usize,
        dtype: DType,
        generator: &mut Generator,
    ) -> Result<Self> {
        let mut layer = Self::without_bias(inputs, outputs, dtype, generator)?;
        let bound = bound(inputs);
        let bias = generator.uniform(outputs, -bound, bound, dtype)?;
        layer.bias = Some(Parameter::new(&bias)?);
        Ok(layer)
    }

    /// The same without a bias.
    pub fn without_bias(
        inputs: usize,
        outputs: usize,
        dtype: DType,
        generator: &mut Generator,
    ) -> Result<Self> {
        let bound = bound(inputs);
        let weight = generator.uniform((outputs, inputs), -bound, bound, dtype)?;
        let weight = Parameter::new(&weight)?;
        Ok(Self { weight, bias: None })
    }

    /// A layer of these parameters: the weight has the shape (outputs, inputs), the bias (outputs).
    pub fn from_parameters(weight: Parameter, bias: Option<Parameter>) -> Result<Self> {
        let dims = weight.value().dims().to_vec();
        let biases = bias.as_ref().map(|bias| bias.value().dims().to_vec());
        let fits = match (&dims[..], biases.as_deref()) {
            ([outputs, _], Some([biases])) => outputs == biases,
            ([_, _], None) => true,
            _ => false,
        };
        if !fits {
            return Err(Error::Mismatch {
                expected: "a weight of shape [outputs, inputs] and a bias of shape [outputs]"
                    .to_owned(),
                found: format!("{dims:?} and {biases:?}"),
            });
        }
        Ok(Self { weight, bias })
    }

    /// Its weight.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// Its bias, if it has one.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

/// Kaiming's uniform distribution with a gain of `sqrt(1/3)`, which is what PyTorch's layers have.
fn bound(inputs: usize) -> f64 {
    if inputs == 0 {
        return 0.0;
    }
    1.0 / (inputs as f64).sqrt()
}

impl Module for Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let weight = self.weight.tensor();
        let (outputs, inputs) = weight.dims2()?;
        let Some((&last, leading)) = input.dims().split_last() else {
            return Err(Error::Mismatch {
                expected: format!("an input with {inputs} numbers in its last dimension"),
                found: "a scalar".to_owned(),
            });
        };
        if last != inputs {
            return Err(Error::Mismatch {
                expected: format!("an input with {inputs} numbers in its last dimension"),
                found: format!("the shape {:?}", input.dims()),
            });
        }
        let rows: usize = leading.iter().product();
        let mut output = input.reshape((rows, inputs))?.matmul(&weight.t()?)?;
        if let Some(bias) = &self.bias {
            output = output.broadcast_add(&bias.tensor())?;
        }
        let mut shape = leading.to_vec();
        shape.push(outputs);
        Ok(output.reshape(shape)?.into())
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        let mut parameters = vec![("weight".to_owned(), self.weight.clone())];
        if let Some(bias) = &self.bias {
            parameters.push(("bias".to_owned(), bias.clone()));
        }
        parameters
    }
}
