//! Passes together with an engine that is not this one: the carrier of worker 0 plays it, on behalf of
//! worker 1.

use std::sync::{Mutex, OnceLock};

use super::*;
use farref::context::NodeId;
use farref_autograd::engine::{Carrier, Cause, Delivery, ForSend, receive_gradients};
use farref_testkit::within;

/// A number whose way out is remembered: in which message it went.
#[derive(Clone, Debug)]
struct Tracked(Number, Arc<AtomicU64>);

impl Tracked {
    fn new(number: &Number) -> Self {
        Self(number.clone(), Arc::default())
    }

    fn message(&self) -> u64 {
        self.1.load(Ordering::SeqCst)
    }
}

impl Serialize for Tracked {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let link = record_send::<Tape>(&self.0);
        if let Some((number, _)) = link {
            self.1.store(number, Ordering::SeqCst);
        }
        (&self.0.0.data, true, link).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Tracked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(&Number::deserialize(deserializer)?))
    }
}

#[farref::remote]
async fn square(number: Tracked) -> Result<Number, common::Failed> {
    Ok(number.0.multiply(&number.0)?)
}

/// Only takes it.
#[farref::remote]
async fn take(number: Tracked) {
    drop(number);
}

fn leaf(data: &[f64]) -> Number {
    Number::new(data.to_vec(), Origin::Leaf)
}

fn constant(data: &[f64]) -> Number {
    Number::new(data.to_vec(), Origin::Constant)
}

/// What the other engine does with the gradients that it gets: it says what to send back.
type Answers = Box<dyn Fn(&[ForSend<Number>]) -> Vec<ForSend<Number>> + Send + Sync>;

/// The other engine.
struct Other {
    answers: Answers,
    /// What it was told, and how many passes worker 0 had at that time.
    told: Mutex<Vec<(Vec<ForSend<Number>>, usize)>>,
    /// On whose behalf.
    who: OnceLock<NodeId>,
}

impl Other {
    fn new(
        answers: impl Fn(&[ForSend<Number>]) -> Vec<ForSend<Number>> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            answers: Box::new(answers),
            told: Mutex::default(),
            who: OnceLock::new(),
        })
    }
}

impl Carrier<Tape> for Other {
    fn deliver(&self, scope: &ContextScope, to: &Peer, parcel: Parcel<Number>) -> Delivery {
        assert_eq!(to.name(), "worker1");
        let scope = scope.clone();
        let from = *self.who.get().expect("it is set at the start");
        let answers = (self.answers)(&parcel.gradients);
        let passes = Engine::<Tape>::of(&scope.worker()).counts().passes;
        self.told.lock().unwrap().push((parcel.gradients, passes));
        Box::pin(async move {
            for gradients in answers {
                let taken =
                    receive_gradients::<Tape>(&scope, from, gradients, parcel.retain_graph).await;
                if let Err(failure) = taken {
                    return Ok(Receipt {
                        failure: Some(failure),
                        ..Receipt::default()
                    });
                }
            }
            Ok(Receipt::default())
        })
    }
}

/// Two workers; the first one's parcels go by another engine's wire.
struct Pair {
    cluster: Cluster,
    scope: ContextScope,
    there: Peer,
}

impl Pair {
    async fn start(other: Arc<Other>) -> Result<Self> {
        let cluster = Cluster::start(2).await?;
        let me = cluster.worker(0);
        let _ = other.who.set(cluster.worker(1).node());
        Engine::<Tape>::of(me).carry_by(other);
        let scope = ContextScope::open(me)?;
        let there = me.peer("worker1")?;
        Ok(Self {
            cluster,
            scope,
            there,
        })
    }

    fn counts(&self) -> Counts {
        Engine::<Tape>::of(self.cluster.worker(0)).counts()
    }

