//! A4: several passes of one context, one after the other and side by side: what they leave, what they free,
//! what they refuse.

use std::sync::{Condvar, Mutex, OnceLock};
use std::time::Duration;

use crate::common::{Group, elements, parameter};
use anyhow::{Context as _, Result, ensure};
use farref::{RRef, Worker};
use farref_autograd::engine::Cause;
use farref_autograd::{Context, Error, Parameter, Tensor};
use serde::{Deserialize, Serialize, Serializer};

/// A far layer: one weight for every element.
struct Layer {
    weight: Parameter,
}

#[farref::remote]
impl Layer {
    #[remote]
    fn new(weight: Vec<f64>) -> Result<Self, Error> {
        let length = weight.len();
        let weight = Parameter::new(&*Tensor::from_vec(weight, length)?)?;
        Ok(Self { weight })
    }

    #[remote]
    fn forward(&self, x: Tensor) -> Result<Tensor, Error> {
        Ok((&*x * &*self.weight.tensor())?.into())
    }

    /// The same, but the answer is not sent before the gate opens.
    #[remote]
    fn forward_gated(&self, x: Tensor) -> Result<(Tensor, Gated), Error> {
        Ok((self.forward(x)?, Gated))
    }

    #[remote]
    fn gradient(&self) -> Result<Option<Vec<f64>>, Error> {
        let context = Context::current().ok_or(Error::NoContext)?;
        let gradient = context.gradient(&self.weight);
        Ok(gradient.map(|gradient| gradient.to_vec1()).transpose()?)
    }
}

/// Something that is written once the gate is open.
#[derive(Debug, Deserialize)]
struct Gated;

struct Gate {
    /// Whether something waits, and whether it need not.
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

static GATE: Gate = Gate {
    state: Mutex::new((false, false)),
    changed: Condvar::new(),
};

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 = true;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| !state.1).unwrap());
    }

    fn wait_for_somebody(&self) {
        let state = self.state.lock().unwrap();
        drop(self.changed.wait_while(state, |state| !state.0).unwrap());
    }

    fn open(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }

    fn close(&self) {
        *self.state.lock().unwrap() = (false, false);
    }
}

impl Serialize for Gated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        tokio::task::block_in_place(|| GATE.pass());
        serializer.serialize_unit_struct("Gated")
    }
}

fn sum(tensor: &Tensor) -> Result<Tensor> {
    Ok(tensor.sum_all()?.into())
}

async fn gradient_there(context: &Context, layer: &RRef<Layer>) -> Result<Vec<f64>> {
    let gradient = context.run(async { layer.gradient().await }).await?;
    gradient.context("there is no gradient")
}

fn gradient(context: &Context, parameter: &Parameter) -> Result<Vec<f64>> {
    let gradient = context.gradient(parameter);
    elements(&*gradient.context("there is no gradient")?)
}

/// The pass failed because another has freed what it needs.
fn ensure_freed(outcome: &Result<(), Error>) -> Result<()> {
    let freed =
        matches!(outcome, Err(Error::Backward(failure)) if failure.cause == Cause::GraphFreed);
    ensure!(freed, "{outcome:?}");
    Ok(())
}

/// A2 costs nothing here: who asks for gradients says what it has received, so nobody need ask back.
#[tokio::test(flavor = "multi_thread")]
async fn a2_a_pass_through_one_far_layer_is_one_parcel() -> Result<()> {
    let group = Group::start(2).await?;
    let layer = Layer::new_on(&group.peer(1)?, vec![2.0, 3.0]).remote();
    let x = Tensor::from_vec(vec![5.0, 7.0], 2)?;
    let served = |worker: usize| group.worker(worker).snapshot().totals.served;
    let context = Context::new(group.worker(0))?;
    let (loss, unused) = context
        .run(async {
            let loss = sum(&layer.forward(x.clone()).await?)?;
            let unused = layer.forward(x.clone()).await?;
            anyhow::Ok((loss, unused))
        })
        .await?;
    let before = [served(0), served(1)];
    context.backward(&[&loss]).await?;
    assert_eq!([served(0), served(1)], [before[0], before[1] + 1]);
    assert_eq!(gradient_there(&context, &layer).await?, [5.0, 7.0]);
    drop((loss, unused, layer));
    context.release().await?;
    group.finish(2).await
}

