//! The engine with another tensor library: a tape of a hundred lines. Parcels are held up at random, so
//! that gradients arrive in any order.

mod foreign;

use std::collections::{HashMap, HashSet};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::program::{self, Body, Caller, LENGTH, Parameters, Value, execute, random};
use anyhow::{Context as _, Result, ensure};
use farref::context::ContextScope;
use farref::testing::Cluster;
use farref::{Call, Peer, RRef, Worker};
use farref_autograd::engine::{
    self, Backend, Counts, Engine, Link, Parcel, PassId, Reach, Receipt, record_recv, record_send,
};
use farref_testkit::eventually;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A vector and where it came from.
#[derive(Clone, Debug)]
struct Number(Arc<Node>);

#[derive(Debug)]
struct Node {
    id: u64,
    data: Vec<f64>,
    origin: Origin,
}

#[derive(Debug)]
enum Origin {
    Constant,
    Leaf,
    Sum(Number, Number),
    Product(Number, Number),
    Tanh(Number),
}

impl Number {
    fn new(data: Vec<f64>, origin: Origin) -> Self {
        static IDS: AtomicU64 = AtomicU64::new(0);
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Node { id, data, origin }))
    }

    fn zip(&self, other: &Self, f: impl Fn(f64, f64) -> f64) -> Vec<f64> {
        let pairs = self.0.data.iter().zip(&other.0.data);
        pairs.map(|(&a, &b)| f(a, b)).collect()
    }

    fn needs_gradient(&self) -> bool {
        match &self.0.origin {
            Origin::Constant => false,
            Origin::Leaf => true,
            Origin::Sum(a, b) | Origin::Product(a, b) => a.needs_gradient() || b.needs_gradient(),
            Origin::Tanh(a) => a.needs_gradient(),
        }
    }

    /// Everything it was computed from, inputs first.
    fn nodes(&self, seen: &mut HashSet<u64>, nodes: &mut Vec<Self>) {
        if !seen.insert(self.0.id) {
            return;
        }
        match &self.0.origin {
            Origin::Constant | Origin::Leaf => {}
            Origin::Sum(a, b) | Origin::Product(a, b) => {
                a.nodes(seen, nodes);
                b.nodes(seen, nodes);
            }
            Origin::Tanh(a) => a.nodes(seen, nodes),
        }
        nodes.push(self.clone());
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let needs = self.needs_gradient();
        let link = needs.then(|| record_send::<Tape>(self)).flatten();
        (&self.0.data, needs, link).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (data, needs, link) = <(Vec<f64>, bool, Option<Link>)>::deserialize(deserializer)?;
        let origin = if needs {
            Origin::Leaf
        } else {
            Origin::Constant
        };
        let number = Self::new(data, origin);
        if let Some(link) = link {
            record_recv::<Tape>(link, number.0.id).map_err(serde::de::Error::custom)?;
        }
        Ok(number)
    }
}

impl Value for Number {
    type Parameter = Self;

    fn add(&self, other: &Self) -> Result<Self> {
        let data = self.zip(other, |a, b| a + b);
        Ok(Self::new(data, Origin::Sum(self.clone(), other.clone())))
    }

    fn multiply(&self, other: &Self) -> Result<Self> {
        let data = self.zip(other, |a, b| a * b);
        Ok(Self::new(
            data,
            Origin::Product(self.clone(), other.clone()),
        ))
    }

    fn tanh(&self) -> Result<Self> {
        let data = self.0.data.iter().map(|x| x.tanh()).collect();
        Ok(Self::new(data, Origin::Tanh(self.clone())))
    }

    fn parameter(parameter: &Self) -> Self {
        parameter.clone()
    }
}

#[derive(Debug)]
struct Tape;

impl Backend for Tape {
    type Tensor = Number;
    type Leaf = u64;

    fn reach(root: &Number) -> Reach<u64> {
        let mut nodes = Vec::new();
        root.nodes(&mut HashSet::new(), &mut nodes);
        let leaves = nodes
            .iter()
            .filter(|node| matches!(node.0.origin, Origin::Leaf));
        Reach {
            leaves: leaves.map(|leaf| leaf.0.id).collect(),
            nodes: nodes.len(),
            // Some graphs are taken for others, and are run where they are, others on a thread.
            elements: fastrand::usize(..4),
        }
    }