    /// Sends a number away, as if into the other engine's graph.
    async fn send(&self, number: &Number) -> Result<u64> {
        let tracked = Tracked::new(number);
        let call = self
            .scope
            .enter(|| take::on(&self.there, tracked.clone()).start());
        call.await?;
        Ok(tracked.message())
    }

    /// The other engine's gradients come.
    async fn gradients(
        &self,
        message: u64,
        gradients: &[Option<&[f64]>],
        retain_graph: bool,
    ) -> Result<(), Cause> {
        let gradients = gradients.iter().map(|data| data.map(constant)).collect();
        let from = self.cluster.worker(1).node();
        receive_gradients::<Tape>(&self.scope, from, (message, gradients), retain_graph)
            .await
            .map_err(|failure| failure.cause)
    }

    fn gradient(&self, leaf: &Number) -> Option<Vec<f64>> {
        engine::gradient::<Tape>(&self.scope, None, &[leaf.0.id]).map(|found| found.0.data.clone())
    }

    async fn backward(&self, loss: &Number, retain_graph: bool) -> Result<()> {
        let one = constant(&vec![1.0; loss.0.data.len()]);
        let roots = vec![(loss.clone(), one)];
        let pass = engine::backward::<Tape>(&self.scope, roots, retain_graph, None);
        Ok(within("the pass", pass).await??)
    }

    /// EN-5: nothing is left when the context closes.
    async fn finish(self) -> Result<()> {
        self.scope.release().await?;
        eventually("engines are empty", || {
            let counts = |index| Engine::<Tape>::of(self.cluster.worker(index)).counts();
            (0..2).all(|index| counts(index) == Counts::default())
        })
        .await?;
        let late = self.gradients(0, &[Some(&[1.0])], false).await;
        assert_eq!(late, Err(Cause::Released));
        assert_eq!(
            self.counts(),
            Counts::default(),
            "a late one leaves nothing"
        );
        self.cluster.shutdown().await?;
        Ok(())
    }
}

/// loss = (x * x)², the inner square over there: gradients go out and come back in one pass.
#[tokio::test]
async fn gradients_from_outside_join_the_pass_that_this_worker_began() -> Result<()> {
    let x = leaf(&[2.0, 3.0]);
    let tracked = Tracked::new(&x);
    let message = Arc::clone(&tracked.1);
    let at = x.clone();
    let other = Other::new(move |told| {
        let of_square = |data: &Vec<f64>| -> Vec<f64> {
            let pairs = data.iter().zip(&at.0.data);
            pairs.map(|(gradient, x)| gradient * 2.0 * x).collect()
        };
        let back = told.iter().map(|(_, gradients)| {
            let gradient = gradients[0]
                .as_ref()
                .map(|sum| constant(&of_square(&sum.0.data)));
            (message.load(Ordering::SeqCst), vec![gradient])
        });
        back.collect()
    });
    let pair = Pair::start(Arc::clone(&other)).await?;
    let call = pair
        .scope
        .enter(|| square::on(&pair.there, tracked).start());
    let y = call.await?;
    let loss = y.multiply(&y)?;
    for pass in 1..=2 {
        pair.backward(&loss, pass == 1).await?;
        // 4 x³, once for each pass.
        let expected = [32.0, 108.0].map(|gradient| gradient * f64::from(pass));
        assert_eq!(pair.gradient(&x).as_deref(), Some(&expected[..]));
    }
    let told = std::mem::take(&mut *other.told.lock().unwrap());
    for (gradients, passes) in &told {
        let [(_, gradients)] = &gradients[..] else {
            panic!("{gradients:?}")
        };
        assert_eq!(gradients[0].as_ref().unwrap().0.data, [8.0, 18.0]);
        assert_eq!(*passes, 1, "there is no other pass beside it");
    }
    assert_eq!(
        told.len(),
        2,
        "nobody is told that there is nothing to tell"
    );
    let counts = pair.counts();
    assert_eq!((counts.sends, counts.recvs), (0, 0), "the second freed it");
    pair.finish().await
}

