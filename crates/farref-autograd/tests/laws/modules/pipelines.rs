//! Pipelines, and what they learn.

use farref::Worker;
use farref::testing::Cluster;
use farref_autograd::nn::mse_loss;
use farref_autograd::optim::{Adam, DistributedOptimizer, LocalOptimizer, OptimizerConfig, Sgd};
use farref_autograd::{
    Context, Error, Module, Pipeline, RemoteModule, RemoteParameter, Result, Tensor,
    candle as candle_core,
};

use farref_testkit::eventually;

use super::{Layer, bits, file, on, random};

/// The model whole, on this worker.
async fn train_here(me: &Worker, widths: &[usize], config: OptimizerConfig) -> Result<Vec<f64>> {
    let mut layers = Vec::new();
    for (seed, shape) in (0..).zip(widths.windows(2)) {
        layers.push(Layer::new(shape[0], shape[1], seed)?);
    }
    let parameters = layers.iter().flat_map(Layer::parameters);
    let mut optimizer = LocalOptimizer::new(config, parameters.map(|(_, parameter)| parameter))?;
    let mut losses = Vec::new();
    for step in 0..15 {
        let context = Context::new(me)?;
        let loss = context.enter(|| {
            let mut output = random((6, widths[0]), 100 + step);
            for layer in &layers {
                output = layer.forward(&output)?;
            }
            mse_loss(&output, target(widths, step))
        })?;
        context.backward(&[&loss]).await?;
        optimizer.step(&context)?;
        context.release().await?;
        losses.push(loss.to_scalar::<f64>()?);
    }
    Ok(losses)
}

fn target(widths: &[usize], step: u64) -> Tensor {
    random((6, widths[widths.len() - 1]), 200 + step)
}

async fn train_there(
    me: &Worker,
    workers: &[&str],
    widths: &[usize],
    config: OptimizerConfig,
) -> Result<Vec<f64>> {
    let pipeline = pipeline(me, workers, widths)?;
    let parameters = pipeline.parameters().await?;
    assert_eq!(parameters[0].0, "0.weight");
    assert_eq!(parameters.len(), 2 * workers.len());
    let optimizer = DistributedOptimizer::named(config, parameters).await?;
    let mut losses = Vec::new();
    for step in 0..15 {
        let context = Context::new(me)?;
        let input = random((6, widths[0]), 100 + step);
        let loss = context.run(async {
            let output = pipeline.forward(&input).await?;
            mse_loss(&output, target(widths, step))
        });
        let loss = loss.await?;
        context.backward(&[&loss]).await?;
        optimizer.step(&context).await?;
        context.release().await?;
        losses.push(loss.to_scalar::<f64>()?);
    }
    Ok(losses)
}

fn pipeline(me: &Worker, workers: &[&str], widths: &[usize]) -> Result<Pipeline> {
    let mut stages = Vec::new();
    for (seed, (worker, shape)) in (0..).zip(workers.iter().zip(widths.windows(2))) {
        stages.push(on(me, worker, (shape[0], shape[1]), seed)?);
    }
    Pipeline::new(stages)
}

