//! Random programs that span workers: nested calls, ping-pong, shared intermediates, unused results.
//! The same program runs over a group or in one place.

use std::pin::Pin;

use anyhow::{Context as _, Result};
use farref::{RRef, Worker};
use serde::{Deserialize, Serialize};

/// Numbers in every tensor of a program.
pub(crate) const LENGTH: usize = 3;

/// What one call does: works on registers, of which the first are its arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Body {
    pub(crate) worker: usize,
    pub(crate) steps: Vec<Step>,
    /// The registers that are the result.
    pub(crate) results: Vec<usize>,
}

/// What makes new registers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Step {
    Add(usize, usize),
    Multiply(usize, usize),
    Tanh(usize),
    /// A parameter of the worker that the body runs on.
    Parameter(usize),
    /// Calls made at once, each with arguments; their results become registers in this order. Some
    /// leave their results there first.
    Calls(Vec<(Body, Vec<usize>, bool)>),
}

/// What the values of a program can do.
pub(crate) trait Value:
    Clone + Serialize + for<'de> Deserialize<'de> + Send + Sync + 'static
{
    /// Something that is trained.
    type Parameter: Send + Sync + 'static;

    fn add(&self, other: &Self) -> Result<Self>;
    fn multiply(&self, other: &Self) -> Result<Self>;
    fn tanh(&self) -> Result<Self>;
    fn parameter(parameter: &Self::Parameter) -> Self;
}

/// How calls are made.
pub(crate) trait Caller<V: Value>: Sync {
    fn call(
        &self,
        body: Body,
        arguments: Vec<V>,
        leave: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<V>>> + Send + '_>>;

    fn parameter(&self, worker: usize, index: usize) -> impl Future<Output = Result<V>> + Send;
}

/// Runs a body.
pub(crate) async fn execute<V: Value, C: Caller<V>>(
    caller: &C,
    body: &Body,
    arguments: Vec<V>,
) -> Result<Vec<V>> {
    let mut registers = arguments;
    for step in &body.steps {
        let get = |index: usize| registers.get(index).context("no such register");
        let made = match step {
            Step::Add(a, b) => vec![get(*a)?.add(get(*b)?)?],
            Step::Multiply(a, b) => vec![get(*a)?.multiply(get(*b)?)?],
            Step::Tanh(a) => vec![get(*a)?.tanh()?],
            Step::Parameter(index) => vec![caller.parameter(body.worker, *index).await?],
            Step::Calls(calls) => {
                let mut pending = Vec::new();
                for (body, arguments, leave) in calls {
                    let arguments: Result<Vec<V>> = arguments
                        .iter()
                        .map(|&index| Ok(get(index)?.clone()))
                        .collect();
                    pending.push(caller.call(body.clone(), arguments?, *leave));
                }
                let mut made = Vec::new();
                for pending in pending {
                    made.extend(pending.await?);
                }
                made
            }
        };
        registers.extend(made);
    }
    let results = body.results.iter();
    results
        .map(|&index| registers.get(index).cloned().context("no such result"))
        .collect()
}

/// A whole program: what worker 0 does. Its loss is the sum of its results.
pub(crate) fn random(rng: &mut fastrand::Rng, workers: usize, parameters: usize) -> Body {
    let mut budget = 24;
    let mut body = random_body(rng, 0, workers, parameters, 0, 0, &mut budget);
    // So that there is a gradient at all.
    let last = count(&body, 0);
    body.steps.push(Step::Parameter(0));
    body.steps.push(Step::Multiply(body.results[0], last));
    body.results.push(last + 1);
    body
}

fn random_body(
    rng: &mut fastrand::Rng,
    worker: usize,
    workers: usize,
    parameters: usize,
    arguments: usize,
    depth: usize,
    budget: &mut usize,
) -> Body {
    let mut registers = arguments;
    let mut steps = Vec::new();
    if registers == 0 {
        steps.push(Step::Parameter(rng.usize(..parameters)));
        registers += 1;
    }
    for _ in 0..rng.usize(2..7) {
        let any = |rng: &mut fastrand::Rng| rng.usize(..registers);
        let step = match rng.u32(..10) {
            0 | 1 => Step::Add(any(rng), any(rng)),
            2 | 3 => Step::Multiply(any(rng), any(rng)),
            4 => Step::Tanh(any(rng)),
            5 => Step::Parameter(rng.usize(..parameters)),
            _ if depth < 4 && *budget > 0 => {
                let mut calls = Vec::new();
                for _ in 0..rng.usize(1..4) {
                    *budget = budget.saturating_sub(1);
                    let given: Vec<_> = (0..rng.usize(1..4)).map(|_| any(rng)).collect();
                    let to = rng.usize(..workers);
                    let body =
                        random_body(rng, to, workers, parameters, given.len(), depth + 1, budget);
                    calls.push((body, given, rng.u32(..4) == 0));
                }
                Step::Calls(calls)
            }
            _ => Step::Tanh(any(rng)),
        };
        registers += made_by(&step);
        steps.push(step);
    }
    let results = (0..rng.usize(1..4))
        .map(|_| rng.usize(..registers))
        .collect();
    Body {
        worker,
        steps,
        results,
    }
}

fn made_by(step: &Step) -> usize {
    match step {
        Step::Calls(calls) => calls.iter().map(|(body, ..)| body.results.len()).sum(),
        _ => 1,
    }
}

fn count(body: &Body, arguments: usize) -> usize {
    arguments + body.steps.iter().map(made_by).sum::<usize>()
}

/// The worker that runs this, and the parameters of all workers.
pub(crate) fn here() -> Result<Worker> {
    Worker::current().context("not inside of a remote function")
}

/// Parameters of all workers, by worker and index.
pub(crate) type Parameters<P> = Vec<Vec<RRef<P>>>;