    fn vjp(
        roots: &[(Number, Number)],
        wanted: &HashSet<u64>,
    ) -> Result<Vec<(u64, Number)>, String> {
        let mut nodes = Vec::new();
        let mut seen = HashSet::new();
        let mut gradients: HashMap<u64, Vec<f64>> = HashMap::new();
        let add = |gradients: &mut HashMap<u64, Vec<f64>>, to: &Number, more: Vec<f64>| {
            let sum = gradients
                .entry(to.0.id)
                .or_insert_with(|| vec![0.0; more.len()]);
            sum.iter_mut()
                .zip(more)
                .for_each(|(sum, more)| *sum += more);
        };
        for (root, gradient) in roots {
            root.nodes(&mut seen, &mut nodes);
            add(&mut gradients, root, gradient.0.data.clone());
        }
        let times = |one: &[f64], other: &Number| -> Vec<f64> {
            one.iter().zip(&other.0.data).map(|(a, b)| a * b).collect()
        };
        for node in nodes.iter().rev() {
            let Some(gradient) = gradients.get(&node.0.id).cloned() else {
                continue;
            };
            match &node.0.origin {
                Origin::Constant | Origin::Leaf => {}
                Origin::Sum(a, b) => {
                    add(&mut gradients, a, gradient.clone());
                    add(&mut gradients, b, gradient);
                }
                Origin::Product(a, b) => {
                    add(&mut gradients, a, times(&gradient, b));
                    add(&mut gradients, b, times(&gradient, a));
                }
                Origin::Tanh(a) => {
                    let slope = node.0.data.iter().map(|y| 1.0 - y * y);
                    let more = gradient.iter().zip(slope).map(|(g, s)| g * s).collect();
                    add(&mut gradients, a, more);
                }
            }
        }
        let leaves = wanted.iter();
        Ok(leaves
            .filter_map(|leaf| {
                let gradient = gradients.remove(leaf)?;
                Some((*leaf, Number::new(gradient, Origin::Constant)))
            })
            .collect())
    }

    fn add(one: &Number, other: &Number) -> Result<Number, String> {
        let sum = one.zip(other, |a, b| a + b);
        Ok(Number::new(sum, Origin::Constant))
    }

    fn deliver(peer: &Peer, parcel: Parcel<Number>) -> Call<Receipt> {
        deliver::on(peer, parcel)
    }

    fn progressed(peer: &Peer, pass: PassId) -> Call<()> {
        progressed::on(peer, pass)
    }
}

/// The network of the test: some parcels take longer than others.
#[farref::remote(timeout = "none")]
async fn deliver(parcel: Parcel<Number>) -> Receipt {
    let delay = fastrand::u64(..4);
    if delay > 0 {
        tokio::time::sleep(Duration::from_millis(delay)).await;
    }
    engine::receive::<Tape>(parcel).await
}

#[farref::remote]
async fn progressed(pass: PassId) {
    engine::progressed::<Tape>(pass);
}

struct Spread {
    me: Worker,
    parameters: Parameters<Number>,
}

#[farref::remote(timeout = "none")]
async fn run_body(
    body: Body,
    arguments: Vec<Number>,
    parameters: Parameters<Number>,
) -> Result<Vec<Number>, common::Failed> {
    let me = program::here()?;
    Ok(execute(&Spread { me, parameters }, &body, arguments).await?)
}

impl Caller<Number> for Spread {
    fn call(
        &self,
        body: Body,
        arguments: Vec<Number>,
        leave: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Number>>> + Send + '_>> {
        let peer = self.me.peer(&format!("worker{}", body.worker));
        let call = peer.map(|peer| run_body::on(&peer, body, arguments, self.parameters.clone()));
        if leave {
            let there = call.map(|call| call.remote());
            return Box::pin(async move { Ok(there?.to_here().await?) });
        }
        let pending = call.map(|call| call.start());
        Box::pin(async move { Ok(pending?.await?) })
    }

    async fn parameter(&self, worker: usize, index: usize) -> Result<Number> {
        Ok(self.parameters[worker][index].local().await?.clone())
    }
}

struct Together(Vec<Vec<Number>>);

impl Caller<Number> for Together {
    fn call(
        &self,
        body: Body,
        arguments: Vec<Number>,
        _: bool,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Number>>> + Send + '_>> {
        Box::pin(async move { execute(self, &body, arguments).await })
    }

    async fn parameter(&self, worker: usize, index: usize) -> Result<Number> {
        Ok(self.0[worker][index].clone())
    }
}

#[farref::remote]
async fn make(data: Vec<f64>) -> Number {
    Number::new(data, Origin::Leaf)
}

#[farref::remote]
async fn gradient_of(parameter: RRef<Number>) -> Result<Option<Vec<f64>>, common::Failed> {
    let scope = ContextScope::current().context("no context")?;
    let leaf = parameter.local().await.context("not here")?.0.id;
    Ok(engine::gradient::<Tape>(&scope, None, &[leaf]).map(|found| found.0.data.clone()))
}

fn seeded(results: &[Number]) -> Vec<(Number, Number)> {
    let one = || Number::new(vec![1.0; LENGTH], Origin::Constant);
    results
        .iter()
        .map(|result| (result.clone(), one()))
        .collect()
}

const PARAMETERS: usize = 2;

/// What the parameters of all workers are, in one place.
fn random_parameters(rng: &mut fastrand::Rng, workers: usize) -> Together {
    let one = |rng: &mut fastrand::Rng| (0..LENGTH).map(|_| rng.f64() * 2.0 - 1.0).collect();
    let here = (0..workers).map(|_| {
        let data = (0..PARAMETERS).map(|_| Number::new(one(rng), Origin::Leaf));
        data.collect()
    });
    Together(here.collect())
}

