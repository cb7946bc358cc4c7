//! Distributed autograd between real processes over real sockets: random programs, training, death.

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use common::{eventually, spread};
use farref::{RRef, Worker};
use farref_autograd::candle;
use farref_autograd::engine::{Counts, Engine};
use farref_autograd::{Candle, Context, Error, Parameter, Tensor};
use libtest_mimic::{Arguments, Failed, Trial};

/// Tells a process of the test that it is a worker: rank, number of workers, where they meet.
const ROLE: &str = "FARREF_AUTOGRAD_TEST";

/// The role of a process that shows how many threads it computes with, and what its children see of the
/// environment.
const SHOW_ENVIRONMENT: &str = "environment";

fn main() -> ExitCode {
    if std::env::var(ROLE).as_deref() == Ok(SHOW_ENVIRONMENT) {
        return show_environment();
    }
    if let Ok(role) = std::env::var(ROLE) {
        return match in_runtime(be_worker(&role)) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:?}");
                ExitCode::FAILURE
            }
        };
    }
    let trial = |name: &str, test: fn() -> Result<()>| {
        Trial::test(name, move || {
            test().map_err(|error| Failed::from(format!("{error:?}")))
        })
    };
    let trials = vec![
        trial(
            "a1_random_programs_over_processes_have_the_same_gradients",
            || in_runtime(random_programs()),
        ),
        trial(
            "a4_passes_side_by_side_over_processes_have_the_same_gradients",
            || in_runtime(side_by_side()),
        ),
        trial("a1_training_over_2_processes_has_the_losses_of_one", || {
            in_runtime(training(2))
        }),
        trial("a1_training_over_4_processes_has_the_losses_of_one", || {
            in_runtime(training(4))
        }),
        trial(
            "f2_a_worker_killed_in_the_forward_pass_fails_its_context",
            || in_runtime(killed_forward()),
        ),
        trial(
            "f2_a_worker_killed_in_the_backward_pass_fails_its_context",
            || in_runtime(killed_backward()),
        ),
        trial(
            "a_child_sees_the_environment_that_its_parent_was_given",
            environment_of_children,
        ),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn in_runtime(test: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(test)
}

async fn join(rank: u32, workers: u32, place: &str) -> Result<Worker> {
    let worker = Worker::builder(format!("worker{rank}"))
        .rank(rank)
        .world_size(workers)
        .rendezvous(place)
        .fail_on_leaks(true)
        .join()
        .await?;
    Ok(worker)
}

async fn be_worker(role: &str) -> Result<()> {
    let mut words = role.splitn(3, ' ');
    let mut next = || words.next().context("a word of the role");
    let (rank, workers, place) = (next()?.parse()?, next()?.parse()?, next()?);
    let me = join(rank, workers, place).await?;
    me.shutdown().await?;
    Ok(())
}

/// Worker 0 is this process, the others are its children.
struct Processes {
    me: Worker,
    children: Vec<Child>,
    place: PathBuf,
}

impl Processes {
    async fn start(workers: u32) -> Result<Self> {
        let place = std::env::temp_dir().join(format!("farref-autograd-{:x}", fastrand::u64(..)));
        let address = format!("file://{}", place.display());
        let mut children = Vec::new();
        for rank in 1..workers {
            let child = Command::new(std::env::current_exe()?)
                .env(ROLE, format!("{rank} {workers} {address}"))
                .spawn()?;
            children.push(child);
        }
        let me = join(0, workers, &address).await?;
        Ok(Self {
            me,
            children,
            place,
        })
    }

    fn kill(&mut self, rank: usize) -> Result<()> {
        let mut child = self.children.remove(rank - 1);
        let killed = child.kill();
        child.wait()?;
        Ok(killed?)
    }

    /// Everybody that is left has forgotten every context, and ends well.
    async fn finish(self) -> Result<()> {
        let engine = Engine::<Candle>::of(&self.me);
        eventually("the engine is empty", || {
            engine.counts() == Counts::default()
        })
        .await?;
        for peer in self.me.peers() {
            let mut left = left::on(&peer).await?;
            for _ in 0..1000 {
                if left == [0; 5] {
                    break;
                }
                // What others say of a context that was released may be on its way.
                tokio::time::sleep(Duration::from_millis(10)).await;
                left = left::on(&peer).await?;
            }
            ensure!(left == [0; 5], "{}: {left:?}", peer.name());
        }
        self.me.shutdown().await?;
        for mut child in self.children {
            let status = child.wait()?;
            ensure!(status.success(), "{status}");
        }
        drop(std::fs::remove_file(&self.place));
        drop(std::fs::remove_dir_all(&self.place));
        Ok(())
    }
}

#[farref::remote]
async fn left() -> Result<[usize; 5], common::Failed> {
    let me = Worker::current().context("no worker")?;
    let engine = Engine::<Candle>::of(&me);
    // A release that lost its way with a worker comes by itself.
    eventually("the engine is empty", || {
        engine.counts() == Counts::default()
    })
    .await?;
    let counts = engine.counts();
    Ok([
        counts.contexts,
        counts.sends,
        counts.recvs,
        counts.passes,
        counts.gradients,
    ])
}

async fn random_programs() -> Result<()> {
    const WORKERS: usize = 4;
    let group = Processes::start(WORKERS as u32).await?;
    for seed in 0..300 {
        let check = spread::check(seed, &group.me, WORKERS);
        tokio::time::timeout(Duration::from_secs(60), check)
            .await
            .with_context(|| format!("seed {seed} hangs"))?
            .with_context(|| format!("seed {seed}"))?;
    }
    group.finish().await
}

async fn side_by_side() -> Result<()> {
    const WORKERS: usize = 4;
    let group = Processes::start(WORKERS as u32).await?;
    for seed in 0..100 {
        let check = async {
            spread::check_micro_batches(seed, &group.me, WORKERS).await?;
            spread::check_shared(seed, &group.me, WORKERS).await
        };
        tokio::time::timeout(Duration::from_secs(60), check)
            .await
            .with_context(|| format!("seed {seed} hangs"))?
            .with_context(|| format!("seed {seed}"))?;
    }
    group.finish().await
}

/// One layer of a network, on some worker.
struct Layer {
    weight: Parameter,
    bias: Parameter,
}

#[farref::remote]
impl Layer {
    /// A layer whose numbers come from a seed.
    #[remote]
    fn new(inputs: usize, outputs: usize, seed: u64) -> Result<Self, Error> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut numbers = |count: usize| (0..count).map(|_| rng.f64() - 0.5).collect::<Vec<_>>();
        Ok(Self {
            weight: Parameter::new(&*Tensor::from_vec(
                numbers(inputs * outputs),
                (inputs, outputs),
            )?)?,
            bias: Parameter::new(&*Tensor::from_vec(numbers(outputs), outputs)?)?,
        })
    }

    #[remote]
    fn forward(&self, input: Tensor) -> Result<Tensor, Error> {
        let linear = input.matmul(&self.weight.tensor())?;
        Ok(linear.broadcast_add(&self.bias.tensor())?.tanh()?.into())
    }

    #[remote]
    fn step(&self, rate: f64) -> Result<(), Error> {
        let context = Context::current().ok_or(Error::NoContext)?;
        for parameter in [&self.weight, &self.bias] {
            let gradient = context.gradient(parameter).ok_or(Error::NoContext)?;
            parameter.set(&(&*parameter.value() - (&*gradient * rate)?)?)?;
        }
        Ok(())
    }
}

