//! Gradients that come back from other processes' GPUs are those of one process.

use anyhow::{Result, ensure};
use farref::RRef;
use farref_autograd::candle::Device;
use farref_autograd::cuda::{self, DeviceMap, map_devices};
use farref_autograd::optim::{Adam, AdamW, DistributedOptimizer, OptimizerConfig, RmsProp, Sgd};
use farref_autograd::{Context, Error, Parameter, RemoteParameter, Tensor};

use crate::group::Processes;

/// One layer of a network, on some worker's GPU.
struct Layer {
    weight: Parameter,
    bias: Parameter,
}

#[farref::remote]
impl Layer {
    /// A layer whose numbers come from a seed.
    #[remote]
    fn new(inputs: usize, outputs: usize, seed: u64) -> Result<Self, Error> {
        Self::on_device(inputs, outputs, seed, &cuda::device(0)?)
    }

    #[remote]
    fn forward(&self, input: Tensor) -> Result<Tensor, Error> {
        let linear = input.matmul(&self.weight.tensor())?;
        Ok(linear.broadcast_add(&self.bias.tensor())?.tanh()?.into())
    }

    #[remote]
    fn step(&self, rate: f64) -> Result<bool, Error> {
        let context = Context::current().ok_or(Error::NoContext)?;
        let mut on_cuda = true;
        for parameter in [&self.weight, &self.bias] {
            let gradient = context.gradient(parameter).ok_or(Error::NoContext)?;
            on_cuda &= gradient.device().is_cuda();
            parameter.set(&(&*parameter.value() - (&*gradient * rate)?)?)?;
        }
        Ok(on_cuda)
    }
}

impl Layer {
    fn on_device(inputs: usize, outputs: usize, seed: u64, device: &Device) -> Result<Self, Error> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut numbers = |count: usize| {
            (0..count)
                .map(|_| (rng.f64() - 0.5) * 0.2)
                .collect::<Vec<_>>()
        };
        let parameter = |tensor: Tensor| Parameter::new(&tensor.to_device(device)?);
        Ok(Self {
            weight: parameter(Tensor::from_vec(
                numbers(inputs * outputs),
                (inputs, outputs),
            )?)?,
            bias: parameter(Tensor::from_vec(numbers(outputs), outputs)?)?,
        })
    }
}

/// Large enough for activations to be shared: 256 rows of 256 numbers of 8 bytes.
const SHAPES: [(usize, usize); 4] = [(64, 256), (256, 256), (256, 256), (256, 8)];
const STEPS: usize = 20;
const RATE: f64 = 0.05;

fn batch(step: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let mut rng = fastrand::Rng::with_seed(1000 + step as u64);
    let mut numbers = |count: usize| (0..count).map(|_| rng.f64() - 0.5).collect::<Vec<_>>();
    let x = Tensor::from_vec(numbers(256 * 64), (256, 64))?.to_device(device)?;
    let y = Tensor::from_vec(numbers(256 * 8), (256, 8))?.to_device(device)?;
    Ok((x.into(), y.into()))
}

fn loss_of(output: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    Ok((&**output - &**wanted)?.sqr()?.mean_all()?.into())
}

/// The losses of the same network in this process, on the CPU.
fn losses_of_one() -> Result<Vec<f64>> {
    let layers: Result<Vec<_>, Error> = SHAPES
        .iter()
        .enumerate()
        .map(|(index, &(inputs, outputs))| {
            Layer::on_device(inputs, outputs, index as u64, &Device::Cpu)
        })
        .collect();
    let layers = layers?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (mut x, wanted) = batch(step, &Device::Cpu)?;
        for layer in &layers {
            x = layer.forward(x)?;
        }
        let loss = loss_of(&x, &wanted)?;
        losses.push(loss.to_scalar()?);
        let gradients = loss.backward()?;
        for parameter in layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]) {
            let gradient = gradients.get(&parameter.tensor()).ok_or(Error::NoContext)?;
            parameter.set(&(&*parameter.value() - (gradient * RATE)?)?)?;
        }
    }
    Ok(losses)
}

async fn remote_layers(group: &Processes, workers: u32) -> Result<Vec<RRef<Layer>>> {
    let mut layers = Vec::new();
    for (index, &(inputs, outputs)) in SHAPES.iter().enumerate() {
        let peer = group.peer(index as u32 % workers)?;
        layers.push(Layer::new_on(&peer, inputs, outputs, index as u64).remote());
    }
    Ok(layers)
}

