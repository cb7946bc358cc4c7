//! Modules on other workers, and pipelines of them, against the same model in one process.

use std::path::PathBuf;

use candle_core::DType;
use farref::testing::Cluster;
use farref::{RRef, Worker};
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{Adam, DistributedOptimizer, LocalOptimizer, OptimizerConfig, Sgd};
use farref_autograd::{
    Context, Error, Hosted, Module, Parameter, Pipeline, RemoteLoss, RemoteModule, RemoteParameter,
    Result, Tensor, candle as candle_core,
};

/// A layer and something that is not linear. While it is trained, its output is doubled.
struct Layer {
    linear: Linear,
    training: bool,
}

impl Layer {
    fn new(inputs: usize, outputs: usize, seed: u64) -> Result<Self> {
        Ok(Self {
            linear: Linear::new(inputs, outputs, DType::F64, &mut Generator::new(seed))?,
            training: false,
        })
    }
}

impl Module for Layer {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let output = self.linear.forward(input)?.tanh()?;
        let scale = if self.training { 2.0 } else { 1.0 };
        Ok(output.affine(scale, 0.0)?.into())
    }

    fn parameters(&self) -> Vec<(String, Parameter)> {
        self.linear.parameters()
    }

    fn set_training(&mut self, training: bool) {
        self.training = training;
    }
}

#[farref::remote]
fn layer(inputs: usize, outputs: usize, seed: u64) -> Result<Hosted> {
    Ok(Hosted::new(Layer::new(inputs, outputs, seed)?))
}

fn random(shape: (usize, usize), seed: u64) -> Tensor {
    let tensor = Generator::new(seed).uniform(shape, -1.0, 1.0, DType::F64);
    tensor.unwrap()
}

