//! Distributed autograd between real processes over real sockets: random programs, training, death.

mod common;

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail, ensure};
use common::processes::{Processes, Role, Wire, exit_code, in_runtime};
use common::spread;
use common::training::{Layer, Training};
use farref::{Peer, RRef, Worker};
use farref_autograd::candle::{self, Device};
use farref_autograd::engine::{Counts, Engine};
use farref_autograd::{Candle, Context, Error, Tensor};
use farref_testkit::{eventually, eventually_async, thorough, within};
use libtest_mimic::{Arguments, Failed, Trial};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

/// Tells a process that it is to show how many threads it computes with, and what its children see of the environment.
const SHOW_ENVIRONMENT: &str = "FARREF_AUTOGRAD_TEST_ENVIRONMENT";

fn main() -> ExitCode {
    if std::env::var_os(SHOW_ENVIRONMENT).is_some() {
        return show_environment();
    }
    if let Some(role) = Role::of_this_process() {
        let served = role.and_then(|role| in_runtime(role.serve(Wire::Usual)));
        return exit_code(served);
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

async fn start(workers: u32) -> Result<Processes> {
    Processes::start(workers, "", Wire::Usual).await
}

/// Everybody that is left has forgotten every context, and ends well.
async fn finish(group: Processes) -> Result<()> {
    let engine = Engine::<Candle>::of(&group.me);
    eventually("the engine is empty", || {
        engine.counts() == Counts::default()
    })
    .await?;
    for peer in group.me.peers() {
        // Other workers' messages about a released context may still be on their way.
        let what = format!("the engine of {} is empty", peer.name());
        eventually_async(&what, async || Ok(left::on(&peer).await? == [0; 5])).await?;
    }
    group.shutdown().await
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
    let group = start(WORKERS as u32).await?;
    for seed in 0..common::random_programs() {
        let check = spread::check(seed, &group.me, WORKERS);
        let seed = format!("seed {seed}");
        within(&seed, check).await?.context(seed)?;
    }
    finish(group).await
}

async fn side_by_side() -> Result<()> {
    const WORKERS: usize = 4;
    let group = start(WORKERS as u32).await?;
    for seed in 0..if thorough() { 100 } else { 20 } {
        let check = async {
            spread::check_micro_batches(seed, &group.me, WORKERS).await?;
            spread::check_shared(seed, &group.me, WORKERS).await
        };
        let seed = format!("seed {seed}");
        within(&seed, check).await?.context(seed)?;
    }
    finish(group).await
}

const TRAINING: Training = Training {
    shapes: [(8, 16), (16, 16), (16, 16), (16, 4)],
    spread: 1.0,
    rows: 32,
    steps: 40,
    rate: 0.05,
};

#[farref::remote]
fn layer(inputs: usize, outputs: usize, seed: u64) -> Result<Layer, Error> {
    Layer::seeded((inputs, outputs), seed, TRAINING.spread, &Device::Cpu)
}

async fn training(workers: usize) -> Result<()> {
    let expected = TRAINING.losses_of_one()?;
    ensure!(
        expected[TRAINING.steps - 1] < expected[0],
        "it learns: {expected:?}"
    );
    let group = start(workers as u32).await?;
    let mut layers: Vec<RRef<Layer>> = Vec::new();
    for (index, (inputs, outputs)) in TRAINING.shapes.into_iter().enumerate() {
        let peer = group.peer((index % workers) as u32)?;
        layers.push(layer::on(&peer, inputs, outputs, index as u64).remote());
    }
    TRAINING
        .run(&group.me, &layers, &expected, &Device::Cpu)
        .await?;
    drop(layers);
    finish(group).await
}

/// Notified when worker 2 has stopped, for each kind of [`Stop`].
static STOPPED: [Notify; 2] = [const { Notify::const_new() }; 2];

#[farref::remote]
async fn stopped(stop: Stop) {
    STOPPED[stop as usize].notify_one();
}

/// Where a worker stops until it is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Stop {
    Forward,
    Backward,
}

/// Calls itself on worker 2, which stops and notifies worker 0.
#[farref::remote]
async fn relay(stop: Stop, x: Tensor) -> Result<Tensor, common::Failed> {
    let me = Worker::current().context("no worker")?;
    if me.name() != "worker2" {
        let last = me.peer("worker2").context("worker 2")?;
        return Ok(relay::on(&last, stop, x).await.context("the next call")?);
    }
    let root = me.peer("worker0").context("worker 0")?;
    if stop == Stop::Forward {
        stopped::on(&root, stop).await.context("the notification")?;
        std::future::pending::<()>().await;
    }
    let stopping = x.apply_op1(StopsBackward(root));
    Ok(stopping
        .map(Tensor::from)
        .map_err(Error::from)
        .map_err(anyhow::Error::from)?)
}

/// The identity. Its backward pass notifies this worker and never ends.
struct StopsBackward(Peer);

impl candle::CustomOp1 for StopsBackward {
    fn name(&self) -> &'static str {
        "stops-backward"
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
        stopped::on(&self.0, Stop::Backward)
            .wait()
            .map_err(candle::Error::wrap)?;
        loop {
            std::thread::park();
        }
    }
}

async fn killed_forward() -> Result<()> {
    let mut group = start(3).await?;
    let parameter = common::parameter(&[1.0, 2.0], 2)?;
    let context = Context::new(&group.me)?;
    let middle = group.me.peer("worker1")?;
    let pending = context.enter(|| relay::on(&middle, Stop::Forward, parameter.tensor()).start());
    within(
        "the call's way to worker 2",
        STOPPED[Stop::Forward as usize].notified(),
    )
    .await?;
    group.kill(2)?;
    let failed = pending.await;
    ensure!(failed.is_err(), "{failed:?}");
    context.release().await?;
    finish(group).await
}

async fn killed_backward() -> Result<()> {
    let mut group = start(3).await?;
    let parameter = common::parameter(&[1.0, 2.0], 2)?;
    let context = Context::new(&group.me)?;
    let middle = group.me.peer("worker1")?;
    let loss = context
        .run(async {
            let x = relay::on(&middle, Stop::Backward, parameter.tensor()).await?;
            anyhow::Ok(Tensor::from(x.sum_all()?))
        })
        .await?;
    let handle = context.handle();
    let pass = tokio::spawn({
        let loss = loss.clone();
        async move { handle.backward(&[&loss]).await }
    });
    within(
        "the pass's way to worker 2",
        STOPPED[Stop::Backward as usize].notified(),
    )
    .await?;
    ensure!(!pass.is_finished());
    group.kill(2)?;
    let failed = pass.await?;
    let Err(Error::Backward(failure)) = failed else {
        bail!("{failed:?}");
    };
    ensure!(failure.worker == "worker2", "{failure}");
    drop(loss);
    context.release().await?;
    finish(group).await
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
    let role = format!("{SHOW_ENVIRONMENT}=1");
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