const SHAPES: [(usize, usize); 4] = [(8, 16), (16, 16), (16, 16), (16, 4)];
const STEPS: usize = 40;
const RATE: f64 = 0.05;

fn batch(step: usize) -> Result<(Tensor, Tensor)> {
    let mut rng = fastrand::Rng::with_seed(1000 + step as u64);
    let mut numbers = |count: usize| (0..count).map(|_| rng.f64() - 0.5).collect::<Vec<_>>();
    Ok((
        Tensor::from_vec(numbers(32 * 8), (32, 8))?,
        Tensor::from_vec(numbers(32 * 4), (32, 4))?,
    ))
}

fn loss_of(output: &Tensor, wanted: &Tensor) -> Result<Tensor> {
    Ok((&**output - &**wanted)?.sqr()?.mean_all()?.into())
}

/// The losses of the same network in this process, without anything of farref but the layers.
fn losses_of_one() -> Result<Vec<f64>> {
    let layers: Result<Vec<_>, Error> = SHAPES
        .iter()
        .enumerate()
        .map(|(index, &(inputs, outputs))| Layer::new(inputs, outputs, index as u64))
        .collect();
    let layers = layers?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let (mut x, wanted) = batch(step)?;
        for layer in &layers {
            x = layer.forward(x)?;
        }
        let loss = loss_of(&x, &wanted)?;
        losses.push(loss.to_scalar()?);
        let gradients = loss.backward()?;
        for parameter in layers.iter().flat_map(|layer| [&layer.weight, &layer.bias]) {
            let gradient = gradients.get(&parameter.tensor()).context("no gradient")?;
            parameter.set(&(&*parameter.value() - (gradient * RATE)?)?)?;
        }
    }
    Ok(losses)
}

async fn training(workers: usize) -> Result<()> {
    let expected = losses_of_one()?;
    let group = Processes::start(workers as u32).await?;
    let mut layers: Vec<RRef<Layer>> = Vec::new();
    for (index, &(inputs, outputs)) in SHAPES.iter().enumerate() {
        let peer = group.me.peer(&format!("worker{}", index % workers))?;
        layers.push(Layer::new_on(&peer, inputs, outputs, index as u64).remote());
    }
    for (step, expected) in expected.iter().enumerate() {
        let (mut x, wanted) = batch(step)?;
        let context = Context::new(&group.me)?;
        let loss = context
            .run(async {
                for layer in &layers {
                    x = layer.forward(x).await?;
                }
                loss_of(&x, &wanted)
            })
            .await?;
        let found: f64 = loss.to_scalar()?;
        ensure!(
            (found - expected).abs() <= 1e-6,
            "step {step}: {found} instead of {expected}"
        );
        context.backward(&[&loss]).await?;
        context
            .run(async {
                let steps: Vec<_> = layers
                    .iter()
                    .map(|layer| layer.step(RATE).start())
                    .collect();
                for step in steps {
                    step.await?;
                }
                anyhow::Ok(())
            })
            .await?;
        context.release().await?;
    }
    ensure!(expected[STEPS - 1] < expected[0], "it learns: {expected:?}");
    drop(layers);
    group.finish().await
}