/// x goes there, and nothing comes back for it, because the loss does not depend on what became of it there.
#[tokio::test]
async fn what_has_got_no_gradients_when_the_own_pass_is_at_rest_gets_none() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let [x, w] = [leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0])];
    pair.send(&x).await?;
    pair.send(&w.tanh()?).await?;
    let loss = x.multiply(&x)?;
    pair.backward(&loss, false).await?;
    assert_eq!(pair.gradient(&x), Some(vec![4.0, 6.0]));
    assert_eq!(pair.gradient(&w), None);
    assert_eq!(
        pair.counts().sends,
        2,
        "nothing came for them: another loss may need them"
    );
    pair.finish().await
}

/// The other side's pass: as many messages as it knows of, each once.
#[tokio::test]
async fn gradients_without_an_own_pass_belong_to_one_of_elsewhere() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let x = leaf(&[2.0, 3.0]);
    let [first, second] = [pair.send(&x.multiply(&x)?).await?, pair.send(&x).await?];
    pair.gradients(first, &[Some(&[1.0, 1.0])], false).await?;
    assert_eq!(pair.gradient(&x), None, "the other message is awaited");
    assert_eq!(pair.counts().passes, 1);
    pair.gradients(second, &[Some(&[10.0, 10.0])], false)
        .await?;
    assert_eq!(pair.gradient(&x), Some(vec![14.0, 16.0]), "2 x + 10");
    assert_eq!((pair.counts().passes, pair.counts().sends), (1, 0));
    // It has not retained the graph.
    let again = pair.gradients(first, &[Some(&[1.0, 1.0])], false).await;
    assert_eq!(again, Err(Cause::GraphFreed));
    pair.finish().await
}

/// A leaf that only one message reaches has its gradient when that message's have come; the other message may
/// have nothing to do with the loss.
#[tokio::test]
async fn a_leaf_does_not_wait_for_messages_that_it_did_not_go_into() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let [x, w] = [leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0])];
    let used = pair.send(&x.multiply(&x)?).await?;
    pair.send(&w).await?;
    pair.gradients(used, &[Some(&[1.0, 1.0])], false).await?;
    assert_eq!(pair.gradient(&x), Some(vec![4.0, 6.0]));
    assert_eq!(pair.gradient(&w), None);
    pair.finish().await
}

#[tokio::test]
async fn a_repeated_message_begins_the_next_pass_of_elsewhere() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let [x, w] = [leaf(&[2.0, 3.0]), leaf(&[5.0, 7.0])];
    let [first, second] = [pair.send(&x).await?, pair.send(&w).await?];
    for pass in 1..=3 {
        pair.gradients(first, &[Some(&[1.0, 2.0])], true).await?;
        pair.gradients(second, &[Some(&[4.0, 4.0])], true).await?;
        let times = |data: [f64; 2]| Some(data.map(|one| one * f64::from(pass)).to_vec());
        assert_eq!(pair.gradient(&x), times([1.0, 2.0]));
        assert_eq!(pair.gradient(&w), times([4.0, 4.0]));
        assert_eq!(pair.counts().passes, 1, "those before are over");
    }
    // A message that went out since is not one that the pass knows.
    let v = leaf(&[1.0, 1.0]);
    let third = pair.send(&v).await?;
    pair.gradients(third, &[Some(&[9.0, 9.0])], true).await?;
    assert_eq!(pair.gradient(&v), Some(vec![9.0, 9.0]));
    pair.gradients(first, &[Some(&[1.0, 2.0])], true).await?;
    assert_eq!(pair.gradient(&x), Some(vec![4.0, 8.0]));
    assert_eq!(pair.counts().passes, 1);
    pair.finish().await
}

