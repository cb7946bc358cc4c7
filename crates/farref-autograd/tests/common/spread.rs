//! Random programs on candle: over a group, and in one place.

use std::pin::Pin;

use anyhow::{Context as _, Result, ensure};
use farref::Worker;
use farref_autograd::{Context, Parameter, RemoteParameter as _, Tensor, candle};

use super::program::{self, Body, Caller, LENGTH, Parameters, Value, execute, random};

const PARAMETERS: usize = 2;

impl Value for Tensor {
    type Parameter = Parameter;

    fn add(&self, other: &Self) -> Result<Self> {
        Ok((&**self + &**other)?.into())
    }

    fn multiply(&self, other: &Self) -> Result<Self> {
        Ok((&**self * &**other)?.into())
    }

    fn tanh(&self) -> Result<Self> {
        Ok(candle::Tensor::tanh(self)?.into())
    }

    fn parameter(parameter: &Parameter) -> Self {
        parameter.tensor()
    }
}

/// Over the group.
struct Spread {
    me: Worker,
    parameters: Parameters<Parameter>,
}

#[farref::remote(timeout = "none")]
async fn run_body(
    body: Body,
    arguments: Vec<Tensor>,
    parameters: Parameters<Parameter>,
) -> Result<Vec<Tensor>, super::Failed> {
    let me = program::here()?;
    Ok(execute(&Spread { me, parameters }, &body, arguments).await?)
}

impl Caller<Tensor> for Spread {
    fn call(
        &self,
        body: Body,
        arguments: Vec<Tensor>,
        leave: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Tensor>>> + Send + '_>> {
        let peer = self.me.peer(&format!("worker{}", body.worker));
        let call = peer.map(|peer| run_body::on(&peer, body, arguments, self.parameters.clone()));
        if leave {
            let there = call.map(|call| call.remote());
            return Box::pin(async move { Ok(there?.to_here().await?) });
        }
        // Begins now, next to the others.
        let pending = call.map(|call| call.start());
        Box::pin(async move { Ok(pending?.await?) })
    }

    async fn parameter(&self, worker: usize, index: usize) -> Result<Tensor> {
        let parameter = self.parameters[worker][index].local().await?;
        Ok(Tensor::parameter(&parameter))
    }
}

/// In one place.
struct Together {
    parameters: Vec<Vec<Parameter>>,
}

impl Caller<Tensor> for Together {
    fn call(
        &self,
        body: Body,
        arguments: Vec<Tensor>,
        _: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Tensor>>> + Send + '_>> {
        Box::pin(async move { execute(self, &body, arguments).await })
    }

    async fn parameter(&self, worker: usize, index: usize) -> Result<Tensor> {
        Ok(self.parameters[worker][index].tensor())
    }
}

#[farref::remote]
fn make(elements: Vec<f64>) -> Result<Parameter, farref_autograd::Error> {
    Parameter::new(&*Tensor::from_vec(elements, LENGTH)?)
}

fn loss(results: &[Tensor]) -> Result<Tensor> {
    let mut sum = results.first().context("no results")?.sum_all()?;
    for result in &results[1..] {
        sum = (sum + result.sum_all()?)?;
    }
    Ok(sum.into())
}

/// The gradients in one place, after one pass and after two.
async fn expected(body: &Body, values: &[Vec<Vec<f64>>]) -> Result<Vec<Vec<Option<Vec<f64>>>>> {
    let mut parameters = Vec::new();
    for of_worker in values {
        let made: Result<Vec<_>> = of_worker
            .iter()
            .map(|elements| super::parameter(elements, LENGTH))
            .collect();
        parameters.push(made?);
    }
    let together = Together { parameters };
    let results = execute(&together, body, Vec::new()).await?;
    let store = loss(&results)?.backward()?;
    let mut gradients = Vec::new();
    for of_worker in &together.parameters {
        let of_worker: Result<Vec<_>> = of_worker
            .iter()
            .map(|parameter| {
                store
                    .get(&parameter.tensor())
                    .map(super::elements)
                    .transpose()
            })
            .collect();
        gradients.push(of_worker?);
    }
    Ok(gradients)
}

fn agree(seed: u64, found: Option<&Tensor>, expected: Option<&Vec<f64>>, times: f64) -> Result<()> {
    let zeros = vec![0.0; LENGTH];
    let expected = expected.unwrap_or(&zeros);
    let found = match found {
        Some(found) => super::elements(found)?,
        None => zeros.clone(),
    };
    for (found, expected) in found.iter().zip(expected) {
        let expected = expected * times;
        let error = (found - expected).abs() / expected.abs().max(1.0);
        ensure!(error <= 1e-12, "seed {seed}: {found} instead of {expected}");
    }
    Ok(())
}

/// Runs the program of a seed over `workers` workers of the group that `me` is in, one or two passes, and
/// compares.
pub(crate) async fn check(seed: u64, me: &Worker, workers: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let body = random(&mut rng, workers, PARAMETERS);
    let values: Vec<Vec<Vec<f64>>> = (0..workers)
        .map(|_| {
            let one =
                |rng: &mut fastrand::Rng| (0..LENGTH).map(|_| rng.f64() * 2.0 - 1.0).collect();
            (0..PARAMETERS).map(|_| one(&mut rng)).collect()
        })
        .collect();
    let expected = expected(&body, &values).await?;

    let mut parameters: Parameters<Parameter> = Vec::new();
    for (worker, values) in values.into_iter().enumerate() {
        let peer = me.peer(&format!("worker{worker}"))?;
        let values = values.into_iter();
        parameters.push(
            values
                .map(|value| make::on(&peer, value).remote())
                .collect(),
        );
    }
    let me = me.clone();
    let context = Context::new(&me)?;
    let spread = Spread { me, parameters };
    let results = context.run(execute(&spread, &body, Vec::new())).await?;
    let loss = loss(&results)?;
    for pass in 1..=1 + seed % 2 {
        context.backward(&[&loss]).retain_graph().await?;
        for (of_worker, expected) in spread.parameters.iter().zip(&expected) {
            for (parameter, expected) in of_worker.iter().zip(expected) {
                let found = context.run(async { parameter.gradient().await }).await?;
                agree(seed, found.as_ref(), expected.as_ref(), pass as f64)?;
            }
        }
    }
    drop((loss, results, spread));
    context.release().await?;
    Ok(())
}
