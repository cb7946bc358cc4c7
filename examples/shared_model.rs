//! A model on a GPU that one process trains and another one evaluates, with one set of weights between them.
//!
//! The evaluator is given the weights once. What it has then is the trainer's memory of the GPU: when a step writes into the
//! weights, the evaluator has the new ones. Nothing is copied, however often it looks. A call orders the two: the trainer waits
//! while the other one reads. `cargo run --release -p farref-examples --features cuda --example shared_model`
//! needs a GPU and CUDA's compiler (docs/cuda.md), and prints:
//!
//! ```text
//! the evaluator has 128 MiB of weights, and took .. MiB of the GPU for them
//! after   0 steps its error is ..
//! after  20 steps its error is ..
//! after  40 steps its error is ..
//! after  60 steps its error is ..
//! all that time 128 MiB of the trainer were used by the evaluator
//! the evaluator has let go of them
//! all workers have ended
//! ```

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations)]

use anyhow::{Context as _, Result, ensure};
use candle_nn::{AdamW, Optimizer as _};
use farref::Worker;
use farref_autograd::candle::{self, Device, Var};
use farref_autograd::nn::mse_loss;
use farref_autograd::{Tensor, cuda};
use farref_cuda::Cuda;
use farref_examples::until;

/// Two layers of this width.
const WIDTH: usize = 4096;
const WAVES: usize = 64;
const STEPS: usize = 60;

/// Waves of several lengths, and what is to be said of each: the same wave, a quarter of its length later.
fn waves(offset: f32, gpu: &Device) -> Result<[Tensor; 2]> {
    let places = (0..WAVES).flat_map(|wave| {
        let times = 2.0 + 6.0 * (wave as f32 + offset) / WAVES as f32;
        let step = times * std::f32::consts::TAU / WIDTH as f32;
        (0..WIDTH).map(move |place| place as f32 * step)
    });
    let places = candle::Tensor::from_iter(places, gpu)?.reshape((WAVES, WIDTH))?;
    Ok([places.sin()?.into(), places.cos()?.into()])
}

/// The model: what it says of these waves.
fn predict(weights: [&candle::Tensor; 2], waves: &Tensor) -> Result<candle::Tensor> {
    let [first, second] = weights;
    Ok(waves.matmul(first)?.relu()?.matmul(second)?)
}

pub struct Evaluator {
    weights: [Tensor; 2],
}

/// Keeps weights, to evaluate them.
#[farref::remote]
fn evaluator(first: Tensor, second: Tensor) -> Evaluator {
    Evaluator {
        weights: [first, second],
    }
}

#[farref::remote]
impl Evaluator {
    /// How wrong they are now, of waves that they were not trained on.
    pub fn error(&self) -> Result<f32> {
        let [inputs, targets] = waves(0.5, &cuda::device(0)?)?;
        let [first, second] = &self.weights;
        let error = mse_loss(&predict([first, second], &inputs)?, &targets)?;
        Ok(error.to_scalar()?) // waits until the GPU is done
    }
}

async fn train(me: &Worker) -> Result<()> {
    let gpu = cuda::device(0)?;
    let other = me.peer("evaluator")?;
    let path = cuda::meet(me, &other).await?;
    ensure!(path == cuda::Path::Shared, "the two do not share a GPU");
    gpu.set_seed(1)?;
    let deviation = (2.0 / WIDTH as f32).sqrt();
    let layer = || Var::randn(0.0, deviation, (WIDTH, WIDTH), &gpu);
    let (first, second) = (layer()?, layer()?);
    let [inputs, targets] = waves(0.0, &gpu)?;
    let mut optimizer = AdamW::new_lr(vec![first.clone(), second.clone()], 1e-4)?;
    gpu.synchronize()?;

    let free = || anyhow::Ok(Cuda::open()?.memory(0)?.free);
    let before = free()?;
    let [a, b] = [&first, &second].map(|layer| Tensor::from(layer.as_detached_tensor()));
    let evaluator = evaluator::on(&other, a, b).remote();
    evaluator.confirmed().await?;
    let (size, taken) = (cuda::usage().exported, before.saturating_sub(free()?));
    ensure!(taken < size / 4, "{taken} bytes were taken");
    println!(
        "the evaluator has {} MiB of weights, and took {} MiB of the GPU for them",
        size >> 20,
        taken >> 20
    );

    let mut errors = Vec::new();
    for step in 0..=STEPS {
        if step % 20 == 0 {
            gpu.synchronize()?; // what is written is there when the other one looks
            let error = evaluator.error().await?;
            println!("after {step:3} steps its error is {error:.4}");
            errors.push(error);
        }
        let outputs = predict([&first, &second], &inputs)?;
        let loss = mse_loss(&outputs, &targets)?;
        optimizer.backward_step(&loss)?; // writes into the weights
    }
    let [before, .., after] = errors[..] else {
        anyhow::bail!("it was not trained");
    };
    ensure!(after < before / 4.0, "it has not learned: {errors:?}");
    println!(
        "all that time {} MiB of the trainer were used by the evaluator",
        cuda::usage().exported >> 20
    );
    drop(evaluator);
    let is_home = async || Ok(cuda::usage().exported == 0);
    until("the evaluator lets go of them", is_home).await?;
    println!("the evaluator has let go of them");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let cuda = Cuda::open().context("this example needs a GPU")?;
    ensure!(cuda.device_count()? > 0, "this example needs a GPU");
    if farref_examples::launch(&["trainer", "evaluator"])? {
        println!("all workers have ended");
        return Ok(());
    }
    // So little is taken of the GPU at once that one would see it if the weights were copied.
    cuda::Options::new().reserve(32 << 20).set()?;
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "trainer" {
        train(&me).await?;
        me.shutdown().await?; // both end together
    } else {
        me.serve().await?; // for as long as `trainer` works
    }
    Ok(())
}
