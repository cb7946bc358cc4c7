//! Optimizers: the formulas against scalar ones, steps over the group, failures, states.

use std::path::PathBuf;

use candle_core::DType;
use farref::testing::Cluster;
use farref::{RRef, Worker};
use farref_autograd::nn::Generator;
use farref_autograd::optim::{
    Adagrad, Adam, AdamW, DistributedOptimizer, LocalOptimizer, OptimizerConfig, RmsProp, Sgd,
};
use farref_autograd::{
    Context, Error, Parameter, RemoteParameter, Result, StateDict, Tensor, candle as candle_core,
    load_file, save_file,
};

const WIDTH: usize = 3;

fn numbers(seed: u64) -> Vec<f64> {
    let tensor = Generator::new(seed).uniform(WIDTH, -2.0, 2.0, DType::F64);
    tensor.unwrap().to_vec1().unwrap()
}

fn tensor(seed: u64) -> Tensor {
    Tensor::from_vec(numbers(seed), WIDTH).unwrap()
}

fn parameter(seed: u64) -> Parameter {
    Parameter::new(&tensor(seed)).unwrap()
}

/// Makes a context in which the gradient of each parameter is exactly what is said.
async fn gradients(me: &Worker, wanted: &[(&Parameter, &Tensor)]) -> Result<Context> {
    let context = Context::new(me)?;
    let loss = context.enter(|| {
        let mut sum = candle_core::Tensor::new(0.0, &candle_core::Device::Cpu)?;
        for (parameter, gradient) in wanted {
            sum = sum.add(&parameter.tensor().mul(gradient)?.sum_all()?)?;
        }
        Ok::<_, Error>(Tensor::from(sum))
    })?;
    context.backward(&[&loss]).await?;
    Ok(context)
}

/// The same for parameters on any workers.
async fn far_gradients(me: &Worker, wanted: &[(&RRef<Parameter>, &Tensor)]) -> Result<Context> {
    let context = Context::new(me)?;
    let computed = context.run(async {
        let mut sum = candle_core::Tensor::new(0.0, &candle_core::Device::Cpu)?;
        for (parameter, gradient) in wanted {
            let parameter = parameter.get_tensor().await?;
            sum = sum.add(&parameter.mul(gradient)?.sum_all()?)?;
        }
        Ok::<_, Error>(Tensor::from(sum))
    });
    let loss = computed.await?;
    context.backward(&[&loss]).await?;
    Ok(context)
}

fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values.into_iter().map(f64::to_bits).collect()
}

fn file(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farref-{}-{name}.safetensors", std::process::id()))
}

/// The formulas as the papers and PyTorch's documentation have them, for one number.
#[derive(Default)]
struct Scalar {
    steps: i32,
    first: f64,
    second: f64,
    third: f64,
}

impl Scalar {
    fn step(&mut self, config: &OptimizerConfig, p: f64, mut g: f64) -> f64 {
        self.steps += 1;
        match config {
            OptimizerConfig::Sgd(s) => {
                g += s.weight_decay * p;
                if s.momentum != 0.0 {
                    self.first = if self.steps == 1 {
                        g
                    } else {
                        s.momentum * self.first + (1.0 - s.dampening) * g
                    };
                    g = if s.nesterov {
                        g + s.momentum * self.first
                    } else {
                        self.first
                    };
                }
                p - s.learning_rate * g
            }
            OptimizerConfig::Adam(s) => {
                let g = g + s.weight_decay * p;
                self.adam(p, g, s.learning_rate, s.betas, s.eps, s.amsgrad)
            }
            OptimizerConfig::AdamW(s) => {
                let p = p - s.learning_rate * s.weight_decay * p;
                self.adam(p, g, s.learning_rate, s.betas, s.eps, s.amsgrad)
            }
            OptimizerConfig::Adagrad(s) => {
                if self.steps == 1 {
                    self.first = s.initial_accumulator_value;
                }
                g += s.weight_decay * p;
                let rate = s.learning_rate / (1.0 + f64::from(self.steps - 1) * s.lr_decay);
                self.first += g * g;
                p - rate * g / (self.first.sqrt() + s.eps)
            }
            OptimizerConfig::RmsProp(s) => {
                g += s.weight_decay * p;
                self.first = s.alpha * self.first + (1.0 - s.alpha) * g * g;
                let mut size = self.first;
                if s.centered {
                    self.second = s.alpha * self.second + (1.0 - s.alpha) * g;
                    size -= self.second * self.second;
                }
                let direction = g / (size.sqrt() + s.eps);
                if s.momentum > 0.0 {
                    self.third = s.momentum * self.third + direction;
                    p - s.learning_rate * self.third
                } else {
                    p - s.learning_rate * direction
                }
            }
            other => panic!("no formula for {other:?}"),
        }
    }

