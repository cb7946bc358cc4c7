//! Random programs on candle: over a group, and in one place.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use farref::Worker;
use farref_autograd::engine::Cause;
use farref_autograd::{Context, Error, Parameter, RemoteParameter as _, Tensor, candle};
use tokio::task::JoinSet;

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
fn make(elements: Vec<f64>) -> Result<Parameter, Error> {
    Parameter::new(&*Tensor::from_vec(elements, LENGTH)?)
}

fn loss(results: &[Tensor]) -> Result<Tensor> {
    let mut sum = results.first().context("no results")?.sum_all()?;
    for result in &results[1..] {
        sum = (sum + result.sum_all()?)?;
    }
    Ok(sum.into())
}

/// Gradients by worker and parameter.
type Gradients = Vec<Vec<Option<Vec<f64>>>>;

/// The gradients in one place.
async fn expected(body: &Body, values: &[Vec<Vec<f64>>]) -> Result<Gradients> {
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

/// Numbers for the parameters of all workers.
fn random_values(rng: &mut fastrand::Rng, workers: usize) -> Vec<Vec<Vec<f64>>> {
    (0..workers)
        .map(|_| {
            let one =
                |rng: &mut fastrand::Rng| (0..LENGTH).map(|_| rng.f64() * 2.0 - 1.0).collect();
            (0..PARAMETERS).map(|_| one(rng)).collect()
        })
        .collect()
}

impl Spread {
    /// Puts the parameters on the workers.
    fn new(me: &Worker, values: Vec<Vec<Vec<f64>>>) -> Result<Self> {
        let mut parameters: Parameters<Parameter> = Vec::new();
        for (worker, values) in values.into_iter().enumerate() {
            let peer = me.peer(&format!("worker{worker}"))?;
            let values = values.into_iter();
            let made = values.map(|value| make::on(&peer, value).remote());
            parameters.push(made.collect());
        }
        let me = me.clone();
        Ok(Self { me, parameters })
    }

    /// Every parameter has `times` the expected gradient.
    async fn compare(
        &self,
        seed: u64,
        context: &Context,
        expected: &Gradients,
        times: f64,
    ) -> Result<()> {
        for (of_worker, expected) in self.parameters.iter().zip(expected) {
            for (parameter, expected) in of_worker.iter().zip(expected) {
                let found = context.run(async { parameter.gradient().await }).await?;
                agree(seed, found.as_ref(), expected.as_ref(), times)?;
            }
        }
        Ok(())
    }
}

/// Runs the program of a seed over `workers` workers of the group that `me` is in, one or two passes, and
/// compares.
pub(crate) async fn check(seed: u64, me: &Worker, workers: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let body = random(&mut rng, workers, PARAMETERS);
    let values = random_values(&mut rng, workers);
    let expected = expected(&body, &values).await?;
    let spread = Spread::new(me, values)?;
    let context = Context::new(me)?;
    let results = context.run(execute(&spread, &body, Vec::new())).await?;
    let loss = loss(&results)?;
    for pass in 1..=1 + seed % 2 {
        context.backward(&[&loss]).retain_graph().await?;
        spread
            .compare(seed, &context, &expected, pass as f64)
            .await?;
    }
    drop((loss, results, spread));
    context.release().await?;
    Ok(())
}

/// Runs several programs side by side in one context, on the same parameters: while one is still on its way
/// forward, others run backward, and none retains its graph. Their gradients add up (A4).
pub(crate) async fn check_micro_batches(seed: u64, me: &Worker, workers: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let bodies: Vec<_> = (0..rng.usize(2..5))
        .map(|_| random(&mut rng, workers, PARAMETERS))
        .collect();
    let values = random_values(&mut rng, workers);
    let mut sum = None;
    for body in &bodies {
        let expected = expected(body, &values).await?;
        sum = Some(match sum {
            None => expected,
            Some(sum) => add(sum, expected),
        });
    }
    let expected = sum.context("there is a program")?;
    let spread = Arc::new(Spread::new(me, values)?);
    let context = Context::new(me)?;
    let mut passes = JoinSet::new();
    for body in bodies {
        let (context, spread) = (context.handle(), Arc::clone(&spread));
        passes.spawn(async move {
            let results = context.run(execute(&*spread, &body, Vec::new())).await?;
            let loss = loss(&results)?;
            context.backward(&[&loss]).await?;
            anyhow::Ok(())
        });
    }
    while let Some(pass) = passes.join_next().await {
        pass??;
    }
    spread.compare(seed, &context, &expected, 1.0).await?;
    drop(spread);
    context.release().await?;
    Ok(())
}

/// Runs passes side by side whose losses share parts of the graph, one from each result of a program. If the
/// graph is retained, their gradients add up; if not, they do as well, or some pass says that another has
/// freed what it needs (A4).
pub(crate) async fn check_shared(seed: u64, me: &Worker, workers: usize) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let body = random(&mut rng, workers, PARAMETERS);
    let values = random_values(&mut rng, workers);
    let expected = expected(&body, &values).await?;
    let spread = Spread::new(me, values)?;
    let context = Context::new(me)?;
    let results = context.run(execute(&spread, &body, Vec::new())).await?;
    let retain_graph = seed.is_multiple_of(2);
    let mut passes = JoinSet::new();
    for result in results {
        let context = context.handle();
        passes.spawn(async move {
            let loss = loss(&[result])?;
            let mut pass = context.backward(&[&loss]);
            if retain_graph {
                pass = pass.retain_graph();
            }
            anyhow::Ok(match pass.await {
                Err(Error::Backward(failure)) if failure.cause == Cause::GraphFreed => false,
                outcome => outcome.map(|()| true)?,
            })
        });
    }
    let mut all = true;
    while let Some(pass) = passes.join_next().await {
        all &= pass??;
    }
    ensure!(all || !retain_graph, "seed {seed}: nothing was freed");
    if all {
        spread.compare(seed, &context, &expected, 1.0).await?;
    }
    drop(spread);
    context.release().await?;
    Ok(())
}

fn add(sum: Gradients, more: Gradients) -> Gradients {
    let both = |(sum, more): (Option<Vec<f64>>, Option<Vec<f64>>)| match (sum, more) {
        (Some(sum), Some(more)) => Some(sum.iter().zip(more).map(|(a, b)| a + b).collect()),
        (sum, more) => sum.or(more),
    };
    let workers = sum.into_iter().zip(more);
    workers
        .map(|(sum, more)| sum.into_iter().zip(more).map(both).collect())
        .collect()
}
