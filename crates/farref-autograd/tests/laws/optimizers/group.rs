//! Optimizers whose parameters are on several workers.

use farref::testing::Cluster;
use farref_autograd::optim::{AdamW, DistributedOptimizer, LocalOptimizer, OptimizerConfig, Sgd};
use farref_autograd::{Error, Parameter, RemoteParameter, Result, Tensor};

use super::{WIDTH, bits, far_gradients, gradients, parameter, spread, tensor};

/// A parameter whose gradients do not fit it.
#[farref::remote]
fn make_ill(seed: u64) -> Parameter {
    let parameter = parameter(seed);
    parameter.on_gradient(|gradient| Ok(gradient.narrow(0, 0, 1)?.into()));
    parameter
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
            assert_eq!(bits(&far.value().await?), bits(&here.value()));
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
    assert_ne!(bits(&far[0].value().await?), bits(&tensor(0)));
    assert_eq!(bits(&far[1].value().await?), bits(&tensor(1)));
    assert_eq!(bits(&far[2].value().await?), bits(&tensor(2)));

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
    assert_ne!(bits(&far[0].value().await?), bits(&tensor(0)));

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
    let changed = bits(&far[0].value().await?) != bits(&tensor(0));
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
        parameter.assign(zero.clone()).await?;
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
        let value = parameter.value().await?.to_vec1::<f64>()?;
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