/// Micro-batches: two results of one far layer, each with a loss and a pass of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a4_two_passes_at_once_over_one_far_layer_both_count() -> Result<()> {
    let group = Group::start(2).await?;
    let layer = Layer::new_on(&group.peer(1)?, vec![2.0, 3.0]).remote();
    let x = parameter(&[5.0, 7.0], 2)?;
    for _ in 0..300 {
        let context = Context::new(group.worker(0))?;
        let (first, second) = context
            .run(async {
                let first = sum(&layer.forward(x.tensor()).await?)?;
                let second = sum(&layer.forward(x.tensor()).await?)?;
                anyhow::Ok((first, second))
            })
            .await?;
        let (one, other) = tokio::join!(async { context.backward(&[&first]).await }, async {
            context.backward(&[&second]).await
        });
        one?;
        other?;
        assert_eq!(gradient_there(&context, &layer).await?, [10.0, 14.0]);
        assert_eq!(gradient(&context, &x)?, [4.0, 6.0]);
        for counts in group.counts(0..2) {
            assert_eq!((counts.sends, counts.recvs), (0, 0), "both are freed");
        }
        drop((first, second));
        context.release().await?;
    }
    drop(layer);
    group.finish(2).await
}

/// The second answer is written, and not yet received, while the pass of the first runs: that pass knows of it
/// on one side only, must not wait for it, and must leave it alone. The layer is far, or here.
#[tokio::test(flavor = "multi_thread")]
async fn a4_an_answer_under_way_during_another_pass_keeps_its_gradient() -> Result<()> {
    let group = Group::start(2).await?;
    for owner in [1, 0] {
        GATE.close();
        let layer = Layer::new_on(&group.peer(owner)?, vec![2.0, 3.0]).remote();
        let x = parameter(&[5.0, 7.0], 2)?;
        let context = Context::new(group.worker(0))?;
        let first = context
            .run(async { sum(&layer.forward(x.tensor()).await?) })
            .await?;
        let under_way = context.enter(|| layer.forward_gated(x.tensor()).start());
        tokio::task::spawn_blocking(|| GATE.wait_for_somebody()).await?;
        context.backward(&[&first]).await?;
        assert_eq!(gradient_there(&context, &layer).await?, [5.0, 7.0]);
        assert_eq!(gradient(&context, &x)?, [2.0, 3.0]);
        GATE.open();
        let (second, Gated) = under_way.await?;
        let second = context.enter(|| sum(&second))?;
        context.backward(&[&second]).await?;
        assert_eq!(gradient_there(&context, &layer).await?, [10.0, 14.0]);
        assert_eq!(gradient(&context, &x)?, [4.0, 6.0]);
        drop((first, second, layer));
        context.release().await?;
    }
    group.finish(2).await
}