    fn adam(&mut self, p: f64, g: f64, lr: f64, betas: (f64, f64), eps: f64, ams: bool) -> f64 {
        self.first = betas.0 * self.first + (1.0 - betas.0) * g;
        self.second = betas.1 * self.second + (1.0 - betas.1) * g * g;
        self.third = self.third.max(self.second);
        let first = self.first / (1.0 - betas.0.powi(self.steps));
        let second = if ams { self.third } else { self.second };
        let second = second / (1.0 - betas.1.powi(self.steps));
        p - lr * first / (second.sqrt() + eps)
    }
}

/// All combinations of options.
fn configs() -> Vec<OptimizerConfig> {
    let mut all: Vec<OptimizerConfig> = Vec::new();
    for decay in [0.0, 0.1] {
        all.push(Sgd::new(0.1).weight_decay(decay).into());
        for momentum in [0.9, 0.3] {
            let sgd = Sgd::new(0.1).weight_decay(decay).momentum(momentum);
            all.push(sgd.into());
            all.push(sgd.dampening(0.4).into());
            all.push(sgd.nesterov(true).into());
        }
        for amsgrad in [false, true] {
            for betas in [(0.9, 0.999), (0.3, 0.5)] {
                let adam = Adam::new(0.05).betas(betas).amsgrad(amsgrad);
                all.push(adam.weight_decay(decay).eps(1e-6).into());
                let adamw = AdamW::new(0.05).betas(betas).amsgrad(amsgrad);
                all.push(adamw.weight_decay(decay).into());
            }
        }
        for lr_decay in [0.0, 0.2] {
            for initial in [0.0, 0.5] {
                let adagrad = Adagrad::new(0.1).weight_decay(decay).lr_decay(lr_decay);
                all.push(adagrad.initial_accumulator_value(initial).into());
            }
        }
        for momentum in [0.0, 0.9] {
            for centered in [false, true] {
                let rms_prop = RmsProp::new(0.01).weight_decay(decay).momentum(momentum);
                all.push(rms_prop.centered(centered).alpha(0.9).into());
            }
        }
    }
    all.extend([
        Sgd::default().into(),
        Adam::default().into(),
        AdamW::default().into(),
        Adagrad::default().into(),
        RmsProp::default().into(),
    ]);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn formulas() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    for config in configs() {
        let weight = parameter(1);
        let mut expected = numbers(1);
        let mut scalars: Vec<Scalar> = expected.iter().map(|_| Scalar::default()).collect();
        let mut optimizer = LocalOptimizer::new(config.clone(), [weight.clone()])?;
        let exact = matches!(&config, OptimizerConfig::Sgd(sgd) if sgd.momentum == 0.0);
        for step in 0..25 {
            let gradient = tensor(100 + step);
            let context = gradients(cluster.worker(0), &[(&weight, &gradient)]).await?;
            optimizer.step(&context)?;
            context.release().await?;
            let gradient = numbers(100 + step);
            for ((p, g), scalar) in expected.iter_mut().zip(gradient).zip(&mut scalars) {
                *p = scalar.step(&config, *p, g);
            }
            for (found, expected) in weight.value().to_vec1::<f64>()?.iter().zip(&expected) {
                let close = (found - expected).abs() <= 1e-12 * expected.abs().max(0.1);
                assert!(
                    if exact { found == expected } else { close },
                    "{config:?}, step {step}: {found} instead of {expected}"
                );
            }
        }
    }
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_type_of_the_parameter_stays() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for config in configs() {
            let weight = Parameter::new(&tensor(1).to_dtype(dtype)?)?;
            let mut optimizer = LocalOptimizer::new(config, [weight.clone()])?;
            for _ in 0..2 {
                let context = Context::new(cluster.worker(0))?;
                let loss = context.enter(|| weight.tensor().sqr()?.sum_all())?.into();
                context.backward(&[&loss]).await?;
                optimizer.step(&context)?;
                context.release().await?;
            }
            assert_eq!(weight.value().dtype(), dtype);
            assert!(!weight.value().requires_grad());
        }
    }
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_without_gradient_are_skipped() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let (with, without) = (parameter(1), parameter(2));
    let config = Adam::new(0.1);
    let mut optimizer = LocalOptimizer::new(config, [with.clone(), without.clone()])?;
    let context = gradients(cluster.worker(0), &[(&with, &tensor(3))]).await?;
    optimizer.step(&context)?;
    assert_ne!(bits(&with.value()), bits(&tensor(1)));
    assert_eq!(bits(&without.value()), bits(&tensor(2)));
    let state = optimizer.state()?;
    assert_eq!(state["0.step"].to_scalar::<i64>()?, 1);
    assert_eq!(state["1.step"].to_scalar::<i64>()?, 0);

    let handle = context.handle();
    context.release().await?;
    let error = optimizer.step(&handle).unwrap_err();
    assert!(matches!(error, Error::Farref(_)), "{error}");
    cluster.shutdown().await?;
    Ok(())
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let wrong: Vec<OptimizerConfig> = vec![
        Sgd::new(-1.0).into(),
        Sgd::new(f64::NAN).into(),
        Sgd::new(0.1).nesterov(true).into(),
        Sgd::new(0.1)
            .momentum(0.9)
            .dampening(0.1)
            .nesterov(true)
            .into(),
        Adam::new(0.1).betas((0.9, 1.0)).into(),
        AdamW::new(0.1).eps(-1e-8).into(),
        Adagrad::new(0.1).lr_decay(-1.0).into(),
        RmsProp::new(0.1).momentum(-0.5).into(),
    ];
    for config in wrong {
        let error = LocalOptimizer::new(config.clone(), [parameter(1)]).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{config:?}: {error}");
    }
    let twice = parameter(1);
    assert!(LocalOptimizer::new(Sgd::new(0.1), [twice.clone(), twice]).is_err());
    assert!(LocalOptimizer::new(Sgd::new(0.1), []).is_err());
    let mut optimizer = LocalOptimizer::new(Sgd::new(0.1), [parameter(1)]).unwrap();
    assert!(optimizer.set_learning_rate(-0.1).is_err());
    assert_eq!(optimizer.learning_rate(), 0.1);
    let named = ["a", "a"].map(|name| (name.to_owned(), parameter(1)));
    assert!(LocalOptimizer::named(Sgd::new(0.1), named).is_err());
}