#[tokio::test]
async fn gradients_of_a_message_that_was_never_sent_are_refused() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let x = leaf(&[2.0, 3.0]);
    let sent = pair.send(&x).await?;
    for never in [sent + 1, u64::MAX] {
        let refused = pair.gradients(never, &[Some(&[1.0, 1.0])], true).await;
        assert_eq!(refused, Err(Cause::GraphFreed));
    }
    assert_eq!(pair.counts().passes, 0, "no pass is begun by it");
    pair.gradients(sent, &[Some(&[1.0, 1.0])], true).await?;
    assert_eq!(pair.gradient(&x), Some(vec![1.0, 1.0]));
    pair.finish().await
}

/// Fewer or more gradients than there were tensors, and none where there might be one.
#[tokio::test]
async fn the_number_of_gradients_is_not_believed() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let x = leaf(&[2.0, 3.0]);
    let sent = pair.send(&x).await?;
    pair.gradients(sent, &[], true).await?;
    pair.gradients(sent, &[None, Some(&[7.0, 7.0])], true)
        .await?;
    assert_eq!(pair.gradient(&x), None);
    let too_many: [Option<&[f64]>; 3] = [Some(&[1.0, 1.0]), Some(&[5.0, 5.0]), None];
    pair.gradients(sent, &too_many, true).await?;
    assert_eq!(pair.gradient(&x), Some(vec![1.0, 1.0]));
    pair.finish().await
}

/// What the other engine has to complain about is what the own pass fails with.
#[tokio::test]
async fn a_failure_over_there_fails_the_own_pass() -> Result<()> {
    let other = Other::new(|_| vec![(77, vec![None])]);
    let pair = Pair::start(other).await?;
    let x = leaf(&[2.0, 3.0]);
    let call = pair
        .scope
        .enter(|| square::on(&pair.there, Tracked::new(&x)).start());
    let y = call.await?;
    let failed = pair.backward(&y, false).await.unwrap_err();
    assert!(failed.to_string().contains("freed the graph"), "{failed}");
    pair.finish().await
}

/// On a wire that names no passes, those of one context take turns: each gradient belongs to one.
#[tokio::test(flavor = "multi_thread")]
async fn own_passes_side_by_side_add_up() -> Result<()> {
    let x = leaf(&[2.0, 3.0]);
    let tracked = Tracked::new(&x);
    let message = Arc::clone(&tracked.1);
    let other = Other::new(move |told| {
        let back = told.iter().map(|(_, gradients)| {
            let gradient = gradients[0].as_ref().map(|sum| constant(&sum.0.data));
            (message.load(Ordering::SeqCst), vec![gradient])
        });
        back.collect()
    });
    let pair = Pair::start(Arc::clone(&other)).await?;
    let call = pair
        .scope
        .enter(|| square::on(&pair.there, tracked).start());
    let y = call.await?;
    for round in 1..=50 {
        let (one, other) = tokio::join!(pair.backward(&y, true), pair.backward(&y, true));
        one?;
        other?;
        let expected = vec![2.0 * f64::from(round); 2];
        assert_eq!(pair.gradient(&x), Some(expected));
    }
    pair.finish().await
}

/// EN-6: a pass of elsewhere that is over has what came for it, though it was not all that could have come.
#[tokio::test]
async fn the_end_of_a_pass_of_elsewhere_loses_no_gradient() -> Result<()> {
    let pair = Pair::start(Other::new(|_| Vec::new())).await?;
    let x = leaf(&[2.0, 3.0]);
    let [first, _] = [pair.send(&x.multiply(&x)?).await?, pair.send(&x).await?];
    pair.gradients(first, &[Some(&[1.0, 1.0])], true).await?;
    assert_eq!(pair.gradient(&x), None, "the other message is awaited");
    pair.gradients(first, &[Some(&[1.0, 1.0])], true).await?;
    assert_eq!(pair.gradient(&x), Some(vec![4.0, 6.0]), "2 x, of the first");
    assert_eq!(pair.counts().passes, 1);
    pair.finish().await
}
