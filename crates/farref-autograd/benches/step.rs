//! One training step through a layer on another process: here, and with `torch.distributed.autograd`.
//!
//! `cargo bench -p farref-autograd --bench step` measures both in one run and prints the ratio, if the Python
//! that `PYTHON` names (or `python3`) has torch. `-- --test` makes a few steps only.

use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farref::{RRef, Worker};
use farref_autograd::candle::DType;
use farref_autograd::nn::{Generator, Linear, mse_loss};
use farref_autograd::optim::{DistributedOptimizer, Sgd};
use farref_autograd::{Context, Error, Hosted, RemoteModule, Tensor};

const ROLE: &str = "FARREF_BENCH_PLACE";
const WIDTH: usize = 64;
const BATCH: usize = 32;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if let Ok(place) = std::env::var(ROLE) {
        return runtime.block_on(async { Ok(join(1, &place).await?.serve().await?) });
    }
    let smoke = std::env::args().any(|argument| argument == "--test");
    let (warm_up, steps) = if smoke { (2, 5) } else { (200, 2000) };
    let ours = runtime.block_on(measure(warm_up, steps))?;
    println!("farref: {}", shown(&ours));
    match torch(warm_up, steps.min(1000)) {
        Ok(theirs) => {
            println!("torch:  {}", shown(&theirs));
            let ratio = median(&ours).as_secs_f64() / median(&theirs).as_secs_f64();
            println!("a step costs {ratio:.3} of torch's (budget: 0.100)");
        }
        Err(error) => println!("torch:  not measured: {error:#}"),
    }
    Ok(())
}

fn median(times: &[Duration]) -> Duration {
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn shown(times: &[Duration]) -> String {
    let at = |part: usize| {
        times
            .get(times.len() * part / 100)
            .copied()
            .unwrap_or_default()
    };
    format!("p50 {:?}, p90 {:?} per step", at(50), at(90))
}

async fn join(rank: u32, place: &str) -> Result<Worker> {
    let worker = Worker::builder(format!("worker{rank}"))
        .rank(rank)
        .world_size(2)
        .rendezvous(place);
    Ok(worker.join().await?)
}

#[farref::remote]
fn layer() -> Result<Hosted, Error> {
    let linear = Linear::new(WIDTH, WIDTH, DType::F32, &mut Generator::new(1))?;
    Ok(Hosted::new(linear))
}

async fn measure(warm_up: usize, steps: usize) -> Result<Vec<Duration>> {
    let file = std::env::temp_dir().join(format!("farref-bench-{}", std::process::id()));
    let place = format!("file://{}", file.display());
    let mut other: Child = Command::new(std::env::current_exe()?)
        .env(ROLE, &place)
        .spawn()?;
    let me = join(0, &place).await?;
    let peer = me.peer("worker1")?;
    let module = RemoteModule::new(layer::on(&peer).remote());
    let parameters: Vec<RRef<_>> = module
        .parameters()
        .await?
        .into_iter()
        .map(|(_, parameter)| parameter)
        .collect();
    let optimizer = DistributedOptimizer::new(Sgd::new(0.01), parameters).await?;
    let numbers = |seed: usize| -> Result<Tensor> {
        let elements = (0..BATCH * WIDTH).map(|n| ((n * 31 + seed) % 17) as f32 / 17.0);
        Ok(Tensor::from_vec(elements.collect(), (BATCH, WIDTH))?)
    };
    let (input, target) = (numbers(1)?, numbers(5)?);
    let mut times = Vec::new();
    for step in 0..warm_up + steps {
        let began = Instant::now();
        let context = Context::new(&me)?;
        let output = context
            .run(async { module.forward(input.clone()).await })
            .await?;
        let loss = mse_loss(&output, &target)?;
        context.backward(&[&loss]).await?;
        optimizer.step(&context).await?;
        drop(context);
        if step >= warm_up {
            times.push(began.elapsed());
        }
    }
    drop((module, optimizer));
    me.shutdown().await?;
    ensure!(other.wait()?.success());
    drop(std::fs::remove_file(&file));
    times.sort_unstable();
    Ok(times)
}

/// The same with PyTorch.
fn torch(warm_up: usize, steps: usize) -> Result<Vec<Duration>> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/step.py");
    let output = Command::new(&python)
        .args([script, &WIDTH.to_string(), &BATCH.to_string()])
        .args([warm_up.to_string(), steps.to_string()])
        .output()
        .with_context(|| format!("`{python}` cannot be run"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}",
        errors.lines().last().unwrap_or("it failed")
    );
    let mut times = text
        .lines()
        .map(|line| Ok(Duration::from_nanos(line.parse()?)))
        .collect::<Result<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times)
}
