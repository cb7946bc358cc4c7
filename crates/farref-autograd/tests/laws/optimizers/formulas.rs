//! What optimizers compute, on one worker.

use farref::testing::Cluster;
use farref_autograd::candle::DType;
use farref_autograd::optim::{Adagrad, Adam, AdamW, LocalOptimizer, OptimizerConfig, RmsProp, Sgd};
use farref_autograd::{Context, Error, Parameter, Result};

use super::scalar::Scalar;
use super::{bits, gradients, numbers, parameter, tensor};

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
