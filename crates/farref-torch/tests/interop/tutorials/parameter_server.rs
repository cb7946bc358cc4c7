//! The parameter server of `parameter_server.py`: the model is here, trainers in Python run and step it.

use std::sync::{Arc, Mutex, PoisonError};

use farref::RRef;
use farref_autograd::candle::DType;
use farref_autograd::nn::{Linear, log_softmax_last_dim};
use farref_autograd::{Module, Parameter, Tensor};
use farref_torch::{Dtype, PyException, PyValue, RawTensor, torch_context};
use serde::Serialize;

use super::{Result, linear, me, parameters, references};

/// `Classifier`.
const FEATURES: usize = 8;
const HIDDEN: usize = 16;
const CLASSES: usize = 4;

/// The model. Clones are the same.
#[derive(Clone)]
pub(crate) struct Server(Arc<Model>);

struct Model {
    hidden: Linear,
    scores: Linear,
    parameters: [Parameter; 4],
}

impl Server {
    fn new() -> Result<Self> {
        let shapes: [&[usize]; 4] = [
            &[HIDDEN, FEATURES],
            &[HIDDEN],
            &[CLASSES, HIDDEN],
            &[CLASSES],
        ];
        let parameters = parameters(shapes, 3)?;
        Ok(Self(Arc::new(Model {
            hidden: linear(&parameters[0], &parameters[1])?,
            scores: linear(&parameters[2], &parameters[3])?,
            parameters,
        })))
    }

    fn forward(&self, batch: &Tensor) -> Result<Tensor> {
        let hidden = self.0.hidden.forward(batch)?.tanh()?;
        let scores = self.0.scores.forward(&hidden.into())?;
        Ok(log_softmax_last_dim(&scores)?)
    }

    fn gradients_in(&self, context_id: i64) -> Result<PyValue> {
        let context = torch_context(&me()?, context_id).ok_or("there is no such context")?;
        let mut gradients = Vec::new();
        for parameter in &self.0.parameters {
            if let Some(gradient) = context.gradient(parameter) {
                gradients.push((raw(&parameter.value())?, raw(&gradient)?));
            }
        }
        Ok(PyValue::Dict(gradients))
    }
}

/// A tensor that is to be a key of a dict, or beside one.
fn raw(tensor: &Tensor) -> Result<PyValue> {
    let data = tensor.to_buffer()?;
    let raw = RawTensor::new(Dtype::Float, tensor.dims().to_vec(), data);
    Ok(PyValue::Tensor(raw))
}

/// Data that comes without gradients.
fn tensor(raw: RawTensor) -> Result<Tensor> {
    if raw.dtype != Dtype::Float {
        return Err(PyException::new("TypeError", "a batch is of float32").into());
    }
    Ok(Tensor::from_buffer(DType::F32, raw.shape, raw.data, false)?)
}

/// The one server of this process.
#[farref::remote(python = "tutorials.parameter_server.the_server")]
fn the_server(devices: Option<i64>) -> Result<Server> {
    static SERVER: Mutex<Option<Server>> = Mutex::new(None);
    if devices.unwrap_or(0) != 0 {
        return Err("this server has no devices".into());
    }
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    match &*server {
        Some(server) => Ok(server.clone()),
        None => Ok(server.insert(Server::new()?).clone()),
    }
}

/// What they return.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Scores(Tensor),
    Gradients(PyValue),
    Parameters(Vec<RRef<Parameter>>),
}

/// Runs a method that the caller names on the server that it has a reference to.
#[farref::remote(python = "tutorials.parameter_server.call_method")]
async fn call_method(
    method: PyValue,
    rref: RRef<Server>,
    argument: Option<PyValue>,
) -> Result<Answer> {
    let PyValue::Name(method) = method else {
        return Err(PyException::new("TypeError", "a method is expected").into());
    };
    let server = rref.local().await?;
    match (&method[..], argument) {
        ("tutorials.parameter_server.Server.forward", Some(PyValue::Tensor(batch))) => {
            Ok(Answer::Scores(server.forward(&tensor(batch)?)?))
        }
        ("tutorials.parameter_server.Server.gradients_in", Some(PyValue::Int(id))) => {
            Ok(Answer::Gradients(server.gradients_in(id)?))
        }
        ("tutorials.parameter_server.Server.parameter_rrefs", None) => {
            Ok(Answer::Parameters(references(&server.0.parameters)?))
        }
        (other, _) => {
            Err(PyException::new("TypeError", format!("{other} with these arguments")).into())
        }
    }
}
