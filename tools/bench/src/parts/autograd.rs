//! A training step through a layer on another worker, beside an empty call and PyTorch's.

use anyhow::Result;
use farref::{Peer, RRef, Worker};
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{DistributedOptimizer, Sgd};
use farref_autograd::{Context, Error, Hosted, RemoteModule, Tensor};

use super::super::functions::{done, nothing};
use super::super::group::Group;
use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::samples::{Times, repeat};
use super::super::transport::Transport;
use super::torch;

/// The width of the layer and how many rows go through it at once: so little that only the calls count, and a layer
/// that computes something.
const LAYERS: [(usize, usize); 2] = [(8, 8), (64, 32)];
/// Of what PyTorch takes.
const BUDGET: f64 = 0.1;

#[farref::remote]
fn layer(width: usize) -> Result<Hosted, Error> {
    let linear = Linear::new(width, width, DType::F32, &mut Generator::new(1))?;
    Ok(Hosted::new(linear))
}

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> Result<()> {
    let group = Group::start(transport, 2).await?;
    let peer = &group.peers[0];
    recorder.say("an empty call");
    let empty = repeat(plan.time, || done(nothing::on(peer))).await?;
    recorder.add(Measurement::times("empty_call", empty));
    let mut torch_measured = Ok(());
    for (width, rows) in LAYERS {
        recorder.say(&format!("a step through {width} x {width}"));
        let times = steps(&group.me, peer, (width, rows), plan).await?;
        let mut step =
            Measurement::times("step", times)
                .layer(width)
                .at_most("empty_call", empty.p50, None);
        if let Some(python) = &plan.python {
            recorder.say(&format!("PyTorch: a step through {width} x {width}"));
            match torch::steps(python, (width, rows), plan).await {
                Ok(theirs) => {
                    recorder.add(Measurement::times("torch_step", theirs).layer(width));
                    step = step.at_most("torch_step", theirs.p50, Some(BUDGET));
                }
                Err(error) => torch_measured = Err(error.context("PyTorch was not measured")),
            }
        }
        recorder.add(step);
    }
    group.end().await?;
    // Whoever names a Python wants it measured.
    torch_measured
}

async fn steps(
    me: &Worker,
    peer: &Peer,
    (width, rows): (usize, usize),
    plan: &Plan,
) -> Result<Times> {
    let module = RemoteModule::new(layer::on(peer, width).remote());
    let parameters: Vec<RRef<_>> = module
        .parameters()
        .await?
        .into_iter()
        .map(|(_, parameter)| parameter)
        .collect();
    let optimizer = DistributedOptimizer::new(Sgd::new(0.01), parameters).await?;
    let numbers = |seed: usize| -> Result<Tensor> {
        let elements = (0..rows * width).map(|n| ((n * 31 + seed) % 17) as f32 / 17.0);
        Ok(Tensor::from_vec(elements.collect(), (rows, width))?)
    };
    let (input, target) = (numbers(1)?, numbers(5)?);
    let (module, optimizer) = (&module, &optimizer);
    let (input, target) = (&input, &target);
    repeat(plan.time, || async move {
        let context = Context::new(me)?;
        let output = context
            .run(async { module.forward(input.clone()).await })
            .await?;
        let loss = mse_loss(&output, target)?;
        context.backward(&[&loss]).await?;
        optimizer.step(&context).await?;
        Ok(())
    })
    .await
}
