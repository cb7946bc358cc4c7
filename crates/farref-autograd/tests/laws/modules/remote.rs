//! One module on another worker.

use farref::RRef;
use farref::testing::Cluster;
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear};
use farref_autograd::{
    Context, Error, Hosted, Module, Pipeline, RemoteLoss, RemoteModule, RemoteParameter, Result,
    Tensor,
};

use super::{Layer, bits, file, on, random};

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
        let gradient = context.run(async { far.gradient().await }).await?;
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
            let gradient = context.run(async { parameter.gradient().await });
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
            let gradient = context.run(async { parameter.gradient().await });
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