fn on(me: &Worker, worker: &str, shape: (usize, usize), seed: u64) -> Result<RemoteModule> {
    let peer = me.peer(worker)?;
    let hosted = layer::on(&peer, shape.0, shape.1, seed).remote();
    Ok(RemoteModule::new(hosted))
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farref-{}-{name}.safetensors", std::process::id()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_far_module_computes_what_it_would_here() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let module = on(me, "worker1", (3, 2), 7)?;
    assert_eq!(module.owner()?.name(), "worker1");
    let here = Layer::new(3, 2, 7)?;
    let input = random((4, 3), 1);

    let context = Context::new(me)?;
    let output = context.run(async { module.forward(&input).await }).await?;
    let loss = Tensor::from(output.sqr()?.sum_all()?);
    context.backward(&[&loss]).await?;
    let local = Context::new(me)?;
    let expected = local.enter(|| here.forward(&input))?;
    let expected_loss = Tensor::from(expected.sqr()?.sum_all()?);
    local.backward(&[&expected_loss]).await?;

    assert_eq!(bits(&output), bits(&expected));
    let far = module.parameters().await?;
    assert_eq!(far.len(), 2);
    for ((name, far), (here_name, here)) in far.iter().zip(here.parameters()) {
        assert_eq!(*name, here_name);
        assert_eq!(far.owner()?.name(), "worker1");
        let gradient = context.run(async { far.get_gradient().await }).await?;
        let expected = local.gradient(&here).expect("a gradient");
        assert_eq!(bits(&gradient.expect("a gradient")), bits(&expected));
    }
    context.release().await?;
    local.release().await?;
    drop((module, far));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn results_stay_there_and_go_on_from_there() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let first = on(me, "worker1", (3, 2), 7)?;
    let second = on(me, "worker2", (2, 1), 8)?;
    let input = random((4, 3), 1);

    let context = Context::new(me)?;
    let (between, output) = context.enter(|| {
        let between: RRef<Tensor> = first.forward_remote(&input);
        let output = second.forward_remote(&between);
        (between, output)
    });
    assert_eq!(between.owner()?.name(), "worker1");
    assert_eq!(output.owner()?.name(), "worker2");
    // Fetched inside of the context, it is linked to what is there.
    let here = context.run(async { output.to_here().await }).await?;
    let loss = Tensor::from(here.sum_all()?);
    context.backward(&[&loss]).await?;
    for module in [&first, &second] {
        for (name, parameter) in module.parameters().await? {
            let gradient = context.run(async { parameter.get_gradient().await });
            assert!(gradient.await?.is_some(), "{name}");
        }
    }
    context.release().await?;

    // A loss that is there.
    let third = on(me, "worker1", (2, 1), 9)?;
    let context = Context::new(me)?;
    let one = random((1, 3), 2);
    let loss = context.enter(|| third.forward_remote(first.forward_remote(&one)));
    RemoteLoss::backward(&loss, &context).await?;
    for module in [&first, &third] {
        for (name, parameter) in module.parameters().await? {
            let gradient = context.run(async { parameter.get_gradient().await });
            assert!(gradient.await?.is_some(), "{name}");
        }
    }
    context.release().await?;
    drop((first, second, third, between, output, loss));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_know_whether_they_are_trained() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let module = on(me, "worker1", (3, 2), 7)?;
    let input = random((4, 3), 1);
    let once = module.forward(&input).await?;
    module.train(true).await?;
    let twice = module.forward(&input).await?;
    assert_eq!(bits(&once.affine(2.0, 0.0)?.into()), bits(&twice));
    module.train(false).await?;
    assert_eq!(bits(&module.forward(&input).await?), bits(&once));
    drop(module);
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn states_go_over_all_at_once_or_not_at_all() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let module = on(me, "worker1", (3, 2), 7)?;
    let other = on(me, "worker2", (3, 2), 8)?;
    let input = random((4, 3), 1);
    let state = module.state_dict().await?;
    assert!(state.keys().eq(["bias", "weight"]));
    assert_ne!(
        bits(&other.forward(&input).await?),
        bits(&module.forward(&input).await?)
    );
    other.load_state_dict(&state).await?;
    let output = module.forward(&input).await?;
    assert_eq!(bits(&other.forward(&input).await?), bits(&output));

    let mut wrong = state.clone();
    wrong.remove("bias");
    wrong.insert("weight".to_owned(), random((3, 2), 9));
    wrong.insert("wait".to_owned(), random((2, 3), 9));
    let error = module.load_state_dict(&wrong).await.unwrap_err();
    let Error::State(mismatch) = error else {
        panic!("{error}");
    };
    assert_eq!(mismatch.missing, ["bias"]);
    assert_eq!(mismatch.unexpected, ["wait"]);
    assert_eq!(mismatch.mismatched[0].name, "weight");
    assert_eq!(bits(&module.forward(&input).await?), bits(&output));

    let third = on(me, "worker2", (3, 2), 10)?;
    let path = file("module");
    module.save(&path).await?;
    third.load(&path).await?;
    assert_eq!(bits(&third.forward(&input).await?), bits(&output));
    std::fs::remove_file(path).expect("it was written");
    drop((module, other, third));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_module_that_fails_says_why() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let first = on(me, "worker1", (3, 2), 7)?;
    let second = on(me, "worker2", (2, 1), 8)?;
    let pipeline = Pipeline::new(vec![first, second])?;
    let error = pipeline.forward(random((4, 5), 1)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("3 numbers in its last dimension"), "{text}");
    assert!(Pipeline::new(Vec::new()).is_err());
    drop(pipeline);
    cluster.shutdown().await?;
    Ok(())
}

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
            mse_loss(&output, &target(widths, step))
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
            mse_loss(&output, &target(widths, step))
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
        let gradient = context.run(async { parameter.get_gradient().await });
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
        let gradient = context.run(async { parameter.get_gradient().await });
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

/// A module that somebody chose.
#[farref::remote]
fn chosen(linear: bool) -> Result<Hosted> {
    let module: Box<dyn Module> = if linear {
        Box::new(Linear::new(3, 2, DType::F64, &mut Generator::new(7))?)
    } else {
        Box::new(Layer::new(3, 2, 7)?)
    };
    Ok(Hosted::new(module))
}

#[tokio::test(flavor = "multi_thread")]
async fn boxed_modules_are_modules() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let linear: RemoteModule = chosen::on(&peer, true).remote().into();
    let layer: RemoteModule = chosen::on(&peer, false).remote().into();
    layer.train(true).await?;
    let input = random((4, 3), 1);
    let expected = linear.forward(&input).await?.tanh()?.affine(2.0, 0.0)?;
    assert_eq!(bits(&layer.forward(&input).await?), bits(&expected.into()));
    assert_eq!(layer.parameters().await?.len(), 2);
    drop((linear, layer));
    cluster.shutdown().await?;
    Ok(())
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