#[farref::remote]
fn make(seed: u64) -> Parameter {
    parameter(seed)
}

/// A parameter whose gradients do not fit it.
#[farref::remote]
fn make_ill(seed: u64) -> Parameter {
    let parameter = parameter(seed);
    parameter.on_gradient(|gradient| Ok(gradient.narrow(0, 0, 1)?.into()));
    parameter
}

fn spread(me: &Worker, workers: &[&str]) -> Result<Vec<RRef<Parameter>>> {
    let workers = (0..).zip(workers);
    workers
        .map(|(seed, worker)| Ok(make::on(&me.peer(worker)?, seed).remote()))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_over_the_group_are_the_same_as_here() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let configs: [OptimizerConfig; 3] = [
        Sgd::new(0.1).into(),
        Sgd::new(0.1).momentum(0.9).into(),
        AdamW::new(0.1).into(),
    ];
    for config in configs {
        let far = spread(me, &["worker1", "worker2", "worker0", "worker1"])?;
        let optimizer = DistributedOptimizer::new(config.clone(), far.clone()).await?;
        let here: Vec<_> = (0..4).map(parameter).collect();
        let mut local = LocalOptimizer::new(config, here.clone())?;
        for step in 0..20 {
            if step == 10 {
                optimizer.set_learning_rate(0.01).await?;
                local.set_learning_rate(0.01)?;
                assert_eq!(local.learning_rate(), 0.01);
            }
            let wanted: Vec<_> = (0..4).map(|index| tensor(100 * step + index)).collect();
            let pairs: Vec<_> = far.iter().zip(&wanted).collect();
            let context = far_gradients(me, &pairs).await?;
            optimizer.step(&context).await?;
            context.release().await?;
            let pairs: Vec<_> = here.iter().zip(&wanted).collect();
            let context = gradients(me, &pairs).await?;
            local.step(&context)?;
            context.release().await?;
        }
        for (far, here) in far.iter().zip(&here) {
            assert_eq!(bits(&far.get_value().await?), bits(&here.value()));
        }
        drop((far, optimizer));
    }
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_fails_is_named_and_has_changed_nothing() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let mut far = spread(me, &["worker1", "worker2"])?;
    far.push(make_ill::on(&me.peer("worker2")?, 2).remote());
    let names = ["good", "neighbour", "ill"].map(str::to_owned);
    let named = names.into_iter().zip(far.clone()).collect();
    let optimizer = DistributedOptimizer::named(Sgd::new(0.1), named).await?;

    let wanted: Vec<_> = (0..3).map(|index| tensor(10 + index)).collect();
    let pairs: Vec<_> = far.iter().zip(&wanted).collect();
    let context = far_gradients(me, &pairs).await?;
    let error = optimizer.step(&context).await.unwrap_err();
    let text = error.to_string();
    let Error::Step { failed, stepped } = error else {
        panic!("{error}");
    };
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0].0, "worker2");
    assert_eq!(stepped, ["worker1"]);
    assert!(text.contains("parameter `ill`"), "{text}");
    assert_ne!(bits(&far[0].get_value().await?), bits(&tensor(0)));
    assert_eq!(bits(&far[1].get_value().await?), bits(&tensor(1)));
    assert_eq!(bits(&far[2].get_value().await?), bits(&tensor(2)));

    context.release().await?;
    drop((far, optimizer));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_is_lost_is_named() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let far = spread(me, &["worker1", "worker2"])?;
    let optimizer = DistributedOptimizer::new(Sgd::new(0.1), far.clone()).await?;
    cluster.crash(2).await;

    // Worker 2 has no part in this context.
    let wanted = tensor(10);
    let context = far_gradients(me, &[(&far[0], &wanted)]).await?;
    let error = optimizer.step(&context).await.unwrap_err();
    let Error::Step { failed, stepped } = error else {
        panic!("{error}");
    };
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].0, "worker2");
    assert_eq!(stepped, ["worker1"]);
    assert_ne!(bits(&far[0].get_value().await?), bits(&tensor(0)));

    context.release().await?;
    let error = optimizer.set_learning_rate(0.2).await.unwrap_err();
    assert!(error.to_string().contains("worker2"), "{error}");
    drop((far, optimizer));
    cluster.shutdown().await?;
    Ok(())
}