impl Together {
    /// The gradients in one place, by leaf.
    fn gradients(&self, results: &[Number]) -> Result<HashMap<u64, Number>> {
        let leaves = self.0.iter().flatten().map(|leaf| leaf.0.id).collect();
        let gradients = Tape::vjp(&seeded(results), &leaves).map_err(anyhow::Error::msg)?;
        Ok(gradients.into_iter().collect())
    }
}

impl Spread {
    /// Puts parameters with the same data on the workers.
    fn new(me: &Worker, together: &Together) -> Result<Self> {
        let mut parameters = Vec::new();
        for (worker, data) in together.0.iter().enumerate() {
            let peer = me.peer(&format!("worker{worker}"))?;
            let made = data
                .iter()
                .map(|data| make::on(&peer, data.0.data.clone()).remote());
            parameters.push(made.collect::<Vec<_>>());
        }
        let me = me.clone();
        Ok(Self { me, parameters })
    }

    /// Every parameter has `times` the gradient that it has in one place.
    async fn compare(
        &self,
        scope: &ContextScope,
        together: &Together,
        expected: &HashMap<u64, Number>,
        times: f64,
    ) -> Result<()> {
        for (of_worker, here) in self.parameters.iter().zip(&together.0) {
            for (parameter, here) in of_worker.iter().zip(here) {
                let owner = parameter.owner()?;
                let call = scope.enter(|| gradient_of::on(&owner, parameter.clone()).start());
                let found = call.await?.unwrap_or_else(|| vec![0.0; LENGTH]);
                let zeros = Number::new(vec![0.0; LENGTH], Origin::Constant);
                let expected = expected.get(&here.0.id).unwrap_or(&zeros);
                for (found, expected) in found.iter().zip(&expected.0.data) {
                    let expected = expected * times;
                    let error = (found - expected).abs() / expected.abs().max(1.0);
                    ensure!(error <= 1e-12, "{found} instead of {expected}");
                }
            }
        }
        Ok(())
    }
}

/// EN-5: of a context that was released, nothing is left on any worker.
async fn finish(cluster: Cluster, scope: ContextScope, workers: usize) -> Result<()> {
    scope.release().await?;
    // A worker lets the others know that it has forgotten the context, and then its engine.
    eventually("engines are empty", || {
        let counts = |index| Engine::<Tape>::of(cluster.worker(index)).counts();
        (0..workers).all(|index| counts(index) == Counts::default())
    })
    .await?;
    cluster.shutdown().await?;
    Ok(())
}

async fn check(seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let workers = rng.usize(3..6);
    let body = random(&mut rng, workers, PARAMETERS);
    let together = random_parameters(&mut rng, workers);
    let expected = together.gradients(&execute(&together, &body, Vec::new()).await?)?;

    let cluster = Cluster::start(workers as u32).await?;
    let me = cluster.worker(0).clone();
    let scope = ContextScope::open(&me)?;
    let spread = Spread::new(&me, &together)?;
    let results = scope.run(execute(&spread, &body, Vec::new())).await?;
    for pass in 1..=2 {
        engine::backward::<Tape>(&scope, seeded(&results), true, None).await?;
        let times = f64::from(pass);
        spread.compare(&scope, &together, &expected, times).await?;
    }
    drop((results, spread, me));
    finish(cluster, scope, workers).await
}

/// Several programs in one context at once, each with a pass that does not retain its graph.
async fn check_side_by_side(seed: u64) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let workers = rng.usize(2..5);
    let bodies: Vec<_> = (0..rng.usize(2..5))
        .map(|_| random(&mut rng, workers, PARAMETERS))
        .collect();
    let together = random_parameters(&mut rng, workers);
    let mut results = Vec::new();
    for body in &bodies {
        results.extend(execute(&together, body, Vec::new()).await?);
    }
    let expected = together.gradients(&results)?;

    let cluster = Cluster::start(workers as u32).await?;
    let me = cluster.worker(0).clone();
    let scope = ContextScope::open(&me)?;
    let spread = Arc::new(Spread::new(&me, &together)?);
    let mut passes = tokio::task::JoinSet::new();
    for body in bodies {
        let (scope, spread) = (scope.clone(), Arc::clone(&spread));
        passes.spawn(async move {
            let results = scope.run(execute(&*spread, &body, Vec::new())).await?;
            engine::backward::<Tape>(&scope, seeded(&results), false, None).await?;
            anyhow::Ok(())
        });
    }
    while let Some(pass) = passes.join_next().await {
        pass??;
    }
    spread.compare(&scope, &together, &expected, 1.0).await?;
    drop((spread, me));
    finish(cluster, scope, workers).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a1_gradients_do_not_depend_on_the_order_in_which_they_arrive() -> Result<()> {
    common::in_parallel(0..common::random_programs(), check).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a4_passes_side_by_side_do_not_depend_on_the_order_in_which_gradients_arrive() -> Result<()>
{
    common::in_parallel(0..common::random_programs(), check_side_by_side).await
}
