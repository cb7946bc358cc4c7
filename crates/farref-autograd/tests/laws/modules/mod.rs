//! Modules on other workers, and pipelines of them, against the same model in one process.

use std::path::PathBuf;

use farref::Worker;
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear};
use farref_autograd::{Hosted, Module, Parameter, RemoteModule, Result, Tensor};

mod pipelines;
mod remote;

/// A layer and something that is not linear. While it is trained, its output is doubled.
struct Layer {
    linear: Linear,
    training: bool,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, seed: u64) -> Result<Self> {
        Ok(Self {
            linear: Linear::new(inputs, outputs, DType::F64, &mut Generator::new(seed))?,
            training: false,
        })
    }
}

impl Module for Layer {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let output = self.linear.forward(input)?.tanh()?;
        let scale = if self.training { 2.0 } else { 1.0 };
        Ok(output.affine(scale, 0.0)?.into())
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.linear.parameters()
    }

    fn set_training(&mut self, training: bool) {
        self.training = training;
    }
}

#[farref::remote]
fn layer(inputs: usize, outputs: usize, seed: u64) -> Result<Hosted> {
    Ok(Hosted::new(Layer::new(inputs, outputs, seed)?))
}

fn random(shape: (usize, usize), seed: u64) -> Tensor {
    let tensor = Generator::new(seed).uniform(shape, -1.0, 1.0, DType::F64);
    tensor.unwrap()
}

fn on(me: &Worker, worker: &str, shape: (usize, usize), seed: u64) -> Result<RemoteModule> {
    let peer = me.peer(worker)?;
    let hosted = layer::on(&peer, shape.0, shape.1, seed).remote();
    Ok(RemoteModule::new(hosted))
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farref-{}-{name}.safetensors", std::process::id()))
}
