//! Which context calls belong to, and what comes by calls outside of any.

use std::sync::{Arc, Mutex};

use crate::common::{Group, elements, parameter};
use anyhow::{Context as _, Result, ensure};
use farref::{Peer, RRef, Worker};
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{DistributedOptimizer, LocalOptimizer, Sgd};
use farref_autograd::{
    Context, Error, Hosted, Module as _, Parameter, Pipeline, RemoteModule, RemoteParameter, Tensor,
};

#[farref::remote]
fn layer(seed: u64) -> Result<Hosted, Error> {
    let layer = Linear::new(3, 3, DType::F64, &mut Generator::new(seed))?;
    Ok(Hosted::new(layer))
}

fn module(on: &Peer, seed: u64) -> RemoteModule {
    RemoteModule::new(layer::on(on, seed).remote())
}

fn input() -> Result<Tensor> {
    Ok(Generator::new(9).uniform((2, 3), -1.0, 1.0, DType::F64)?)
}

/// Whether each parameter has a gradient in the context.
async fn with_gradients(
    context: &Context,
    parameters: &[(String, RRef<Parameter>)],
) -> Result<Vec<bool>> {
    let mut all = Vec::new();
    for (_, parameter) in parameters {
        all.push(context.run(parameter.gradient()).await?.is_some());
    }
    Ok(all)
}

/// The ways in which a call can be made inside of a context, all of them of calls that are built outside.
#[derive(Clone, Copy, Debug)]
enum Way {
    Awaited,
    Started,
    LeftThere,
    WaitedFor,
    InTask,
}

