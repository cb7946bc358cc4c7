//! A model in two stages on two workers, trained with parts of a batch that follow each other.
//!
//! While the second stage works on the first part, the first stage works on the second part. What comes
//! out of a stage goes to the next one directly, not by way of the driver.
//! `cargo run -p farref-examples --example pipeline` prints:
//!
//! ```text
//! step   0: the loss is 0.4..
//! step 100: the loss is ..
//! step 200: the loss is ..
//! 0 xor 0 = 0
//! 0 xor 1 = 1
//! 1 xor 0 = 1
//! 1 xor 1 = 0
//! in parts or as a whole: the same
//! all workers have ended
//! ```
//!
//! PyTorch's tutorial: "Distributed Pipeline Parallelism Using RPC".

// A program, not a library.
#![allow(missing_docs, missing_debug_implementations)]

use anyhow::{Result, ensure};
use farref::Worker;
use farref_autograd::candle::{self, DType};
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{Adam, DistributedOptimizer};
use farref_autograd::{Context, Hosted, Module, Parameter, Pipeline, Tensor};

/// A part of the model: a layer and what follows it.
struct Stage {
    layer: Linear,
    activation: fn(&candle::Tensor) -> candle::Result<candle::Tensor>,
}

impl Module for Stage {
    fn forward(&self, input: &Tensor) -> farref_autograd::Result<Tensor> {
        Ok((self.activation)(&*self.layer.forward(input)?)?.into())
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.layer.parameters()
    }
}

#[farref::remote]
fn hidden_stage() -> Result<Hosted> {
    let layer = Linear::new(2, 8, DType::F64, &mut Generator::new(1))?;
    let activation = candle::Tensor::tanh;
    Ok(Hosted::new(Stage { layer, activation }))
}

#[farref::remote]
fn output_stage() -> Result<Hosted> {
    let layer = Linear::new(8, 1, DType::F64, &mut Generator::new(2))?;
    let activation = |x: &candle::Tensor| Ok(x.clone());
    Ok(Hosted::new(Stage { layer, activation }))
}

/// Sends the rows through the pipeline one by one: each is a part of the batch.
async fn forward_in_parts(pipeline: &Pipeline, batch: &Tensor) -> Result<Tensor> {
    let parts = batch.chunk(batch.dim(0)?, 0)?;
    // All are on their way before the first is awaited.
    let pending: Vec<_> = parts
        .into_iter()
        .map(|part| pipeline.forward(Tensor::from(part)).start())
        .collect();
    let mut outputs = Vec::new();
    for output in pending {
        outputs.push(output.await?.into_candle());
    }
    Ok(candle::Tensor::cat(&outputs, 0)?.into())
}

async fn drive(me: &Worker) -> Result<()> {
    let pipeline = Pipeline::new(vec![
        hidden_stage::on(&me.peer("stage0")?).remote().into(),
        output_stage::on(&me.peer("stage1")?).remote().into(),
    ])?;
    let parameters = pipeline.parameters().await?;
    let optimizer = DistributedOptimizer::named(Adam::new(0.05), parameters).await?;
    let inputs = Tensor::from_vec(vec![0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0], (4, 2))?;
    let targets = Tensor::from_vec(vec![0.0, 1.0, 1.0, 0.0], (4, 1))?;

    for step in 0..=200 {
        let context = Context::new(me)?;
        let loss = context
            .run(async {
                let outputs = forward_in_parts(&pipeline, &inputs).await?;
                anyhow::Ok(mse_loss(&outputs, &targets)?)
            })
            .await?;
        context.backward(&[&loss]).await?; // through both stages, all parts at once
        optimizer.step(&context).await?;
        if step % 100 == 0 {
            println!("step {step:3}: the loss is {:.4}", loss.to_scalar::<f64>()?);
        }
        context.release().await?;
    }

    let outputs = forward_in_parts(&pipeline, &inputs).await?;
    let outputs = outputs.to_vec2::<f64>()?;
    for (input, output) in inputs.to_vec2::<f64>()?.iter().zip(&outputs) {
        // Without its sign, for a little less than zero is zero too.
        println!("{} xor {} = {:.0}", input[0], input[1], output[0].abs());
        let ought = f64::from(input[0] != input[1]);
        ensure!((output[0] - ought).abs() < 0.2, "it has not learned");
    }
    let whole = pipeline.forward(&inputs).await?.to_vec2::<f64>()?;
    let mut differences = outputs.iter().zip(&whole).map(|(a, b)| (a[0] - b[0]).abs());
    ensure!(differences.all(|difference| difference < 1e-9), "{whole:?}");
    println!("in parts or as a whole: the same");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    if farref_examples::launch(&["driver", "stage0", "stage1"])? {
        println!("all workers have ended");
        return Ok(());
    }
    let me = Worker::from_env().fail_on_leaks(true).join().await?;
    if me.name() == "driver" {
        drive(&me).await?;
        me.shutdown().await?; // all end together
    } else {
        me.serve().await?; // for as long as `driver` works
    }
    Ok(())
}
