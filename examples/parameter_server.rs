//! A parameter server: one worker has the model, others train it, each at its own pace.
//!
//! Every trainer has data of its own. It runs the model on the server, computes the loss, lets the
//! gradients flow back to the server, and asks it for a step. Trainers do not wait for each other.
//! `cargo run -p farref-examples --example parameter_server` prints:
//!
//! ```text
//! `ps` has the model, 2 trainers make 150 steps each
//! trainer0: the loss fell from ..
//! trainer1: the loss fell from ..
//! the model has learned: y = +2.00 a -3.00 b +0.50
//! all workers have ended
//! ```
//!
//! PyTorch's tutorial: "Implementing a Parameter Server Using Distributed RPC Framework".

// A program, not a library.
#![allow(missing_docs)]

use anyhow::{Context as _, Result, ensure};
use farref::Worker;
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{DistributedOptimizer, Sgd};
use farref_autograd::{Context, Hosted, RemoteModule, Tensor};

const TRAINERS: [&str; 2] = ["trainer0", "trainer1"];
const STEPS: u64 = 150;
const ROWS: usize = 16;

/// The model, with two inputs and one output. Made on the server, where it stays.
#[farref::remote]
fn model() -> Result<Hosted> {
    let layer = Linear::new(2, 1, DType::F64, &mut Generator::new(1))?;
    Ok(Hosted::new(layer))
}

/// What a trainer knows about the world: y = 2 a - 3 b + 0.5.
fn examples(generator: &mut Generator) -> Result<(Tensor, Tensor)> {
    let inputs = generator.uniform((ROWS, 2), -1.0, 1.0, DType::F64)?;
    let outputs = inputs.to_vec2::<f64>()?.into_iter();
    let outputs = outputs.map(|row| 2.0 * row[0] - 3.0 * row[1] + 0.5);
    Ok((inputs, Tensor::from_vec(outputs.collect(), (ROWS, 1))?))
}

/// Trains the model with this worker's data. Returns the first loss and the last.
#[farref::remote]
async fn train(model: RemoteModule) -> Result<(f64, f64)> {
    let me = Worker::current().context("not called from afar")?;
    // References to the parameters, which the optimizer replaces where they are.
    let parameters = model.parameters().await?;
    let optimizer = DistributedOptimizer::named(Sgd::new(0.1), parameters).await?;
    let mut generator = Generator::new(me.rank().into());
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        let (inputs, outputs) = examples(&mut generator)?;
        let context = Context::new(&me)?;
        let loss = context
            .run(async { mse_loss(&*model.forward(inputs).await?, &outputs) })
            .await?;
        context.backward(&[&loss]).await?; // the gradients are on the server
        optimizer.step(&context).await?; // and so is the step
        losses.push(loss.to_scalar::<f64>()?);
        context.release().await?;
    }
    let first = losses.first().context("no step was made")?;
    let last = losses.last().context("no step was made")?;
    Ok((*first, *last))
}

async fn host(me: &Worker) -> Result<()> {
    let trained = RemoteModule::new(model::on(&me.me()).remote());
    println!("`ps` has the model, 2 trainers make {STEPS} steps each");
    let mut training = Vec::new();
    for trainer in TRAINERS {
        training.push(train::on(&me.peer(trainer)?, trained.clone()).start());
    }
    for (trainer, pending) in TRAINERS.iter().zip(training) {
        let (first, last) = pending.await?;
        println!("{trainer}: the loss fell from {first:.2} to {last:.4}");
        ensure!(last < 0.001, "it has not learned enough");
    }

    let state = trained.state_dict().await?;
    let numbers = |name: &str| -> Result<Vec<f64>> {
        let parameter = state.get(name).context("a parameter is missing")?;
        Ok(parameter.flatten_all()?.to_vec1()?)
    };
    let (weight, bias) = (numbers("weight")?, numbers("bias")?);
    println!(
        "the model has learned: y = {:+.2} a {:+.2} b {:+.2}",
        weight[0], weight[1], bias[0]
    );
    let learned = [weight[0], weight[1], bias[0]];
    let mut errors = learned
        .iter()
        .zip([2.0, -3.0, 0.5])
        .map(|(is, ought)| is - ought);
    ensure!(errors.all(|error| error.abs() < 0.001), "that is not it");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["ps", "trainer0", "trainer1"])? {
        println!("all workers have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "ps" {
        host(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `ps` works
    }
    Ok(())
}
