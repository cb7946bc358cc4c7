//! Gradients that come back from other processes' GPUs are those of one process.

use anyhow::{Result, ensure};
use farref::RRef;
use farref_autograd::candle::Device;
use farref_autograd::cuda::{self, DeviceMap, map_devices};
use farref_autograd::optim::{Adam, AdamW, DistributedOptimizer, OptimizerConfig, RmsProp, Sgd};
use farref_autograd::{Context, Error, Parameter, RemoteParameter, Tensor};

use crate::common::training::{Layer, Training};
use crate::group::{finish, start};

/// Large enough for activations to be shared: 256 rows of 256 numbers of 8 bytes.
const TRAINING: Training = Training {
    shapes: [(64, 256), (256, 256), (256, 256), (256, 8)],
    spread: 0.2,
    rows: 256,
    steps: 20,
    rate: 0.05,
};

#[farref::remote]
fn layer(inputs: usize, outputs: usize, seed: u64) -> Result<Layer, Error> {
    Layer::seeded((inputs, outputs), seed, TRAINING.spread, &cuda::device(0)?)
}

pub(crate) async fn training_over_processes_has_the_losses_of_one() -> Result<()> {
    let expected = TRAINING.losses_of_one()?;
    for workers in [2, 3] {
        let group = start(workers).await?;
        let mut layers: Vec<RRef<Layer>> = Vec::new();
        for (index, (inputs, outputs)) in (0..).zip(TRAINING.shapes) {
            let peer = group.peer(index as u32 % workers)?;
            layers.push(layer::on(&peer, inputs, outputs, index).remote());
        }
        let gpu = cuda::device(0)?;
        TRAINING.run(&group.me, &layers, &expected, &gpu).await?;
        drop(layers);
        finish(group).await?;
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

    let group = start(2).await?;
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
    finish(group).await
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
    let group = start(2).await?;
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
    finish(group).await
}