async fn compare(workers: &[&str], widths: &[usize]) -> Result<()> {
    let cluster = Cluster::start(4).await?;
    let me = cluster.worker(0);
    let configs: [OptimizerConfig; 2] =
        [Sgd::new(0.1).momentum(0.9).into(), Adam::new(0.01).into()];
    for config in configs {
        let here = train_here(me, widths, config.clone()).await?;
        let there = train_there(me, workers, widths, config.clone()).await?;
        assert!(here[0] != here[14]);
        for (step, (here, there)) in here.iter().zip(&there).enumerate() {
            let close = (here - there).abs() <= 1e-12 * here.abs();
            assert!(close, "{config:?}, step {step}: {there} instead of {here}");
        }
    }
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_of_two_learns_what_one_process_does() -> Result<()> {
    compare(&["worker1", "worker2"], &[3, 5, 2]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_of_three_learns_what_one_process_does() -> Result<()> {
    compare(&["worker1", "worker2", "worker3"], &[3, 5, 4, 2]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn so_does_one_with_stages_on_the_same_workers() -> Result<()> {
    compare(
        &["worker1", "worker1", "worker0", "worker1"],
        &[3, 5, 4, 4, 2],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_batch_go_through_at_the_same_time() -> Result<()> {
    let cluster = Cluster::start(4).await?;
    let me = cluster.worker(0);
    let widths = [3, 5, 4, 2];
    let pipeline = pipeline(me, &["worker1", "worker2", "worker3"], &widths)?;
    let batch = random((8, 3), 1);
    let whole = pipeline.forward(&batch).await?;

    let context = Context::new(me)?;
    let parts: Vec<Tensor> = batch.chunk(4, 0)?.into_iter().map(Tensor::from).collect();
    let outputs: Vec<_> = context.enter(|| {
        parts
            .iter()
            .map(|part| pipeline.forward(part).start())
            .collect()
    });
    let mut parts = Vec::new();
    for output in outputs {
        // A call belongs to the context that it was built in, wherever it is awaited.
        parts.push(output.await?.into_candle());
    }
    let output = Tensor::from(candle_core::Tensor::cat(&parts, 0)?);
    for (one, other) in output.to_vec2::<f64>()?.iter().zip(whole.to_vec2::<f64>()?) {
        for (one, other) in one.iter().zip(other) {
            assert!((one - other).abs() < 1e-12);
        }
    }
    let loss = Tensor::from(output.sum_all()?);
    context.backward(&[&loss]).await?;
    for (name, parameter) in pipeline.parameters().await? {
        let gradient = context.run(async { parameter.gradient().await });
        assert!(gradient.await?.is_some(), "{name}");
    }
    context.release().await?;
    drop((pipeline, parts));
    cluster.shutdown().await?;
    Ok(())
}

/// Stages wait for each other's results on threads of which there is one.
#[tokio::test(flavor = "multi_thread")]
async fn stages_that_wait_do_not_use_up_the_threads() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(1)).await?;
    let me = cluster.worker(0);
    let workers = ["worker1", "worker0", "worker1", "worker1", "worker0"];
    let pipeline = pipeline(me, &workers, &[3, 3, 3, 3, 3, 3])?;
    let context = Context::new(me)?;
    let inputs: Vec<_> = (0..8).map(|seed| random((2, 3), seed)).collect();
    let outputs: Vec<_> = context.enter(|| {
        let calls = inputs.iter().map(|input| pipeline.forward(input).start());
        calls.collect()
    });
    let mut sum = candle_core::Tensor::new(0.0, &candle_core::Device::Cpu)?;
    for output in outputs {
        sum = sum.add(&output.await?.sum_all()?)?;
    }
    let loss = Tensor::from(sum);
    context.backward(&[&loss]).await?;
    for (name, parameter) in pipeline.parameters().await? {
        let gradient = context.run(async { parameter.gradient().await });
        assert!(gradient.await?.is_some(), "{name}");
    }
    context.release().await?;
    drop(pipeline);
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn one_thread_is_enough() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let losses = train_there(
        me,
        &["worker1", "worker2"],
        &[3, 5, 2],
        Sgd::new(0.1).into(),
    )
    .await?;
    assert_eq!(
        losses,
        train_here(me, &[3, 5, 2], Sgd::new(0.1).into()).await?
    );
    cluster.shutdown().await?;
    Ok(())
}

#[farref::remote]
async fn use_both(pipeline: Pipeline, last: RemoteModule, input: Tensor) -> Result<Vec<Tensor>> {
    let whole = pipeline.forward(&input).await?;
    let (_, first) = pipeline.stages().next().ok_or(Error::NoContext)?;
    let half = first.forward_remote(&input);
    Ok(vec![whole, last.forward(half).await?])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_works_on_a_third_worker_and_is_released() -> anyhow::Result<()> {
    let cluster = Cluster::start(4).await?;
    let me = cluster.worker(0);
    let pipeline = pipeline(me, &["worker1", "worker2"], &[3, 5, 2])?;
    let input = random((4, 3), 7);
    let here = pipeline.forward(&input).await?;
    let third = me.peer("worker3")?;
    let last = pipeline.stages().last().map(|(_, last)| last.clone());
    let last = last.ok_or(Error::NoContext)?;
    let pending = use_both::on(&third, pipeline.clone(), last, input).start();
    // It is theirs as well now.
    drop(pipeline);
    for there in pending.await? {
        assert_eq!(bits(&there), bits(&here));
    }
    eventually("nobody holds anything", || {
        let workers = cluster.workers().iter();
        workers
            .map(|worker| worker.snapshot().references.len())
            .sum::<usize>()
            == 0
    })
    .await?;
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_is_saved_to_one_file() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let widths = [3, 5, 2];
    let one = pipeline(me, &["worker1", "worker2"], &widths)?;
    let other = Pipeline::named(vec![
        ("0".to_owned(), on(me, "worker2", (3, 5), 50)?),
        ("1".to_owned(), on(me, "worker1", (5, 2), 51)?),
    ])?;
    let input = random((4, 3), 1);
    let before = bits(&other.forward(&input).await?);

    let mut wrong = one.state_dict().await?;
    assert!(
        wrong
            .keys()
            .eq(["0.bias", "0.weight", "1.bias", "1.weight"])
    );
    wrong.remove("1.weight");
    let error = other.load_state_dict(&wrong).await.unwrap_err();
    assert!(matches!(error, Error::State(_)), "{error}");
    assert_eq!(bits(&other.forward(&input).await?), before);

    let path = file("pipeline");
    one.save(&path).await?;
    other.load(&path).await?;
    let expected = bits(&one.forward(&input).await?);
    assert_eq!(bits(&other.forward(&input).await?), expected);
    std::fs::remove_file(path).expect("it was written");
    other.train(true).await?;
    assert_ne!(bits(&other.forward(&input).await?), expected);
    drop((one, other));
    cluster.shutdown().await?;
    Ok(())
}