/// What is reported is what happened, also in a context that a lost worker had part in.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_worker_of_the_context_is_named() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let far = spread(me, &["worker1", "worker2"])?;
    let optimizer = DistributedOptimizer::new(Sgd::new(0.1), far.clone()).await?;
    let wanted = [tensor(10), tensor(11)];
    let pairs: Vec<_> = far.iter().zip(&wanted).collect();
    let context = far_gradients(me, &pairs).await?;
    cluster.crash(2).await;
    let error = optimizer.step(&context).await.unwrap_err();
    let Error::Step { failed, stepped } = error else {
        panic!("{error}");
    };
    // Worker 1 may have made the step before the loss was known.
    assert!(failed.iter().any(|(worker, _)| worker == "worker2"));
    assert_eq!(failed.len() + stepped.len(), 2);
    let changed = bits(&far[0].get_value().await?) != bits(&tensor(0));
    assert_eq!(changed, stepped == ["worker1"]);
    drop(context);
    drop((far, optimizer));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn steps_of_several_contexts_come_one_after_the_other() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let far = spread(me, &["worker1", "worker2"])?;
    let zero = Tensor::from_vec(vec![0.0; WIDTH], WIDTH)?;
    for parameter in &far {
        parameter.set_value(zero.clone()).await?;
    }
    let optimizer = DistributedOptimizer::new(Sgd::new(1.0), far.clone()).await?;
    let one = Tensor::from_vec(vec![1.0; WIDTH], WIDTH)?;
    let mut contexts = Vec::new();
    for _ in 0..16 {
        contexts.push(far_gradients(me, &[(&far[0], &one), (&far[1], &one)]).await?);
    }
    let optimizer = std::sync::Arc::new(optimizer);
    let steps: Vec<_> = contexts
        .iter()
        .map(|context| {
            let (optimizer, context) = (optimizer.clone(), context.handle());
            tokio::spawn(async move { optimizer.step(&context).await })
        })
        .collect();
    for step in steps {
        step.await.expect("no panic")?;
    }
    for parameter in &far {
        let value = parameter.get_value().await?.to_vec1::<f64>()?;
        assert_eq!(value, [-16.0; WIDTH]);
    }
    for context in contexts {
        context.release().await?;
    }
    drop((far, optimizer));
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_saved_state_goes_on_as_if_nothing_had_been() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let configs: [(&str, OptimizerConfig); 4] = [
        ("sgd", Sgd::new(0.1).momentum(0.9).dampening(0.5).into()),
        ("adam", Adam::new(0.1).amsgrad(true).into()),
        ("adagrad", Adagrad::new(0.1).lr_decay(0.1).into()),
        (
            "rmsprop",
            RmsProp::new(0.1).momentum(0.9).centered(true).into(),
        ),
    ];
    for (name, config) in configs {
        let far = spread(me, &["worker1", "worker2"])?;
        let first = DistributedOptimizer::new(config.clone(), far.clone()).await?;
        for step in 0..5 {
            let wanted = [tensor(step), tensor(50 + step)];
            let pairs: Vec<_> = far.iter().zip(&wanted).collect();
            let context = far_gradients(me, &pairs).await?;
            first.step(&context).await?;
            context.release().await?;
        }
        first.set_learning_rate(0.05).await?;
        let path = file(name);
        first.save(&path).await?;

        // The owners are the other way around, and one continues here.
        let others = spread(me, &["worker2", "worker1"])?;
        let second = DistributedOptimizer::new(config.clone(), others.clone()).await?;
        second.load(&path).await?;
        let here = [parameter(0), parameter(1)];
        let mut third = LocalOptimizer::new(config, here.clone())?;
        third.load(&path)?;
        assert_eq!(third.learning_rate(), 0.05);
        for (index, parameter) in far.iter().enumerate() {
            let value = parameter.get_value().await?;
            here[index].set(&value)?;
            others[index].set_value(value).await?;
        }
        for step in 10..20 {
            let wanted = [tensor(step), tensor(50 + step)];
            for (optimizer, far) in [(&first, &far), (&second, &others)] {
                let pairs: Vec<_> = far.iter().zip(&wanted).collect();
                let context = far_gradients(me, &pairs).await?;
                optimizer.step(&context).await?;
                context.release().await?;
            }
            let pairs: Vec<_> = here.iter().zip(&wanted).collect();
            let context = gradients(me, &pairs).await?;
            third.step(&context)?;
            context.release().await?;
        }
        for index in 0..2 {
            let value = bits(&far[index].get_value().await?);
            assert_eq!(bits(&others[index].get_value().await?), value, "{name}");
            assert_eq!(bits(&here[index].value()), value, "{name}");
        }
        std::fs::remove_file(path).expect("it was written");
        drop((far, others, first, second));
    }
    cluster.shutdown().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_that_does_not_fit_changes_nothing() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let far = spread(me, &["worker1", "worker2"])?;
    let optimizer = DistributedOptimizer::new(Adam::new(0.1), far.clone()).await?;
    let wanted = [tensor(5), tensor(6)];
    let pairs: Vec<_> = far.iter().zip(&wanted).collect();
    let context = far_gradients(me, &pairs).await?;
    optimizer.step(&context).await?;
    context.release().await?;
    let before = optimizer.state().await?;

    let mut wrong = before.clone();
    wrong.remove("1.exp_avg");
    wrong.insert("2.exp_avg".to_owned(), tensor(1));
    wrong.insert("0.exp_avg".to_owned(), Tensor::from_vec(vec![1f64], 1)?);
    wrong.insert(
        "0.exp_avg_sq".to_owned(),
        tensor(1).to_dtype(DType::F32)?.into(),
    );
    let check = |error: Error| {
        let Error::State(mismatch) = error else {
            panic!("{error}");
        };
        assert_eq!(mismatch.missing, ["1.exp_avg"]);
        assert_eq!(mismatch.unexpected, ["2.exp_avg"]);
        let names: Vec<_> = mismatch.mismatched.iter().map(|m| &m.name).collect();
        assert_eq!(names, ["0.exp_avg", "0.exp_avg_sq"]);
        assert_eq!(mismatch.mismatched[0].expected, "[3] of f64");
        assert_eq!(mismatch.mismatched[0].found, "[1] of f64");
    };
    check(optimizer.load_state(&wrong).await.unwrap_err());
    let mut local = LocalOptimizer::new(Adam::new(0.1), [parameter(0), parameter(1)])?;
    local.load_state(&before)?;
    check(local.load_state(&wrong).unwrap_err());
    same(&local.state()?, &before);
    same(&optimizer.state().await?, &before);

    // A file that is none.
    let path = file("broken");
    std::fs::write(&path, b"not a file of tensors").expect("a temporary file");
    let error = optimizer.load(&path).await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)), "{error}");
    std::fs::remove_file(&path).expect("a temporary file");
    let error = load_file(&path).await.unwrap_err();
    assert!(matches!(error, Error::Checkpoint(_)), "{error}");
    let nowhere = path.join("nowhere");
    let error = save_file(&nowhere, &before).await.unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
    same(&optimizer.state().await?, &before);

    drop((far, optimizer));
    cluster.shutdown().await?;
    Ok(())
}

fn same(one: &StateDict, other: &StateDict) {
    assert!(one.keys().eq(other.keys()));
    for (one, other) in one.values().zip(other.values()) {
        let as_f64 = |tensor: &Tensor| bits(&tensor.to_dtype(DType::F64).unwrap().into());
        assert_eq!(as_f64(one), as_f64(other));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parameter_that_is_there_twice_is_refused() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let far = spread(cluster.worker(0), &["worker1"])?;
    let twice = vec![far[0].clone(), far[0].clone()];
    let error = DistributedOptimizer::new(Sgd::new(0.1), twice).await;
    let text = error.unwrap_err().to_string();
    assert!(text.contains("twice"), "{text}");
    let error = DistributedOptimizer::new(Sgd::new(0.1), Vec::new()).await;
    assert!(matches!(error, Err(Error::Invalid(_))));
    drop(far);
    cluster.shutdown().await?;
    Ok(())
}
