//! Groups of processes, each with the GPU, and what they can be asked for.

use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, Worker};
use farref_autograd::cuda::{self, Options, Path};
use farref_autograd::{Error, Tensor};

/// Tells a process of the test that it is a worker: rank, number of workers, how much it reserves, how much it exports, where they
/// meet.
pub(crate) const ROLE: &str = "FARREF_CUDA_TEST";
/// What a process reserves.
const RESERVE: u64 = 2 << 30;

pub(crate) fn in_runtime(test: impl Future<Output = Result<()>>) -> Result<()> {
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

pub(crate) async fn be_worker(role: &str) -> Result<()> {
    let mut words = role.splitn(4, ' ');
    let mut next = || words.next().context("a word of the role");
    let (rank, workers, exported) = (next()?.parse()?, next()?.parse()?, next()?.parse()?);
    Options::new().reserve(RESERVE).exported(exported).set()?;
    let me = join(rank, workers, next()?).await?;
    me.shutdown().await?;
    Ok(())
}

/// Worker 0 is this process, the others are its children.
pub(crate) struct Processes {
    pub(crate) me: Worker,
    children: Vec<Child>,
    place: PathBuf,
}

impl Processes {
    /// They have met.
    pub(crate) async fn start(workers: u32) -> Result<Self> {
        Self::start_with(workers, 8 << 30).await
    }

    /// The children export at most so many bytes.
    pub(crate) async fn start_with(workers: u32, exported: u64) -> Result<Self> {
        // The first one opens the device.
        let _ = Options::new().reserve(RESERVE).exported(8 << 30).set();
        cuda::device(0)?;
        let place = std::env::temp_dir().join(format!("farref-cuda-{:x}", fastrand::u64(..)));
        let address = format!("file://{}", place.display());
        let mut children = Vec::new();
        for rank in 1..workers {
            let child = Command::new(std::env::current_exe()?)
                .env(ROLE, format!("{rank} {workers} {exported} {address}"))
                .spawn()?;
            children.push(child);
        }
        let me = join(0, workers, &address).await?;
        let group = Self {
            me,
            children,
            place,
        };
        for rank in 1..workers {
            let path = cuda::meet(&group.me, &group.peer(rank)?).await?;
            ensure!(path == Path::Shared, "{path:?}");
        }
        for from in 1..workers {
            for to in (1..workers).filter(|&to| to != from) {
                meet::on(&group.peer(from)?, group.peer(to)?).await?;
            }
        }
        Ok(group)
    }

    pub(crate) fn peer(&self, rank: u32) -> Result<Peer> {
        Ok(self.me.peer(&format!("worker{rank}"))?)
    }

    /// Kills the child with this rank, of those that are left the one started at that place.
    pub(crate) fn kill(&mut self, rank: usize) -> Result<()> {
        let mut child = self.children.remove(rank - 1);
        let killed = child.kill();
        child.wait()?;
        Ok(killed?)
    }

    /// Nobody uses memory of anybody, and everybody ends well.
    pub(crate) async fn finish(self) -> Result<()> {
        eventually("nothing is shared any more", || {
            let used = cuda::usage();
            used.exported == 0 && used.imported == 0
        })
        .await?;
        for peer in self.me.peers() {
            let began = Instant::now();
            while usage::on(&peer).await? != (0, 0) {
                ensure!(
                    began.elapsed() < PATIENCE,
                    "{} still shares memory",
                    peer.name()
                );
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
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

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// A tensor on the GPU of one number.
pub(crate) fn filled(number: f32, elements: usize) -> Result<Tensor> {
    let numbers = farref_autograd::candle::Tensor::full(number, elements, &cuda::device(0)?)?;
    Ok(numbers.contiguous()?.into())
}

/// A tensor on the GPU that counts from `first`: up to what an `f32` can count.
pub(crate) fn counting(first: f32, elements: usize) -> Result<Tensor> {
    ensure!(elements < 1 << 23);
    let end = first + elements as f32;
    let numbers = farref_autograd::candle::Tensor::arange(first, end, &cuda::device(0)?)?;
    Ok(numbers.into())
}

#[farref::remote]
async fn meet(peer: Peer) -> Result<(), Error> {
    let me = Worker::current().ok_or(Error::NoContext)?;
    cuda::meet(&me, &peer).await.map(drop)
}

/// What a process uses of others' memory, and others of its.
#[farref::remote]
pub(crate) fn usage() -> (u64, usize) {
    let used = cuda::usage();
    (used.exported, used.imported)
}

/// Sends it back.
#[farref::remote]
pub(crate) fn echo(tensor: Tensor) -> Tensor {
    tensor
}

/// Whether it came to a CUDA device, and the sum of its elements.
#[farref::remote]
pub(crate) fn sum(tensor: Tensor) -> Result<(bool, f64), Error> {
    let all = tensor
        .to_dtype(farref_autograd::candle::DType::F64)?
        .sum_all()?;
    Ok((tensor.device().is_cuda(), all.to_scalar()?))
}
