//! The scenarios of PyTorch's own tests of distributed autograd, by meaning; `docs/autograd.md` has the
//! list with PyTorch's names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::{Group, elements, parameter};
use anyhow::{Context as _, Result, ensure};
use farref::{RRef, Worker};
use farref_autograd::{Context, Error, Parameter, RemoteLoss, Tensor, candle};
use farref_testkit::eventually;

#[farref::remote]
fn add(a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    Ok((&*a + &*b)?.into())
}

#[farref::remote]
fn multiply(a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    Ok((&*a * &*b)?.into())
}

/// Calls `left` more workers in turn, and itself at the end.
#[farref::remote]
async fn relay(left: Vec<String>, a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    let Some((next, rest)) = left.split_first() else {
        return add(a, b);
    };
    let me = Worker::current().ok_or(Error::NoContext)?;
    let peer = me.peer(next)?;
    Ok(relay::on(&peer, rest.to_vec(), a, b).await?)
}

fn sum(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.sum_all()?.into())
}

fn gradient(context: &Context, parameter: &Parameter) -> Result<Vec<f64>> {
    let gradient = context
        .gradient(parameter)
        .context("there is no gradient")?;
    elements(&gradient)
}

fn two() -> Result<(Parameter, Parameter)> {
    let a = parameter(&[1.0, -2.0, 3.0, 0.5], (2, 2))?;
    let b = parameter(&[0.25, 4.0, -1.0, 2.0], (2, 2))?;
    Ok((a, b))
}

#[tokio::test]
async fn a1_gradients_flow_through_one_call() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&multiply::on(&peer, a.tensor(), b.tensor()).await?) })
        .await?;
    context.backward(&[&loss]).await?;
    let gradient = context.gradient(&a).context("of a")?;
    assert_eq!(elements(&gradient)?, elements(&b.value())?);
    let gradient = context.gradient(&b).context("of b")?;
    assert_eq!(elements(&gradient)?, elements(&a.value())?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// A value that stays there and is fetched inside of the context is part of it.
#[tokio::test]
async fn a1_gradients_flow_through_a_far_value() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async {
            let there = multiply::on(&peer, a.tensor(), b.tensor()).remote();
            sum(&there.to_here().await?)
        })
        .await?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

#[tokio::test]
async fn a1_gradients_flow_through_nested_calls() -> Result<()> {
    let group = Group::start(4).await?;
    for hops in 0..8 {
        let (a, b) = two()?;
        let context = Context::new(group.worker(0))?;
        let route = (0..hops)
            .map(|hop| format!("worker{}", (hop + 2) % 4))
            .collect();
        let peer = group.peer(1)?;
        let loss = context
            .run(async {
                let there = relay::on(&peer, route, a.tensor(), b.tensor()).await?;
                sum(&Tensor::from((&*there * &*there)?))
            })
            .await?;
        context.backward(&[&loss]).await?;
        let double = ((&*a.value() + &*b.value())? * 2.0)?;
        assert_eq!(gradient(&context, &a)?, elements(&double)?);
        assert_eq!(gradient(&context, &b)?, elements(&double)?);
        drop(loss);
        context.release().await?;
    }
    group.finish(4).await
}

/// Forth and back, each time with what came back before, sharing intermediates.
#[tokio::test]
async fn a1_gradients_flow_through_many_round_trips() -> Result<()> {
    let group = Group::start(3).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peers = [group.peer(1)?, group.peer(2)?];
    let loss = context
        .run(async {
            let (mut x, mut y) = (a.tensor(), b.tensor());
            for round in 0..6 {
                let next = add::on(&peers[round % 2], x.clone(), y.clone()).await?;
                y = x;
                x = next;
            }
            sum(&x)
        })
        .await?;
    context.backward(&[&loss]).await?;
    // Fibonacci's numbers.
    assert_eq!(gradient(&context, &a)?, [13.0; 4]);
    assert_eq!(gradient(&context, &b)?, [8.0; 4]);
    drop(loss);
    context.release().await?;
    group.finish(3).await
}

#[farref::remote]
fn outer(columns: Tensor, rows: Tensor, matrix: Tensor) -> Result<Tensor, Error> {
    Ok(columns.matmul(&rows)?.mul(&matrix)?.into())
}