/// What another loss needs is still there after a pass that does not retain its graph.
#[tokio::test]
async fn a4_a_pass_frees_only_what_it_used() -> Result<()> {
    let group = Group::start(2).await?;
    let layer = Layer::new_on(&group.peer(1)?, vec![2.0, 3.0]).remote();
    let x = parameter(&[5.0, 7.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let losses = context
        .run(async {
            let mut losses = Vec::new();
            for _ in 0..3 {
                losses.push(sum(&layer.forward(x.tensor()).await?)?);
            }
            anyhow::Ok(losses)
        })
        .await?;
    for (index, loss) in losses.iter().enumerate() {
        for counts in group.counts(0..2) {
            assert_eq!((counts.sends, counts.recvs), (3 - index, 3 - index));
        }
        context.backward(&[loss]).await?;
        let times = index as f64 + 1.0;
        let expected = [5.0 * times, 7.0 * times];
        assert_eq!(gradient_there(&context, &layer).await?, expected);
        ensure_freed(&context.backward(&[loss]).await)?;
        assert_eq!(gradient_there(&context, &layer).await?, expected);
    }
    drop((losses, layer));
    context.release().await?;
    group.finish(2).await
}

/// The first pass reaches both workers and frees what it used there. The second one's own part is fresh, but
/// leads to what the first has freed, here and there.
#[tokio::test]
async fn a4_a_gradient_for_something_freed_is_an_error() -> Result<()> {
    let group = Group::start(3).await?;
    let layers = [1, 2].map(|index| {
        let peer = group.peer(index)?;
        anyhow::Ok(Layer::new_on(&peer, vec![2.0, 3.0]).remote())
    });
    let [near, far] = layers;
    let (near, far) = (near?, far?);
    let x = parameter(&[5.0, 7.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let (first, second, third) = context
        .run(async {
            let shared = near.forward(x.tensor()).await?;
            let first = sum(&far.forward(shared.clone()).await?)?;
            let second = sum(&far.forward(shared.clone()).await?)?;
            anyhow::Ok((first, second, sum(&shared)?))
        })
        .await?;
    context.backward(&[&first]).await?;
    let expected = [10.0, 21.0];
    assert_eq!(gradient_there(&context, &near).await?, expected);
    ensure_freed(&context.backward(&[&second]).await)?;
    ensure_freed(&context.backward(&[&third]).await)?;
    assert_eq!(gradient_there(&context, &near).await?, expected);
    drop((first, second, third, near, far));
    context.release().await?;
    group.finish(3).await
}

/// Calls another worker, which is all that the caller's gradients go through.
#[farref::remote]
async fn relay(to: String, layer: RRef<Layer>, x: Tensor) -> Result<Tensor, Error> {
    let me = Worker::current().ok_or(Error::NoContext)?;
    ensure_owner(&me, &to, &layer)?;
    Ok(layer.forward(x).await?)
}

fn ensure_owner(me: &Worker, to: &str, layer: &RRef<Layer>) -> Result<(), Error> {
    let (owner, expected) = (layer.owner()?, me.peer(to)?);
    match owner.name() == expected.name() {
        true => Ok(()),
        false => Err(Error::Invalid(format!("the layer is on {}", owner.name()))),
    }
}

/// Worker 2 only hears of the passes from worker 1, that they are over as well.
#[tokio::test(flavor = "multi_thread")]
async fn a4_a_context_can_be_run_backward_through_a_relay_any_number_of_times() -> Result<()> {
    const PASSES: u32 = 1100;
    let group = Group::start(3).await?;
    let layer = Layer::new_on(&group.peer(2)?, vec![2.0, 3.0]).remote();
    let x = parameter(&[5.0, 7.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async {
            let there = relay::on(&peer, "worker2".to_owned(), layer.clone(), x.tensor());
            sum(&there.await?)
        })
        .await?;
    for pass in 0..PASSES {
        let outcome = context.backward(&[&loss]).retain_graph().await;
        outcome.with_context(|| format!("pass {pass}"))?;
        for counts in group.counts(0..3) {
            ensure!(counts.passes <= 2, "those that are over go: {counts:?}");
        }
    }
    let expected = [5.0, 7.0].map(|one| one * f64::from(PASSES));
    assert_eq!(gradient_there(&context, &layer).await?, expected);
    drop((loss, layer));
    context.release().await?;
    group.finish(3).await
}

/// As long as there is: on the root's side and on that of the workers that are drawn in.
#[tokio::test]
async fn a4_a_pass_may_be_given_any_patience() -> Result<()> {
    let group = Group::start(2).await?;
    let layer = Layer::new_on(&group.peer(1)?, vec![2.0, 3.0]).remote();
    let x = parameter(&[5.0, 7.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let loss = context
        .run(async { sum(&layer.forward(x.tensor()).await?) })
        .await?;
    for patience in [Some(Duration::MAX), None, Some(Duration::MAX / 2)] {
        let pass = context.backward(&[&loss]).retain_graph().timeout(patience);
        pass.await?;
    }
    assert_eq!(gradient_there(&context, &layer).await?, [15.0, 21.0]);
    drop((loss, layer));
    context.release().await?;
    group.finish(2).await
}

/// Scales by a parameter of this test's own.
#[farref::remote]
async fn scale(x: Tensor) -> Result<Tensor, Error> {
    let weight = SCALE.get().ok_or(Error::NoContext)?;
    Ok((&*x * &*weight.tensor())?.into())
}

/// Has another worker do it.
#[farref::remote]
async fn have_scaled(x: Tensor, by: String) -> Result<Tensor, Error> {
    let me = Worker::current().ok_or(Error::NoContext)?;
    Ok(scale::on(&me.peer(&by)?, x).await?)
}

static SCALE: OnceLock<Parameter> = OnceLock::new();

/// DR-1: whoever waits for a pass drives it. When the program gives it up, the workers that it has drawn in, which wait
/// for each other, find an end all the same, and nothing is left of it.
#[tokio::test(flavor = "multi_thread")]
async fn a3_a_pass_that_is_given_up_half_way_leaves_nothing() -> Result<()> {
    let group = Group::start(3).await?;
    let weight = SCALE.get_or_init(|| parameter(&[2.0, 3.0], 2).expect("a parameter"));
    let (there, mut arrived) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    weight.on_gradient(move |gradient| {
        let _nobody_waits = there.send(());
        let _the_gate_is_gone = gate.lock().unwrap().recv();
        Ok(gradient)
    });
    let x = parameter(&[5.0, 7.0], 2)?;
    let context = Context::new(group.worker(0))?;
    let peer = group.peer(1)?;
    let loss = context
        .run(async { sum(&have_scaled::on(&peer, x.tensor(), "worker2".to_owned()).await?) })
        .await?;
    let mut pass = context.backward(&[&loss]);
    tokio::select! {
        outcome = &mut pass => anyhow::bail!("nobody has let it: {outcome:?}"),
        _ = arrived.recv() => {}
    }
    drop(pass);
    drop(go_on);
    let again = context.backward(&[&loss]).await;
    ensure!(!matches!(again, Err(Error::Farref(_))), "{again:?}");
    drop(loss);
    context.release().await?;
    group.finish(3).await
}