async fn made_inside(way: Way, module: &RemoteModule, context: &Context) -> Result<Tensor> {
    let call = module.forward(&input()?);
    Ok(match way {
        Way::Awaited => context.run(call).await?,
        Way::Started => context.enter(|| call.start()).await?,
        Way::LeftThere => {
            let there = context.enter(|| call.remote());
            context.run(there.to_here()).await?
        }
        Way::WaitedFor => {
            let handle = context.handle();
            tokio::task::spawn_blocking(move || handle.enter(|| call.wait())).await??
        }
        Way::InTask => tokio::spawn(context.handle().run(call)).await??,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_gradients_flow_through_a_call_that_is_made_in_the_context_wherever_it_was_built()
-> Result<()> {
    let group = Group::start(2).await?;
    let module = module(&group.peer(1)?, 1);
    let parameters = module.parameters().await?;
    for way in [
        Way::Awaited,
        Way::Started,
        Way::LeftThere,
        Way::WaitedFor,
        Way::InTask,
    ] {
        let context = Context::new(group.worker(0))?;
        let output = made_inside(way, &module, &context).await?;
        let loss = Tensor::from(output.sqr()?.sum_all()?);
        context
            .backward(&[&loss])
            .await
            .with_context(|| format!("{way:?}"))?;
        let found = with_gradients(&context, &parameters).await?;
        assert_eq!(found, [true, true], "{way:?}");
        context.release().await?;
    }
    drop((module, parameters));
    group.finish(2).await
}

#[farref::remote]
fn multiply(a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    Ok((&*a * &*b)?.into())
}

/// What is sent is recorded where the call is made, not where its arguments were written.
#[tokio::test]
async fn a1_tensors_are_sent_in_the_context_that_the_call_is_made_in() -> Result<()> {
    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let (a, b) = (parameter(&[1.0, 2.0], 2)?, parameter(&[3.0, 4.0], 2)?);
    let (one, other) = (
        Context::new(group.worker(0))?,
        Context::new(group.worker(0))?,
    );

    // Built in one, made in the other.
    let call = one.enter(|| multiply::on(&peer, a.tensor(), b.tensor()));
    let product = other.run(call).await?;
    let loss = Tensor::from(product.sum_all()?);
    other.backward(&[&loss]).await?;
    let gradient = other.gradient(&a).context("no gradient")?;
    assert_eq!(elements(&gradient)?, [3.0, 4.0]);
    ensure!(one.gradient(&a).is_none());

    // Built in one and made where there is none.
    let call = one.enter(|| multiply::on(&peer, a.tensor(), b.tensor()));
    let loss = Tensor::from(tokio::spawn(call).await??.sum_all()?);
    one.backward(&[&loss]).await?;
    let gradient = one.gradient(&b).context("no gradient")?;
    assert_eq!(elements(&gradient)?, [1.0, 2.0]);

    // Built and never made.
    drop(one.enter(|| multiply::on(&peer, a.tensor(), b.tensor())));
    assert_eq!(group.counts(0..1)[0].sends, 0);

    drop(loss);
    one.release().await?;
    other.release().await?;
    group.finish(2).await
}

#[tokio::test]
async fn a3_no_call_is_made_in_a_context_that_was_released() -> Result<()> {
    let group = Group::start(2).await?;
    let module = module(&group.peer(1)?, 1);
    let context = Context::new(group.worker(0))?;
    let handle = context.handle();
    context.release().await?;
    let refused = handle.run(module.forward(&input()?)).await;
    ensure!(
        matches!(refused, Err(farref::Error::ContextReleased)),
        "{refused:?}"
    );
    drop(module);
    group.finish(2).await
}

#[tokio::test]
async fn a1_all_stages_of_a_pipeline_are_in_the_context_that_it_is_run_in() -> Result<()> {
    let group = Group::start(4).await?;
    let stages = (1..4).map(|worker| Ok(module(&group.peer(worker)?, worker as u64)));
    let pipeline = Pipeline::new(stages.collect::<Result<_>>()?)?;
    let parameters = pipeline.parameters().await?;
    let context = Context::new(group.worker(0))?;
    let output = context.run(pipeline.forward(&input()?)).await?;
    let loss = Tensor::from(output.sqr()?.sum_all()?);
    context.backward(&[&loss]).await?;
    assert_eq!(with_gradients(&context, &parameters).await?, [true; 6]);
    // Made outside of any, it is in the one that it was built in.
    let other = Context::new(group.worker(0))?;
    let call = other.enter(|| Ok::<_, anyhow::Error>(pipeline.forward(&input()?)))?;
    let loss = Tensor::from(call.await?.sqr()?.sum_all()?);
    other.backward(&[&loss]).await?;
    assert_eq!(with_gradients(&other, &parameters).await?, [true; 6]);
    context.release().await?;
    other.release().await?;
    drop((pipeline, parameters, loss));
    group.finish(4).await
}

/// Calls in a task of its own, which is outside of the context.
#[farref::remote]
async fn in_a_task(module: RemoteModule, x: Tensor) -> Result<Tensor, crate::common::Failed> {
    let task = tokio::spawn(async move { module.forward(x).await });
    let output = task.await.map_err(anyhow::Error::from)?;
    Ok(output.map_err(anyhow::Error::from)?)
}

/// The same, with the context.
#[farref::remote]
async fn in_a_task_with_handle(
    module: RemoteModule,
    x: Tensor,
) -> Result<Tensor, crate::common::Failed> {
    let context = Context::current().context("no context")?;
    let task = tokio::spawn(async move { context.run(module.forward(x)).await });
    let output = task.await.map_err(anyhow::Error::from)?;
    Ok(output.map_err(anyhow::Error::from)?)
}

/// What has no way for gradients does not say that it needs them, so that nobody trains nothing without a word.
#[tokio::test]
async fn a1_what_comes_by_a_call_outside_of_the_context_is_data() -> Result<()> {
    let group = Group::start(3).await?;
    let module = module(&group.peer(1)?, 1);
    let parameters = module.parameters().await?;
    let (x, other) = (input()?, group.peer(2)?);
    let context = Context::new(group.worker(0))?;
    let outside = [
        ("awaited", module.forward(&x).await?),
        ("started before", {
            let pending = module.forward(&x).start();
            context.run(pending).await?
        }),
        ("fetched", {
            let there = context.enter(|| module.forward_remote(&x));
            there.to_here().await?
        }),
        ("in a task", {
            let (module, x) = (module.clone(), x.clone());
            let task = async { tokio::spawn(async move { module.forward(x).await }).await };
            context.run(task).await??
        }),
        (
            "in a task of a function",
            context
                .run(in_a_task::on(&other, module.clone(), x.clone()))
                .await?,
        ),
        ("a far parameter", parameters[0].1.tensor().await?),
    ];
    for (way, output) in outside {
        ensure!(!output.requires_grad(), "{way}");
        let loss = Tensor::from(output.sqr()?.sum_all()?);
        let refused = context.backward(&[&loss]).await;
        let Err(Error::NotALoss(text)) = refused else {
            anyhow::bail!("{way}: {refused:?}");
        };
        ensure!(text.contains("outside of it"), "{text}");
    }
    assert_eq!(with_gradients(&context, &parameters).await?, [false, false]);

    // And the way that it is meant to be done.
    let call = in_a_task_with_handle::on(&other, module.clone(), x.clone());
    let output = context.run(call).await?;
    ensure!(output.requires_grad());
    let loss = mse_loss(&output, &x)?;
    context.backward(&[&loss]).await?;
    assert_eq!(with_gradients(&context, &parameters).await?, [true, true]);
    context.release().await?;
    drop((module, parameters, loss));
    group.finish(3).await
}

#[tokio::test]
async fn a_pass_needs_something_to_begin_from() -> Result<()> {
    let group = Group::start(1).await?;
    let context = Context::new(group.worker(0))?;
    let refused = context.backward(&[]).await;
    let Err(Error::NotALoss(text)) = refused else {
        anyhow::bail!("{refused:?}");
    };
    ensure!(text.contains("no loss to begin from"), "{text}");
    context.release().await?;
    group.finish(1).await
}

/// The warnings of the thread that it is set for.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn of_steps(&self) -> usize {
        let warnings = self.0.lock().unwrap();
        let of_steps = warnings
            .iter()
            .filter(|text| text.contains("an optimizer step changed nothing"));
        of_steps.count()
    }
}

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN && metadata.is_event()
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// It is no error, as a loss need not depend on all parameters, but nobody takes it for a step.
#[tokio::test]
async fn a_step_without_any_gradient_is_told_of() -> Result<()> {
    let warnings = Warnings::default();
    let _heard = tracing::subscriber::set_default(warnings.clone());
    let group = Group::start(3).await?;
    let me: &Worker = group.worker(0);
    let (one, two) = (module(&group.peer(1)?, 1), module(&group.peer(2)?, 2));
    let mut parameters = one.parameters().await?;
    let others = two.parameters().await?.into_iter();
    parameters.extend(others.map(|(name, parameter)| (format!("two.{name}"), parameter)));
    let optimizer = DistributedOptimizer::named(Sgd::new(0.1), parameters).await?;
    let here = Linear::new(3, 3, DType::F64, &mut Generator::new(3))?;
    let mut local = LocalOptimizer::named(Sgd::new(0.1), here.parameters())?;

    let context = Context::new(me)?;
    optimizer.step(&context).await?;
    assert_eq!(warnings.of_steps(), 1);
    local.step(&context)?;
    assert_eq!(warnings.of_steps(), 2);

    // One of the owners has gradients.
    let output = context.run(one.forward(&input()?)).await?;
    context.backward(&[&mse_loss(&output, &input()?)?]).await?;
    optimizer.step(&context).await?;
    let loss = mse_loss(&here.forward(&input()?)?, &input()?)?;
    context.backward(&[&loss]).await?;
    local.step(&context)?;
    assert_eq!(warnings.of_steps(), 2, "these have changed something");
    context.release().await?;
    drop((one, two, optimizer, loss, output));
    group.finish(3).await
}

/// A pass can go wherever a future can.
#[tokio::test]
async fn a_pass_is_a_future() -> Result<()> {
    async fn in_time<F: Future + Unpin>(mut future: F) -> Option<F::Output> {
        tokio::select! {
            output = &mut future => Some(output),
            () = std::future::pending() => None,
        }
    }

    let group = Group::start(1).await?;
    let a = parameter(&[1.0, 2.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let loss = Tensor::from(a.tensor().sqr()?.sum_all()?);
    let pass = context.backward(&[&loss]).retain_graph().timeout(None);
    in_time(pass).await.context("it ends")??;
    let (one, other) = tokio::join!(context.backward(&[&loss]), context.backward(&[&loss]));
    one.and(other)?;
    let gradient = context.gradient(&a).context("no gradient")?;
    assert_eq!(elements(&gradient)?, [6.0, 12.0]);
    drop(loss);
    context.release().await?;
    group.finish(1).await
}