#[tokio::test]
async fn a1_tensors_of_different_shapes_travel_together() -> Result<()> {
    let group = Group::start(2).await?;
    let columns = parameter(&[1.0, 2.0, 3.0], (3, 1))?;
    let rows = parameter(&[4.0, 5.0], (1, 2))?;
    let matrix = parameter(&[1.0; 6], (3, 2))?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async {
            let there = outer::on(&peer, columns.tensor(), rows.tensor(), matrix.tensor()).await?;
            sum(&there)
        })
        .await?;
    context.backward(&[&loss]).await?;
    let gradients = context.gradients([&columns, &rows, &matrix]);
    let gradients: Option<Vec<_>> = gradients.into_iter().collect();
    let gradients = gradients.context("all have gradients")?;
    assert_eq!(elements(&gradients[0])?, [9.0; 3]);
    assert_eq!(elements(&gradients[1])?, [6.0; 2]);
    assert_eq!(elements(&gradients[2])?, [4.0, 5.0, 8.0, 10.0, 12.0, 15.0]);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

#[farref::remote]
fn three_of(a: Tensor, b: Tensor) -> Result<(Tensor, Tensor, Tensor), Error> {
    let product = Tensor::from((&*a * &*b)?);
    Ok((add(a.clone(), b)?, product, a))
}

/// A2, E4: PyTorch hangs here.
#[tokio::test]
async fn a2_results_that_the_loss_does_not_use_hold_nothing_up() -> Result<()> {
    let group = Group::start(3).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peers = [group.peer(1)?, group.peer(2)?];
    let (loss, unused) = context
        .run(async {
            let mut unused = Vec::new();
            for peer in &peers {
                unused.push(multiply::on(peer, a.tensor(), b.tensor()).await?);
                // Its argument has been received and comes to nothing.
                unused.push(add::on(peer, unused[0].clone(), a.tensor()).await?);
            }
            let (_, product, _) = three_of::on(&peers[0], a.tensor(), b.tensor()).await?;
            anyhow::Ok((sum(&product)?, unused))
        })
        .await?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    drop((loss, unused));
    context.release().await?;
    group.finish(3).await
}

/// A call whose answer never comes, because it fails or is cancelled, is unused as well.
#[tokio::test]
async fn a2_calls_that_fail_or_are_cancelled_hold_nothing_up() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async {
            let wrong = Tensor::from(a.tensor().flatten_all()?);
            ensure!(add::on(&peer, wrong, b.tensor()).await.is_err());
            drop(add::on(&peer, a.tensor(), b.tensor()).start());
            // Built, and never sent.
            drop(add::on(&peer, a.tensor(), b.tensor()));
            sum(&add::on(&peer, a.tensor(), b.tensor()).await?)
        })
        .await?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, [1.0; 4]);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

#[tokio::test]
async fn a1_tensors_without_gradients_leave_no_record() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let data = context
        .run(async { add::on(&peer, a.value(), b.value()).await })
        .await?;
    ensure!(!data.requires_grad());
    for counts in group.counts(0..2) {
        assert_eq!((counts.sends, counts.recvs), (0, 0));
    }
    let refused = context.backward(&[&sum(&data)?]).await;
    ensure!(matches!(refused, Err(Error::NotALoss(_))), "{refused:?}");
    // One of both.
    let loss = context
        .run(async { sum(&multiply::on(&peer, a.tensor(), b.value()).await?) })
        .await?;
    context.backward(&[&loss]).await?;
    ensure!(context.gradient(&b).is_none());
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    let refused = context.backward(&[&a.tensor()]).await;
    ensure!(matches!(refused, Err(Error::NotALoss(_))), "{refused:?}");
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

#[tokio::test]
async fn a1_several_losses_count_as_their_sum() -> Result<()> {
    let group = Group::start(3).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peers = [group.peer(1)?, group.peer(2)?];
    let losses = context
        .run(async {
            let one = sum(&add::on(&peers[0], a.tensor(), b.tensor()).await?)?;
            let other = sum(&multiply::on(&peers[1], a.tensor(), b.tensor()).await?)?;
            anyhow::Ok([one, other])
        })
        .await?;
    context.backward(&[&losses[0], &losses[1]]).await?;
    let expected = (b.value().affine(1.0, 1.0))?;
    assert_eq!(gradient(&context, &a)?, elements(&expected)?);
    drop(losses);
    context.release().await?;
    group.finish(3).await
}