#[farref::remote]
async fn pass_on(to: Option<String>, x: Tensor) -> Result<Tensor, common::Failed> {
    let me = Worker::current().context("no worker")?;
    match to {
        Some(next) => {
            let peer = me.peer(&next).context("the next one")?;
            Ok(pass_on::on(&peer, None, x).await.context("the next call")?)
        }
        None => Ok(slow(x)?),
    }
}

/// Takes long, in either direction.
fn slow(x: Tensor) -> Result<Tensor> {
    struct Slow;

    impl candle::CustomOp1 for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        fn cpu_fwd(
            &self,
            storage: &candle::CpuStorage,
            layout: &candle::Layout,
        ) -> candle::Result<(candle::CpuStorage, candle::Shape)> {
            std::thread::sleep(Duration::from_millis(500));
            Ok((storage.clone(), layout.shape().clone()))
        }

        fn bwd(
            &self,
            _: &candle::Tensor,
            _: &candle::Tensor,
            gradient: &candle::Tensor,
        ) -> candle::Result<Option<candle::Tensor>> {
            std::thread::sleep(Duration::from_secs(30));
            Ok(Some(gradient.clone()))
        }
    }

    Ok(x.apply_op1(Slow)?.into())
}

async fn killed_forward() -> Result<()> {
    let mut group = Processes::start(3).await?;
    let parameter = common::parameter(&[1.0, 2.0], 2)?;
    let context = Context::new(&group.me)?;
    let middle = group.me.peer("worker1")?;
    let pending = context
        .enter(|| pass_on::on(&middle, Some("worker2".to_owned()), parameter.tensor()).start());
    tokio::time::sleep(Duration::from_millis(250)).await;
    group.kill(2)?;
    let failed = pending.await;
    ensure!(failed.is_err(), "{failed:?}");
    context.release().await?;
    group.finish().await
}

async fn killed_backward() -> Result<()> {
    let mut group = Processes::start(3).await?;
    let parameter = common::parameter(&[1.0, 2.0], 2)?;
    let context = Context::new(&group.me)?;
    let middle = group.me.peer("worker1")?;
    let loss = context
        .run(async {
            let next = Some("worker2".to_owned());
            let x = pass_on::on(&middle, next, parameter.tensor()).await?;
            anyhow::Ok(Tensor::from(x.sum_all()?))
        })
        .await?;
    let handle = context.handle();
    let pass = tokio::spawn({
        let loss = loss.clone();
        async move { handle.backward(&[&loss]).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure!(!pass.is_finished());
    group.kill(2)?;
    let failed = pass.await?;
    let Err(Error::Backward(failure)) = failed else {
        bail!("{failed:?}");
    };
    ensure!(failure.worker == "worker2", "{failure}");
    drop(loss);
    context.release().await?;
    group.finish().await
}

fn show_environment() -> ExitCode {
    // As any program that computes.
    let made = Tensor::from_vec(vec![1.0], 1);
    println!("{}", candle::utils::get_num_threads());
    let shown = Command::new("/usr/bin/env").status();
    match (made, shown) {
        (Ok(_), Ok(shown)) if shown.success() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// The number of threads is taken from the environment, and no variable of it is set: whatever a program
/// starts decides for itself.
fn environment_of_children() -> Result<()> {
    let role = format!("{ROLE}={SHOW_ENVIRONMENT}");
    let all = std::thread::available_parallelism()?.get();
    let cases: [(&[&str], usize); 6] = [
        (&[], all),
        (&["LOCAL_WORLD_SIZE=1000000"], 1),
        (&["OMP_NUM_THREADS=3"], 3),
        (&["OMP_NUM_THREADS=3", "LOCAL_WORLD_SIZE=1000000"], 3),
        (&["RAYON_NUM_THREADS=5", "OMP_NUM_THREADS=3"], 5),
        (&["CANDLE_CPU_MASK=0-6", "OMP_NUM_THREADS=3"], 7),
    ];
    for (variables, threads) in cases {
        let mut given: Vec<_> = variables.iter().copied().chain([role.as_str()]).collect();
        let pairs = given.iter().filter_map(|variable| variable.split_once('='));
        let shown = Command::new(std::env::current_exe()?)
            .env_clear()
            .envs(pairs)
            .output()?;
        ensure!(shown.status.success(), "{shown:?}");
        let shown = String::from_utf8(shown.stdout)?;
        let (found, seen) = shown.split_once('\n').context("two parts")?;
        let mut seen: Vec<_> = seen.lines().collect();
        seen.sort_unstable();
        given.sort_unstable();
        ensure!(seen == given, "{given:?} became {seen:?}");
        ensure!(found.parse() == Ok(threads), "{given:?}: {found} threads");
    }
    Ok(())
}
