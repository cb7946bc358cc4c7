//! Tensors that cross: candle's here, torch's and numpy's there.

use farref::{Peer, Worker};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::{Context, Parameter, Tensor};
use farref_pickle::py_call;

#[farref::remote(python = "tensors.echo")]
async fn echo(tensor: Tensor) -> Tensor {
    tensor
}

#[farref::remote(python = "tensors.echo_all")]
async fn echo_all(tensors: Vec<(String, Option<Tensor>)>) -> Vec<(String, Option<Tensor>)> {
    tensors
}

/// What it is here.
#[farref::remote(python = "tensors.describe")]
async fn describe(tensor: Tensor) -> (String, Vec<usize>, bool, f64) {
    let sum = tensor.to_dtype(DType::F64).and_then(|it| it.sum_all());
    let sum = sum.and_then(|it| it.to_scalar()).unwrap_or(f64::NAN);
    let dtype = format!("{:?}", tensor.dtype());
    (dtype, tensor.dims().to_vec(), tensor.requires_grad(), sum)
}

/// A tensor of this type, one that is a view into another.
#[farref::remote(python = "tensors.made")]
async fn made(dtype: String, rows: usize, columns: usize) -> farref_autograd::Result<Tensor> {
    let dtype: DType = dtype.parse().map_err(candle::Error::wrap)?;
    let count = (rows * columns) as f32;
    let made = candle::Tensor::arange(0f32, count, &Device::Cpu)?.to_dtype(dtype)?;
    Ok(made.reshape((columns, rows))?.t()?.into())
}

#[farref::remote(python = "tensors.sum")]
async fn sum(numbers: Vec<f64>) -> f64 {
    numbers.iter().sum()
}

#[farref::remote(python = "tensors.sums")]
async fn sums(rows: Vec<Vec<f32>>) -> Vec<f32> {
    rows.iter().map(|row| row.iter().sum()).collect()
}

#[farref::remote(python = "tensors.twice")]
async fn twice(number: f64, whole: i64) -> (f64, i64) {
    (2.0 * number, 2 * whole)
}

#[farref::remote(python = "tensors.parameter")]
async fn parameter() -> farref_autograd::Result<Tensor> {
    let ones = candle::Tensor::ones(3, DType::F32, &Device::Cpu)?;
    Ok(Parameter::new(&ones)?.tensor())
}

/// Has a Python worker add two tensors, outside of a context and inside of one: what comes of either.
#[farref::remote(python = "tensors.visit")]
async fn visit(python: Peer) -> Result<(Tensor, String), String> {
    let text = |error: farref_autograd::Error| error.to_string();
    let weights = parameter().await.map_err(text)?;
    let add = || py_call::<Tensor>(&python, "operator.add", (weights.clone(), weights.clone()));
    let sum = add().await.map_err(|error| error.to_string())?;
    let worker = Worker::current().ok_or("no worker")?;
    let context = Context::new(&worker).map_err(text)?;
    let inside = context.run(add()).await;
    let refused = inside.err().ok_or("it went")?.to_string();
    context.release().await.map_err(text)?;
    Ok((sum, refused))
}