/// E5, A3: the release reaches workers that only nested calls reached, and waits for running ones.
#[tokio::test]
async fn a3_a_released_context_is_gone_on_every_worker() -> Result<()> {
    let group = Group::start(4).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let route = vec!["worker2".to_owned(), "worker3".to_owned()];
    let kept = context
        .run(async { relay::on(&peer, route, a.tensor(), b.tensor()).await })
        .await?;
    for counts in group.counts(0..4) {
        ensure!(counts.contexts == 1 && counts.recvs > 0, "{counts:?}");
    }
    context.release().await?;
    // What came back is still there, as data.
    assert_eq!(elements(&kept)?, elements(&(&*a.value() + &*b.value())?)?);
    group.finish(4).await
}

#[tokio::test]
async fn a3_a_context_that_is_dropped_is_released() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let handle = context.handle();
    let pending = context.enter(|| add::on(&peer, a.tensor(), b.tensor()).start());
    drop(context);
    // E5: the call that is under way finds its context; what comes after does not.
    pending.await?;
    eventually("the context is released", || {
        drop(handle.enter(|| add::on(&peer, a.tensor(), b.tensor()).start()));
        group.counts(0..2).iter().all(|counts| counts.contexts == 0)
    })
    .await?;
    let refused = handle
        .run(async { add::on(&peer, a.tensor(), b.tensor()).await })
        .await;
    ensure!(
        matches!(refused, Err(farref::Error::ContextReleased)),
        "{refused:?}"
    );
    let refused = handle.backward(&[&sum(&a.tensor())?]).await;
    let released = matches!(refused, Err(Error::Farref(farref::Error::ContextReleased)));
    ensure!(released, "{refused:?}");
    group.finish(2).await
}

/// Can be run forward, not backward.
struct OneWay;

impl candle::CustomOp1 for OneWay {
    fn name(&self) -> &'static str {
        "one-way"
    }

    fn cpu_fwd(
        &self,
        storage: &candle::CpuStorage,
        layout: &candle::Layout,
    ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }
}

#[farref::remote]
async fn fail_backward(x: Tensor) -> Result<Tensor, Error> {
    Ok(x.apply_op1(OneWay)?.into())
}

#[tokio::test]
async fn f4_an_error_in_the_pass_reaches_the_root_with_its_worker() -> Result<()> {
    let group = Group::start(3).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peers = [group.peer(1)?, group.peer(2)?];
    let loss = context
        .run(async {
            let bad = fail_backward::on(&peers[1], a.tensor()).await?;
            sum(&multiply::on(&peers[0], bad, b.tensor()).await?)
        })
        .await?;
    let failed = context.backward(&[&loss]).await;
    let Err(Error::Backward(failure)) = failed else {
        anyhow::bail!("{failed:?}");
    };
    assert_eq!(failure.worker, "worker2");
    ensure!(failure.to_string().contains("one-way"), "{failure}");
    drop(loss);
    context.release().await?;
    group.finish(3).await
}

/// Panics when it is run backward.
struct Panics;

impl candle::CustomOp1 for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }

    fn cpu_fwd(
        &self,
        storage: &candle::CpuStorage,
        layout: &candle::Layout,
    ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &candle::Tensor,
        _: &candle::Tensor,
        _: &candle::Tensor,
    ) -> candle::Result<Option<candle::Tensor>> {
        panic!("on the way back")
    }
}

#[farref::remote]
async fn panic_backward(x: Tensor) -> Result<Tensor, Error> {
    Ok(x.apply_op1(Panics)?.into())
}

/// Whether the task runs the graph that waits for it, or a thread does because it is large.
#[tokio::test]
async fn f4_a_panic_in_the_pass_reaches_the_root_with_its_worker() -> Result<()> {
    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    for elements in [1, 100_000] {
        let a = parameter(&vec![1.0; elements], elements)?;
        let context = Context::new(group.worker(0))?;
        let loss = context
            .run(async { sum(&panic_backward::on(&peer, a.tensor()).await?) })
            .await?;
        let failed = context.backward(&[&loss]).await;
        let Err(Error::Backward(failure)) = failed else {
            anyhow::bail!("{failed:?}");
        };
        assert_eq!(failure.worker, "worker1");
        ensure!(failure.to_string().contains("on the way back"), "{failure}");
        drop(loss);
        context.release().await?;
    }
    group.finish(2).await
}

