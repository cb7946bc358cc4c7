//! One linear layer, for distributed autograd.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use farref_autograd::{Context, Parameter, Tensor};
use farref_torch::{PyException, PyValue, py_call, torch_context, torch_context_id};
use serde::Serialize;
use serde::ser::SerializeTuple;

use super::me;

type Problem = Box<dyn std::error::Error + Send + Sync>;

static LAYER: Mutex<Option<Arc<Layer>>> = Mutex::new(None);

struct Layer {
    weight: Parameter,
    bias: Parameter,
}

fn layer() -> Result<Arc<Layer>, PyException> {
    let layer = LAYER.lock().unwrap_or_else(PoisonError::into_inner).clone();
    layer.ok_or_else(|| PyException::new("RuntimeError", "the layer has no parameters yet"))
}

impl Layer {
    fn apply(&self, x: &Tensor) -> Result<Tensor, Problem> {
        let product = x.matmul(&self.weight.tensor())?;
        Ok(product.broadcast_add(&self.bias.tensor())?.into())
    }
}

#[farref::remote(python = "peer_api.set_linear")]
fn set_linear(weight: Tensor, bias: Tensor) -> Result<(), Problem> {
    let layer = Layer {
        weight: Parameter::new(&weight)?,
        bias: Parameter::new(&bias)?,
    };
    *LAYER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(layer));
    Ok(())
}

#[farref::remote(python = "peer_api.parameter_rrefs")]
async fn parameter_rrefs() -> Result<Vec<farref::RRef<Parameter>>, PyException> {
    let layer = layer()?;
    let all = [&layer.weight, &layer.bias];
    let all = all.map(|parameter| me().rref_to_object(parameter.clone()));
    Ok(all.into_iter().collect::<Result<_, _>>()?)
}

#[farref::remote(python = "peer_api.linear")]
fn linear(x: Tensor) -> Result<Tensor, Problem> {
    layer()?.apply(&x)
}

/// A tensor, and what else is given to a function.
struct Arguments(Tensor, Vec<PyValue>);

impl Serialize for Arguments {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(1 + self.1.len())?;
        tuple.serialize_element(&self.0)?;
        self.1
            .iter()
            .try_for_each(|argument| tuple.serialize_element(argument))?;
        tuple.end()
    }
}

/// As PyTorch's: nothing flows back at zero. (candle's own lets it pass there.)
fn relu(x: &Tensor) -> Result<Tensor, Problem> {
    let positive = x.gt(0.0)?.to_dtype(x.dtype())?;
    Ok((&**x * positive)?.into())
}

async fn through(
    x: &Tensor,
    worker: &str,
    function: &str,
    args: Vec<PyValue>,
) -> Result<Tensor, Problem> {
    let hidden = relu(&layer()?.apply(x)?)?;
    let worker = me().peer(worker)?;
    Ok(py_call(&worker, function, Arguments(hidden, args))
        .await
        .map_err(PyException::from)?)
}

#[farref::remote(python = "peer_api.linear_then")]
async fn linear_then(
    x: Tensor,
    worker: String,
    function: String,
    args: Vec<PyValue>,
) -> Result<Tensor, Problem> {
    through(&x, &worker, &function, args).await
}

fn loss_of(y: &Tensor, target: &Tensor) -> Result<Tensor, Problem> {
    Ok((&**y - &**target)?.sqr()?.mean_all()?.into())
}

#[farref::remote(python = "peer_api.linear_loss")]
fn linear_loss(x: Tensor, target: Tensor) -> Result<Tensor, Problem> {
    loss_of(&layer()?.apply(&x)?, &target)
}

fn gradients_in(context: &Context) -> Result<BTreeMap<String, Tensor>, PyException> {
    let layer = layer()?;
    let named = [("weight", &layer.weight), ("bias", &layer.bias)];
    let found = named.into_iter().filter_map(|(name, parameter)| {
        let gradient = context.gradient(parameter)?;
        Some((name.to_owned(), gradient))
    });
    Ok(found.collect())
}

fn context(id: i64) -> Result<Context, PyException> {
    let context = torch_context(&me(), id);
    context.ok_or_else(|| PyException::new("RuntimeError", format!("there is no context {id}")))
}

#[farref::remote(python = "peer_api.gradient")]
fn gradient(context_id: i64) -> Result<BTreeMap<String, Tensor>, PyException> {
    gradients_in(&context(context_id)?)
}

#[farref::remote(python = "peer_api.step")]
fn step(context_id: i64, rate: f64) -> Result<(), Problem> {
    let (context, layer) = (context(context_id)?, layer()?);
    for parameter in [&layer.weight, &layer.bias] {
        if let Some(gradient) = context.gradient(parameter) {
            let value = (&*parameter.value() - (&*gradient * rate)?)?;
            parameter.set(&value.detach())?;
        }
    }
    Ok(())
}

#[farref::remote(python = "peer_api.parameters")]
fn parameters() -> Result<BTreeMap<String, Tensor>, PyException> {
    let layer = layer()?;
    Ok(BTreeMap::from([
        ("weight".to_owned(), layer.weight.value().detach().into()),
        ("bias".to_owned(), layer.bias.value().detach().into()),
    ]))
}

#[derive(Serialize)]
struct Trained {
    context: i64,
    loss: f64,
    gradient: BTreeMap<String, Tensor>,
    others: Vec<PyValue>,
}

#[farref::remote(python = "peer_api.loss_through")]
async fn loss_through(
    worker: String,
    function: String,
    args: Vec<PyValue>,
    x: Tensor,
    target: Tensor,
    gradients: Vec<(String, String)>,
) -> Result<Trained, Problem> {
    let context = Context::new(&me())?;
    let y = context.run(through(&x, &worker, &function, args)).await?;
    let loss = loss_of(&y, &target)?;
    context.backward(&[&loss]).await?;
    let id = torch_context_id(&context);
    let mut others = Vec::new();
    for (worker, function) in gradients {
        let worker = me().peer(&worker)?;
        others.push(
            py_call(&worker, &function, (id,))
                .await
                .map_err(PyException::from)?,
        );
    }
    let trained = Trained {
        context: id,
        loss: f64::from(loss.to_scalar::<f32>()?),
        gradient: gradients_in(&context)?,
        others,
    };
    context.release().await?;
    Ok(trained)
}
