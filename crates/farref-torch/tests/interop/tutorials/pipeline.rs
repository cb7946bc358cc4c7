//! Either half of the model in `pipeline.py`: slices come as references, from the driver or from the other half.

use farref::RRef;
use farref_autograd::nn::Linear;
use farref_autograd::{Module, Parameter, Tensor};

use super::{Result, linear, parameters, references};

const FEATURES: usize = 6;
const HIDDEN: usize = 10;
const CLASSES: usize = 3;

pub(crate) struct FirstHalf {
    layers: [Linear; 2],
    parameters: [Parameter; 4],
}

#[farref::remote(python = "tutorials.pipeline.FirstHalf")]
impl FirstHalf {
    pub(crate) fn new(device: String, hidden: Option<usize>) -> Result<Self> {
        in_main_memory(&device)?;
        let hidden = hidden.unwrap_or(HIDDEN);
        let shapes: [&[usize]; 4] = [&[hidden, FEATURES], &[hidden], &[hidden, hidden], &[hidden]];
        let parameters = parameters(shapes, 6)?;
        let [weight, bias, second_weight, second_bias] = &parameters;
        let layers = [linear(weight, bias)?, linear(second_weight, second_bias)?];
        Ok(Self { layers, parameters })
    }

    pub(crate) async fn forward(&self, x_rref: RRef<Tensor>) -> Result<Tensor> {
        let x = x_rref.to_here().await?;
        let hidden = self.layers[0].forward(&x)?.tanh()?;
        Ok(self.layers[1].forward(&hidden.into())?)
    }

    pub(crate) async fn parameter_rrefs(&self) -> Result<Vec<RRef<Parameter>>> {
        references(&self.parameters)
    }
}

pub(crate) struct SecondHalf {
    layer: Linear,
    parameters: [Parameter; 2],
}

#[farref::remote(python = "tutorials.pipeline.SecondHalf")]
impl SecondHalf {
    pub(crate) fn new(device: String, hidden: Option<usize>) -> Result<Self> {
        in_main_memory(&device)?;
        let parameters = parameters([&[CLASSES, hidden.unwrap_or(HIDDEN)], &[CLASSES]], 8)?;
        let layer = linear(&parameters[0], &parameters[1])?;
        Ok(Self { layer, parameters })
    }

    pub(crate) async fn forward(&self, x_rref: RRef<Tensor>) -> Result<Tensor> {
        let x = x_rref.to_here().await?;
        Ok(self.layer.forward(&x.tanh()?.into())?)
    }

    pub(crate) async fn parameter_rrefs(&self) -> Result<Vec<RRef<Parameter>>> {
        references(&self.parameters)
    }
}

fn in_main_memory(device: &str) -> Result<()> {
    match device {
        "cpu" => Ok(()),
        other => Err(format!("there is no {other} here").into()),
    }
}
