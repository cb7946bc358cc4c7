//! Faults between the runtime and the wire: what becomes of passes and contexts when messages are late, are lost or come
//! twice (`farref`'s `tests/laws/seam.rs` is the same for calls and references).

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farref::agent::Message;
use farref::{Error as CallError, Worker};
use farref_autograd::engine::{Cause, Counts, Engine};
use farref_autograd::{Candle, Context, Error, Parameter, Tensor};
use farref_testkit::{eventually, within};

use crate::channels::{
    self, Fate, Fates, delayed, end_in_time, give_up, is_answer, is_call, tampered as group,
};
use crate::common::{elements, parameter};

/// So long may what is lost be waited for.
const SHORT: Duration = Duration::from_millis(100);

#[farref::remote(name = "seam::multiply")]
fn multiply(a: Tensor, b: Tensor) -> Result<Tensor, Error> {
    Ok((&*a * &*b)?.into())
}

fn two() -> Result<(Parameter, Parameter)> {
    Ok((
        parameter(&[1.0, -2.0, 3.0], 3)?,
        parameter(&[0.25, 4.0, -1.0], 3)?,
    ))
}

async fn loss(
    context: &Context,
    peer: &farref::Peer,
    a: &Parameter,
    b: &Parameter,
) -> Result<Tensor> {
    let product = context.run(multiply::on(peer, a.tensor(), b.tensor()).into_future());
    Ok(product.await?.sum_all()?.into())
}

fn gradient(context: &Context, of: &Parameter) -> Result<Vec<f64>> {
    let gradient = context.gradient(of).context("a gradient")?;
    elements(&gradient)
}

async fn engines_are_empty(workers: &[Worker; 2]) -> Result<()> {
    let is_empty = |worker| Engine::<Candle>::of(worker).counts() == Counts::default();
    eventually("engines are empty", || workers.iter().all(is_empty)).await
}

/// A1, A3: whatever is late.
#[tokio::test]
async fn gradients_and_releases_that_are_late_are_those_of_one_process_and_arrive() -> Result<()> {
    for which in [is_call, is_answer, |_: &Message| true] {
        let fates = [Fates::default(), Fates::default()];
        let workers = delayed([&fates[0], &fates[1]]).await?;
        for fates in &fates {
            fates.all(which, Fate::Late(SHORT / 10));
        }
        let peer = workers[0].peer("w1")?;
        let (a, b) = two()?;
        let context = Context::new(&workers[0])?;
        let loss = loss(&context, &peer, &a, &b).await?;
        context.backward(&[&loss]).await?;
        assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
        assert_eq!(gradient(&context, &b)?, elements(&a.value())?);
        drop(loss);
        context.release().await?;
        engines_are_empty(&workers).await?;
        channels::end(workers).await?;
    }
    Ok(())
}

/// A2: a call whose answer is lost holds up no pass that does not use it.
#[tokio::test]
async fn a_call_whose_answer_is_lost_holds_up_no_pass() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&Fates::default(), &fates]).await?;
    let peer = workers[0].peer("w1")?;
    let (a, b) = two()?;
    let context = Context::new(&workers[0])?;
    fates.next(is_answer, Fate::Lose);
    let lost = context.run(
        multiply::on(&peer, a.tensor(), b.tensor())
            .timeout(SHORT)
            .into_future(),
    );
    let lost = lost.await;
    ensure!(matches!(lost, Err(CallError::Timeout { .. })), "{lost:?}");
    eventually("its answer is lost", || fates.is_empty()).await?;
    let loss = loss(&context, &peer, &a, &b).await?;
    within("the pass", context.backward(&[&loss])).await??;
    assert_eq!(gradient(&context, &a)?, elements(&b.value())?);
    drop(loss);
    context.release().await?;
    engines_are_empty(&workers).await?;
    end_in_time(workers).await
}

/// A2, A3: gradients that are lost fail their pass in its time. The call that they were in is not over before its peer is; then the
/// context is released.
#[tokio::test]
async fn a_pass_whose_gradients_are_lost_fails_in_its_time() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    let [a_worker, b_worker] = group([&fates[0], &fates[1]]).await?;
    let peer = a_worker.peer("w1")?;
    let (a, b) = two()?;
    let context = Context::new(&a_worker)?;
    let loss = loss(&context, &peer, &a, &b).await?;
    fates[0].next(is_call, Fate::Lose);
    let failed = within("the pass", context.backward(&[&loss]).timeout(SHORT)).await?;
    match &failed {
        Err(Error::Backward(failure)) => {
            ensure!(
                matches!(failure.cause, Cause::NoProgress { .. }),
                "{failed:?}"
            );
        }
        other => anyhow::bail!("{other:?}"),
    }
    drop(loss);
    let releasing = context.release();
    give_up([&fates[0], &fates[1]])?;
    within("the release", releasing).await??;
    let is_empty = || Engine::<Candle>::of(&a_worker).counts() == Counts::default();
    eventually("the engine is empty", is_empty).await?;
    b_worker.crash().await;
    within("the shutdown", a_worker.shutdown()).await??;
    Ok(())
}

/// D1, A1: gradients that come twice, which no correct wire lets happen, are not added twice: they come in a call. Whoever says a
/// thing twice may be cut off, and then the pass fails; what there is of gradients is right all the same.
#[tokio::test]
async fn gradients_that_come_twice_are_not_added_twice() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    let workers = group([&fates[0], &fates[1]]).await?;
    let peer = workers[0].peer("w1")?;
    let (a, b) = two()?;
    let context = Context::new(&workers[0])?;
    let loss = loss(&context, &peer, &a, &b).await?;
    fates[1].next(is_call, Fate::Twice);
    let passed = within("the pass", context.backward(&[&loss])).await?;
    ensure!(fates[1].is_empty(), "nothing came twice");
    match &passed {
        Ok(()) => ensure!(context.gradient(&a).is_some() && context.gradient(&b).is_some()),
        Err(Error::Backward(_)) => {}
        Err(other) => anyhow::bail!("{other:?}"),
    }
    for (of, right) in [(&a, &b), (&b, &a)] {
        if let Some(gradient) = context.gradient(of) {
            assert_eq!(
                elements(&gradient)?,
                elements(&right.value())?,
                "{passed:?}"
            );
        }
    }
    drop(loss);
    let _released = within("the release", context.release()).await?;
    end_in_time(workers).await
}
