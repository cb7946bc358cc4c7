//! Optimizers: the formulas against scalar ones, steps over the group, failures, states.

use std::path::PathBuf;

use candle_core::DType;
use farref::{RRef, Worker};
use farref_autograd::nn::Generator;
use farref_autograd::{
    Context, Error, Parameter, RemoteParameter, Result, Tensor, candle as candle_core,
};

mod formulas;
mod group;
mod scalar;
mod states;

const WIDTH: usize = 3;

fn numbers(seed: u64) -> Vec<f64> {
    let tensor = Generator::new(seed).uniform(WIDTH, -2.0, 2.0, DType::F64);
    tensor.unwrap().to_vec1().unwrap()
}

fn tensor(seed: u64) -> Tensor {
    Tensor::from_vec(numbers(seed), WIDTH).unwrap()
}

fn parameter(seed: u64) -> Parameter {
    Parameter::new(&tensor(seed)).unwrap()
}

/// Makes a context in which the gradient of each parameter is exactly what is said.
async fn gradients(me: &Worker, wanted: &[(&Parameter, &Tensor)]) -> Result<Context> {
    let context = Context::new(me)?;
    let loss = context.enter(|| {
        let mut sum = candle_core::Tensor::new(0.0, &candle_core::Device::Cpu)?;
        for (parameter, gradient) in wanted {
            sum = sum.add(&parameter.tensor().mul(gradient)?.sum_all()?)?;
        }
        Ok::<_, Error>(Tensor::from(sum))
    })?;
    context.backward(&[&loss]).await?;
    Ok(context)
}

/// The same for parameters on any workers.
async fn far_gradients(me: &Worker, wanted: &[(&RRef<Parameter>, &Tensor)]) -> Result<Context> {
    let context = Context::new(me)?;
    let computed = context.run(async {
        let mut sum = candle_core::Tensor::new(0.0, &candle_core::Device::Cpu)?;
        for (parameter, gradient) in wanted {
            let parameter = parameter.tensor().await?;
            sum = sum.add(&parameter.mul(gradient)?.sum_all()?)?;
        }
        Ok::<_, Error>(Tensor::from(sum))
    });
    let loss = computed.await?;
    context.backward(&[&loss]).await?;
    Ok(context)
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farref-{}-{name}.safetensors", std::process::id()))
}

#[farref::remote]
fn make(seed: u64) -> Parameter {
    parameter(seed)
}

fn spread(me: &Worker, workers: &[&str]) -> Result<Vec<RRef<Parameter>>> {
    let workers = (0..).zip(workers);
    workers
        .map(|(seed, worker)| Ok(make::on(&me.peer(worker)?, seed).remote()))
        .collect()
}
