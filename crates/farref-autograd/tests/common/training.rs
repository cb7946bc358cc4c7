//! A network of layers on several workers that is trained, beside the same one in this process.

use anyhow::{Context as _, Result, ensure};
use farref::{RRef, Worker};
use farref_autograd::candle::Device;
use farref_autograd::{Context, Error, Parameter, Tensor};

/// One layer of a network, on some worker.
pub(crate) struct Layer {
    weight: Parameter,
    bias: Parameter,
}

#[farref::remote]
impl Layer {
    #[remote]
    fn forward(&self, input: Tensor) -> Result<Tensor, Error> {
        let linear = input.matmul(&self.weight.tensor())?;
        Ok(linear.broadcast_add(&self.bias.tensor())?.tanh()?.into())
    }

    /// Says whether the gradients are where the parameters are.
    #[remote]
    fn step(&self, rate: f64) -> Result<bool, Error> {
        let context = Context::current().ok_or(Error::NoContext)?;
        let mut is_here = true;
        for parameter in [&self.weight, &self.bias] {
            let gradient = context.gradient(parameter).ok_or(Error::NoContext)?;
            let value = parameter.value();
            is_here &= gradient.device().same_device(value.device());
            parameter.set(&(&*value - (&*gradient * rate)?)?)?;
        }
        Ok(is_here)
    }
}

impl Layer {
    /// A layer whose numbers, of this spread, come from a seed.
    pub(crate) fn seeded(
        (inputs, outputs): (usize, usize),
        seed: u64,
        spread: f64,
        device: &Device,
    ) -> Result<Self, Error> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut numbers = |count: usize| {
            let numbers = (0..count).map(|_| (rng.f64() - 0.5) * spread);
            numbers.collect::<Vec<_>>()
        };
        let weight = Tensor::from_vec(numbers(inputs * outputs), (inputs, outputs))?;
        let bias = Tensor::from_vec(numbers(outputs), outputs)?;
        Ok(Self {
            weight: Parameter::new(&weight.to_device(device)?)?,
            bias: Parameter::new(&bias.to_device(device)?)?,
        })
    }
}

/// What is trained, and how.
pub(crate) struct Training {
    /// Inputs and outputs of each layer.
    pub(crate) shapes: [(usize, usize); 4],
    /// How far the first numbers are apart at most.
    pub(crate) spread: f64,
    /// How many examples a batch has.
    pub(crate) rows: usize,
    pub(crate) steps: usize,
    pub(crate) rate: f64,
}

impl Training {
    fn batch(&self, step: usize, device: &Device) -> Result<(Tensor, Tensor)> {
        let mut rng = fastrand::Rng::with_seed(1000 + step as u64);
        let mut matrix = |columns: usize| -> Result<Tensor> {
            let numbers = (0..self.rows * columns).map(|_| rng.f64() - 0.5).collect();
            let matrix = Tensor::from_vec(numbers, (self.rows, columns))?;
            Ok(matrix.to_device(device)?.into())
        };
        Ok((matrix(self.shapes[0].0)?, matrix(self.shapes[3].1)?))
    }

    /// The losses of the same network in this process, on the CPU, without anything of farref but the layers.
    pub(crate) fn losses_of_one(&self) -> Result<Vec<f64>> {
        let layers: Result<Vec<_>, Error> = (0..)
            .zip(self.shapes)
            .map(|(seed, shape)| Layer::seeded(shape, seed, self.spread, &Device::Cpu))
            .collect();
        let layers = layers?;
        let mut losses = Vec::new();
        for step in 0..self.steps {
            let (mut x, wanted) = self.batch(step, &Device::Cpu)?;
            for layer in &layers {
                x = layer.forward(x)?;
            }
            let loss = loss_of(&x, &wanted)?;
            losses.push(loss.to_scalar()?);
            let gradients = loss.backward()?;
            for parameter in layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]) {
                let gradient = gradients.get(&parameter.tensor()).context("no gradient")?;
                parameter.set(&(&*parameter.value() - (gradient * self.rate)?)?)?;
            }
        }
        Ok(losses)
    }

    /// Trains layers that are somewhere, with batches that are on a device here: step by step with the same losses.
    pub(crate) async fn run(
        &self,
        me: &Worker,
        layers: &[RRef<Layer>],
        expected: &[f64],
        device: &Device,
    ) -> Result<()> {
        for (step, expected) in expected.iter().enumerate() {
            let (mut x, wanted) = self.batch(step, device)?;
            let context = Context::new(me)?;
            let loss = context
                .run(async {
                    for layer in layers {
                        x = layer.forward(x).await?;
                    }
                    ensure!(x.device().same_device(device));
                    loss_of(&x, &wanted)
                })
                .await?;
            let found: f64 = loss.to_scalar()?;
            ensure!(
                (found - expected).abs() <= 1e-6,
                "step {step}: {found} instead of {expected}"
            );
            context.backward(&[&loss]).await?;
            let all_here = context
                .run(async {
                    let steps: Vec<_> = layers
                        .iter()
                        .map(|layer| layer.step(self.rate).start())
                        .collect();
                    let mut all = true;
                    for step in steps {
                        all &= step.await?;
                    }
                    anyhow::Ok(all)
                })
                .await?;
            ensure!(all_here, "gradients are where the parameters are");
            context.release().await?;
        }
        Ok(())
    }
}

fn loss_of(output: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    Ok((&**output - &**wanted)?.sqr()?.mean_all()?.into())
}
