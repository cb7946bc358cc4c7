//! What optimizers save and load.

use farref::testing::Cluster;
use farref_autograd::candle::DType;
use farref_autograd::optim::{
    Adagrad, Adam, DistributedOptimizer, LocalOptimizer, OptimizerConfig, RmsProp, Sgd,
};
use farref_autograd::{Error, RemoteParameter, Result, StateDict, Tensor, load_file, save_file};

use super::{bits, far_gradients, file, gradients, parameter, spread, tensor};

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
            let value = parameter.value().await?;
            here[index].set(&value)?;
            others[index].assign(value).await?;
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
            let value = bits(&far[index].value().await?);
            assert_eq!(bits(&others[index].value().await?), value, "{name}");
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
