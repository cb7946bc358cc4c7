//! A trainer of `batch.py`: the model comes from a server in Python, which waits for all trainers before it answers.

use farref::RRef;
use farref_autograd::candle::DType;
use farref_autograd::nn::{Linear, cross_entropy};
use farref_autograd::{Context, Module, Parameter, Tensor};
use farref_torch::{PyCall, PyObject, py_method};
use serde::Deserialize;

use super::{Result, linear, me, pattern};

const FEATURES: usize = 5;
const CLASSES: usize = 3;
const BATCH: usize = 10;
const STEPS: usize = 15;

/// What is read of Python's `Model`: its layers, by their names.
#[derive(Deserialize)]
struct Sent {
    #[serde(rename = "_modules")]
    layers: Layers,
}

#[derive(Deserialize)]
struct Layers {
    hidden: SentLayer,
    scores: SentLayer,
}

#[derive(Deserialize)]
struct SentLayer {
    #[serde(rename = "_parameters")]
    parameters: SentParameters,
}

#[derive(Deserialize)]
struct SentParameters {
    weight: Tensor,
    bias: Tensor,
}

/// A copy of the model to compute with.
struct Model {
    hidden: Linear,
    scores: Linear,
    parameters: [Parameter; 4],
}

impl Model {
    fn of(sent: &Sent) -> Result<Self> {
        let Layers { hidden, scores } = &sent.layers;
        let (hidden, scores) = (&hidden.parameters, &scores.parameters);
        let parameters = [
            Parameter::new(&hidden.weight)?,
            Parameter::new(&hidden.bias)?,
            Parameter::new(&scores.weight)?,
            Parameter::new(&scores.bias)?,
        ];
        Ok(Self {
            hidden: linear(&parameters[0], &parameters[1])?,
            scores: linear(&parameters[2], &parameters[3])?,
            parameters,
        })
    }

    /// The loss, and the gradients of all parameters.
    async fn learn(&self, data: &Tensor) -> Result<(f64, Vec<Tensor>)> {
        let target = data
            .narrow(1, 0, CLASSES)?
            .argmax(1)?
            .to_dtype(DType::I64)?;
        let context = Context::new(&me()?)?;
        let loss = context.enter(|| {
            let hidden = self.hidden.forward(data)?.tanh()?;
            cross_entropy(&*self.scores.forward(&hidden.into())?, &target)
        })?;
        context.backward(&[&loss]).await?;
        let gradients = self.parameters.iter().map(|parameter| {
            let gradient = context.gradient(parameter);
            gradient.ok_or_else(|| "a parameter without a gradient".into())
        });
        let gradients = gradients.collect::<Result<_>>()?;
        let loss = f64::from(loss.to_scalar::<f32>()?);
        context.release().await?;
        Ok((loss, gradients))
    }
}

/// Trains until all steps are made, and returns the losses.
#[farref::remote(python = "tutorials.batch.run_trainer", timeout = "none")]
async fn run_trainer(server_rref: RRef<PyObject>) -> Result<Vec<f64>> {
    let rank = me()?.rank() as usize;
    let mut losses = Vec::new();
    let mut model = Model::of(&py_method(&server_rref, "get_model", ()).await?)?;
    for step in 0..STEPS {
        let data = pattern(&[BATCH, FEATURES], rank * 59 + step * 17, 2.0)?;
        let (loss, gradients) = model.learn(&data).await?;
        losses.push(loss);
        let update = "tutorials.batch.BatchServer.update_and_fetch";
        let update = PyCall::new(update, (server_rref.clone(), gradients)).async_execution();
        model = Model::of(&update.on(&server_rref.owner()?).await?)?;
    }
    Ok(losses)
}