/// Calls somebody when it is run backward, and waits.
struct Waits(farref::Peer);

impl candle::CustomOp1 for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn cpu_fwd(
        &self,
        storage: &candle::CpuStorage,
        layout: &candle::Layout,
    ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &candle::Tensor,
        _: &candle::Tensor,
        gradient: &candle::Tensor,
    ) -> candle::Result<Option<candle::Tensor>> {
        let there = twice::on(&self.0, Tensor::from(gradient.clone())).wait();
        Ok(Some(there.map_err(candle::Error::wrap)?.into_candle()))
    }
}

#[farref::remote]
async fn twice(x: Tensor) -> Result<Tensor, Error> {
    Ok((&*x * 2.0)?.into())
}

/// Whatever graphs have taken little before: one with an operation that waits is run where that may be.
#[tokio::test(flavor = "multi_thread")]
async fn a1_an_operation_may_wait_for_a_call_when_it_is_run_backward() -> Result<()> {
    let group = Group::start(2).await?;
    let a = parameter(&[3.0], 1)?;
    for round in 0..20 {
        let context = Context::new(group.worker(0))?;
        let x = a.tensor();
        let (scaled, factor) = match round % 4 {
            3 => (x.apply_op1(Waits(group.peer(1)?))?, 2.0),
            _ => (x.affine(4.0, 0.0)?, 4.0),
        };
        let loss = sum(&scaled.into())?;
        context.backward(&[&loss]).await?;
        assert_eq!(gradient(&context, &a)?, [factor]);
        drop(loss);
        context.release().await?;
    }
    group.finish(2).await
}

#[tokio::test]
async fn f2_a_worker_that_dies_fails_the_contexts_it_took_part_in() -> Result<()> {
    let group = Group::start(3).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let untouched = Context::new(group.worker(0))?;
    let peers = [group.peer(1)?, group.peer(2)?];
    let loss = context
        .run(async { sum(&multiply::on(&peers[1], a.tensor(), b.tensor()).await?) })
        .await?;
    let fine = untouched
        .run(async { sum(&multiply::on(&peers[0], a.tensor(), b.tensor()).await?) })
        .await?;
    group.cluster.crash(2).await;
    let failed = context.backward(&[&loss]).await;
    let Err(error) = &failed else {
        anyhow::bail!("{failed:?}");
    };
    ensure!(error.to_string().contains("worker2"), "{error}");
    untouched.backward(&[&fine]).await?;
    ensure!(untouched.gradient(&a).is_some());
    drop((loss, fine));
    context.release().await?;
    untouched.release().await?;
    group.finish(2).await
}