pub(crate) async fn training_over_processes_has_the_losses_of_one() -> Result<()> {
    let expected = losses_of_one()?;
    for workers in [2, 3] {
        let group = Processes::start(workers).await?;
        let layers = remote_layers(&group, workers).await?;
        train(&group, &layers, &expected).await?;
        drop(layers);
        group.finish().await?;
    }
    Ok(())
}

async fn train(group: &Processes, layers: &[RRef<Layer>], expected: &[f64]) -> Result<()> {
    for (step, expected) in expected.iter().enumerate() {
        let (mut x, wanted) = batch(step, &cuda::device(0)?)?;
        let context = Context::new(&group.me)?;
        let loss = context
            .run(async {
                for layer in layers {
                    x = layer.forward(x).await?;
                }
                ensure!(x.device().is_cuda());
                loss_of(&x, &wanted)
            })
            .await?;
        let found: f64 = loss.to_scalar()?;
        ensure!(
            (found - expected).abs() <= 1e-6,
            "step {step}: {found} instead of {expected}"
        );
        context.backward(&[&loss]).await?;
        let on_cuda = context
            .run(async {
                let mut all = true;
                for layer in layers {
                    all &= layer.step(RATE).await?;
                }
                anyhow::Ok(all)
            })
            .await?;
        ensure!(on_cuda, "gradients are where the parameters are");
        context.release().await?;
    }
    Ok(())
}

/// The tensors go to the CPU there, and their gradients come back to the GPU here.
pub(crate) async fn gradients_come_back_from_where_a_map_sent_their_tensors() -> Result<()> {
    #[farref::remote]
    fn squares(x: Tensor) -> Result<Tensor, Error> {
        assert!(x.device().is_cpu());
        Ok(x.sqr()?.into())
    }

    let group = Processes::start(2).await?;
    map_devices(&group.me, "worker1", DeviceMap::all_to_cpu());
    for elements in [8, 1 << 17] {
        let gpu = cuda::device(0)?;
        let weight = Parameter::new(&farref_autograd::candle::Tensor::full(
            3.0_f64, elements, &gpu,
        )?)?;
        let context = Context::new(&group.me)?;
        let loss = context
            .run(async {
                let squares = squares::on(&group.peer(1)?, weight.tensor()).await?;
                Ok::<_, anyhow::Error>(Tensor::from(squares.sum_all()?))
            })
            .await?;
        context.backward(&[&loss]).await?;
        let gradient = context.gradient(&weight).ok_or(Error::NoContext)?;
        ensure!(gradient.device().is_cuda());
        let all: f64 = gradient.sum_all()?.to_scalar()?;
        ensure!(all == 6.0 * elements as f64, "{all}");
        context.release().await?;
    }
    group.finish().await
}

/// A weight on the GPU, or on the CPU to compare with.
#[farref::remote]
fn weight(on_cuda: bool) -> Result<Parameter, Error> {
    let device = match on_cuda {
        true => cuda::device(0)?,
        false => Device::Cpu,
    };
    let numbers = farref_autograd::candle::Tensor::arange(0.0_f64, 20_000.0, &device)?;
    Parameter::new(&(numbers / 20_000.0)?)
}

pub(crate) async fn an_optimizer_over_processes_does_as_one() -> Result<()> {
    let group = Processes::start(2).await?;
    let optimizers: [fn() -> OptimizerConfig; 4] = [
        || Sgd::new(0.1).momentum(0.9).into(),
        || Adam::new(0.01).into(),
        || AdamW::new(0.01).into(),
        || RmsProp::new(0.01).into(),
    ];
    for optimizer in optimizers {
        let mut results = Vec::new();
        for on_cuda in [true, false] {
            let there = weight::on(&group.peer(1)?, on_cuda).remote();
            let optimizer = DistributedOptimizer::new(optimizer(), vec![there.clone()]).await?;
            for _ in 0..10 {
                let context = Context::new(&group.me)?;
                let loss = context
                    .run(async {
                        Ok::<_, Error>(Tensor::from(there.tensor().await?.sqr()?.sum_all()?))
                    })
                    .await?;
                context.backward(&[&loss]).await?;
                optimizer.step(&context).await?;
                context.release().await?;
            }
            let value = there.value().await?;
            ensure!(value.device().is_cuda() == on_cuda);
            results.push(value.to_device(&Device::Cpu)?.to_vec1::<f64>()?);
            drop((there, optimizer));
        }
        let apart = results[0].iter().zip(&results[1]);
        let apart = apart.map(|(one, other)| (one - other).abs());
        ensure!(apart.fold(0.0, f64::max) < 1e-9);
    }
    group.finish().await
}
