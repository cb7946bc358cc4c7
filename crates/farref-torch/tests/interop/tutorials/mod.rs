//! One worker of each of the programs in `../python/tutorials`, which are written for workers in Python only.
//!
//! A worker has the functions, classes and methods that the others call on it, under the names that they have in the
//! Python program. Everything else is as the program wants it.

mod actor_learner;
mod batch;
mod parameter_server;
mod pipeline;
mod rnn;

use farref::{RRef, Worker};
use farref_autograd::nn::Linear;
use farref_autograd::{Parameter, Tensor};

type Problem = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Problem>;

/// The same numbers as `pattern` of `numbers.py` with a scale of one, unless it is said.
fn pattern(shape: &[usize], seed: usize, scale: f32) -> Result<Tensor> {
    let mixed = (0..shape.iter().product()).map(|place: usize| (place * 37 + seed) % 101);
    let numbers = mixed.map(|number| (number as f32 / 101.0 - 0.5) * scale);
    Ok(Tensor::from_vec(numbers.collect(), shape)?)
}

/// Parameters of these shapes as `fill` of `numbers.py` fills them.
fn parameters<const N: usize>(shapes: [&[usize]; N], seed: usize) -> Result<[Parameter; N]> {
    let filled = shapes.iter().enumerate().map(|(place, shape)| {
        let numbers = pattern(shape, seed + 7 * place, 1.0)?;
        Ok(Parameter::new(&numbers)?)
    });
    let filled = filled.collect::<Result<Vec<_>>>()?;
    filled
        .try_into()
        .map_err(|_| "one parameter for each shape".into())
}

/// A layer of a weight and a bias.
fn linear(weight: &Parameter, bias: &Parameter) -> Result<Linear> {
    Ok(Linear::from_parameters(weight.clone(), Some(bias.clone()))?)
}

/// References to parameters of this worker, for whoever is to step them.
fn references(parameters: &[Parameter]) -> Result<Vec<RRef<Parameter>>> {
    let worker = me()?;
    let references = parameters
        .iter()
        .map(|parameter| Ok(worker.rref_to_object(parameter.clone())?));
    references.collect()
}

fn me() -> Result<Worker> {
    Ok(Worker::current().ok_or("this is not in a call")?)
}