/// The graph is kept if asked for, and gradients add up in the context.
#[tokio::test]
async fn a4_a_context_can_be_run_backward_a_thousand_times() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&multiply::on(&peer, a.tensor(), b.tensor()).await?) })
        .await?;
    for _ in 0..1000 {
        context.backward(&[&loss]).retain_graph().await?;
    }
    let expected = (&*b.value() * 1000.0)?;
    assert_eq!(gradient(&context, &a)?, elements(&expected)?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

#[tokio::test]
async fn a4_a_graph_that_was_not_kept_cannot_be_run_again() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&multiply::on(&peer, a.tensor(), b.tensor()).await?) })
        .await?;
    context.backward(&[&loss]).await?;
    for counts in group.counts(0..2) {
        assert_eq!((counts.sends, counts.recvs), (0, 0), "freed");
    }
    let again = context.backward(&[&loss]).await;
    let Err(Error::Backward(failure)) = again else {
        anyhow::bail!("{again:?}");
    };
    ensure!(failure.to_string().contains("retain_graph"), "{failure}");
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// A4: any number of contexts at once, on one parameter, each with gradients of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a4_a_thousand_contexts_at_once_on_one_parameter() -> Result<()> {
    let group = Group::start(3).await?;
    let weight = parameter(&[2.0, 3.0], 2)?;
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..1000_u32 {
        let context = Context::new(group.worker(0))?;
        let peer = group.peer(1 + index as usize % 2)?;
        let weight = weight.clone();
        tasks.spawn(async move {
            let factor = Tensor::from_vec(vec![f64::from(index); 2], 2)?;
            let loss = context
                .run(async { sum(&multiply::on(&peer, weight.tensor(), factor).await?) })
                .await?;
            context.backward(&[&loss]).await?;
            let gradient = context.gradient(&weight).context("of the weight")?;
            assert_eq!(elements(&gradient)?, [f64::from(index); 2]);
            context.release().await?;
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    group.finish(3).await
}

#[tokio::test]
async fn a4_hooks_see_the_final_gradient_once_per_pass() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&calls);
    a.on_gradient(move |gradient| {
        counter.fetch_add(1, Ordering::Relaxed);
        Ok((&*gradient * 10.0)?.into())
    });
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async {
            // Its gradient has several parts, which arrive one after the other.
            let one = add::on(&peer, a.tensor(), b.tensor()).await?;
            let other = add::on(&peer, a.tensor(), one.clone()).await?;
            sum(&Tensor::from((&*one + &*other)?))
        })
        .await?;
    context.backward(&[&loss]).retain_graph().await?;
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(gradient(&context, &a)?, [30.0; 4]);
    context.backward(&[&loss]).await?;
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    assert_eq!(gradient(&context, &a)?, [60.0; 4]);
    a.on_gradient(|_| Err(Error::NoContext));
    let loss = context.enter(|| sum(&a.tensor()))?;
    let failed = context.backward(&[&loss]).await;
    ensure!(matches!(failed, Err(Error::Backward(_))), "{failed:?}");
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// The loss may be anywhere.
#[tokio::test]
async fn a1_a_remote_loss_is_run_backward_where_it_is() -> Result<()> {
    #[farref::remote]
    fn loss_of(a: Tensor, b: Tensor) -> Result<Tensor, Error> {
        Ok((&*a * &*b)?.sum_all()?.into())
    }

    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss: RRef<Tensor> = context.enter(|| loss_of::on(&peer, a.tensor(), b.tensor()).remote());
    loss.backward(&context).await?;
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// PA-1: a step that another context makes does not change what this one saw.
#[tokio::test]
async fn a1_a_parameter_that_is_replaced_does_not_change_gradients() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let before = b.value();
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&multiply::on(&peer, a.tensor(), b.tensor()).await?) })
        .await?;
    a.set(&common::ones((2, 2))?)?;
    b.set(&common::ones((2, 2))?)?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, elements(&before)?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// What was computed outside of the context counts as well, and finds its parameter after a step.
#[tokio::test]
async fn a1_what_was_computed_outside_of_the_context_has_gradients() -> Result<()> {
    let group = Group::start(1).await?;
    let (a, _) = two()?;
    let loss = Tensor::from(a.tensor().sqr()?.sum_all()?);
    let expected = (&*a.value() * 2.0)?;
    let context = Context::new(group.worker(0))?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, elements(&expected)?);
    a.set(&common::ones((2, 2))?)?;
    assert_eq!(gradient(&context, &a)?, elements(&expected)?);
    drop(loss);
    context.release().await?;
    group.finish(1).await
}

/// A worker may call itself.
#[tokio::test]
async fn a1_gradients_flow_through_calls_to_oneself() -> Result<()> {
    let group = Group::start(2).await?;
    let (a, b) = two()?;
    let context = Context::new(group.worker(0))?;
    let (me, other) = (group.worker(0).me(), group.peer(1)?);
    let loss = context
        .run(async {
            let here = multiply::on(&me, a.tensor(), b.tensor()).await?;
            let there = add::on(&other, here, a.tensor()).await?;
            let kept = add::on(&me, there, b.tensor()).remote();
            sum(&kept.to_here().await?)
        })
        .await?;
    context.backward(&[&loss]).await?;
    let expected = b.value().affine(1.0, 1.0)?;
    assert_eq!(gradient(&context, &a)?, elements(&expected)?);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}

/// Forward at once, backward after a while.
struct Slow(Duration);

impl candle::CustomOp1 for Slow {
    fn name(&self) -> &'static str {
        "slow"
    }

    fn cpu_fwd(
        &self,
        storage: &candle::CpuStorage,
        layout: &candle::Layout,
    ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
        Ok((storage.clone(), layout.shape().clone()))
    }

    fn bwd(
        &self,
        _: &candle::Tensor,
        _: &candle::Tensor,
        gradient: &candle::Tensor,
    ) -> candle::Result<Option<candle::Tensor>> {
        std::thread::sleep(self.0);
        Ok(Some(gradient.clone()))
    }
}

/// The callee's callee and so on is slow, `depth` times.
#[farref::remote]
async fn slow_chain(depth: u32, pause: Duration, x: Tensor) -> Result<Tensor, Error> {
    let x = Tensor::from(x.apply_op1(Slow(pause))?);
    if depth == 0 {
        return Ok(x);
    }
    let me = Worker::current().ok_or(Error::NoContext)?;
    let peer = me.peer(&format!("worker{}", 1 + depth % 3))?;
    Ok(slow_chain::on(&peer, depth - 1, pause, x).await?)
}

/// A pass that gets on may take as long as it takes; the root hears of it from afar.
#[tokio::test]
async fn a1_a_long_pass_is_no_timeout_but_a_stuck_one_is() -> Result<()> {
    let group = Group::start(4).await?;
    let a = parameter(&[1.0], 1)?;
    let peer = group.peer(1)?;
    // A step is much shorter than the timeout, and all together are longer. What is stuck may be so for long.
    for (timeout, depth, pause, good) in [
        (Duration::from_secs(6), 8, Duration::from_millis(700), true),
        (Duration::from_millis(300), 0, Duration::from_secs(3), false),
    ] {
        let context = Context::new(group.worker(0))?;
        let loss = context
            .run(async { sum(&slow_chain::on(&peer, depth, pause, a.tensor()).await?) })
            .await?;
        let outcome = context.backward(&[&loss]).timeout(timeout).await;
        match (good, outcome) {
            (true, outcome) => outcome?,
            (false, Err(Error::Backward(failure))) => {
                ensure!(failure.to_string().contains("worker1"), "{failure}");
            }
            (false, other) => anyhow::bail!("{other:?}"),
        }
        drop(loss);
        context.release().await?;
    }
    group.finish(4).await
}

#[farref::remote]
async fn deep(x: Tensor, nodes: usize) -> Result<Tensor, Error> {
    let mut x = x.into_candle();
    for _ in 0..nodes {
        x = (x + 0.0)?;
    }
    Ok(x.into())
}

/// TG-1, TG-2: a graph is looked at by the task that waits for it if the last one had up to 1024 nodes, and run by it if one
/// of its size took little; else on a thread.
#[tokio::test]
async fn a1_small_and_large_graphs_by_turns_have_their_gradients() -> Result<()> {
    let group = Group::start(2).await?;
    let peer = group.peer(1)?;
    let once = [
        (1, 0),
        (1, 1021),
        (1, 1022),
        (1, 1023),
        (1, 1024),
        (1, 1025),
        (1, 20_000),
        (1, 1),
        (1, 30_000),
        (100_000, 3),
        (8, 2),
    ];
    let elements_and_nodes = once.into_iter().flat_map(|of_one_size| [of_one_size; 3]);
    for (elements, nodes) in elements_and_nodes {
        let a = parameter(&vec![1.0; elements], elements)?;
        let context = Context::new(group.worker(0))?;
        let loss = context
            .run(async { sum(&deep::on(&peer, a.tensor(), nodes).await?) })
            .await?;
        context.backward(&[&loss]).await?;
        assert_eq!(
            gradient(&context, &a)?,
            vec![1.0; elements],
            "{nodes} nodes"
        );
        drop(loss);
        context.release().await?;
    }
    group.finish(2).await
}

/// The graph of 100,000 nodes is looked at, run and dropped, on whatever thread.
#[tokio::test(flavor = "multi_thread")]
async fn a1_a_graph_may_be_deep() -> Result<()> {
    let group = Group::start(2).await?;
    let a = parameter(&[1.0], 1)?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&deep::on(&peer, a.tensor(), 100_000).await?) })
        .await?;
    context.backward(&[&loss]).await?;
    assert_eq!(gradient(&context, &a)?, [1.0]);
    drop(loss);
    context.release().await?;
    group.finish(2).await
}
