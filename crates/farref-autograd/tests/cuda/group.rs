//! Groups of processes, each with the GPU, and what they can be asked for.

use anyhow::{Context as _, Result, ensure};
use farref::{Peer, Worker};
use farref_autograd::cuda::{self, Options, Path};
use farref_autograd::{Error, Tensor};
use farref_testkit::{eventually, eventually_async};

use crate::common::processes::{Processes, Role, Wire};
use crate::departures;

/// How a process uses the GPU, and the others.
#[derive(Clone, Copy)]
pub(crate) struct Setup {
    /// So many bytes of the GPU it takes at once.
    pub(crate) reserve: u64,
    /// It exports at most so many bytes.
    pub(crate) exported: u64,
    /// It shares tensors of so many bytes.
    pub(crate) shared_from: usize,
    pub(crate) wire: Wire,
}

impl Setup {
    pub(crate) const USUAL: Self = Self {
        reserve: 2 << 30,
        exported: 8 << 30,
        shared_from: 0,
        wire: Wire::Usual,
    };

    fn words(self) -> String {
        let Self {
            reserve,
            exported,
            shared_from,
            wire,
        } = self;
        format!("{reserve} {exported} {shared_from} {wire:?}")
    }

    fn read(words: &str) -> Result<Self> {
        let mut words = words.split(' ');
        let mut next = || words.next().context("a word of the setup");
        let (reserve, exported, shared_from) = (next()?, next()?, next()?);
        let wire = next()?;
        let wires = [Wire::Usual, Wire::Unix, Wire::Tcp];
        let wire = wires
            .into_iter()
            .find(|known| format!("{known:?}") == wire)
            .with_context(|| format!("no wire `{wire}`"))?;
        Ok(Self {
            reserve: reserve.parse()?,
            exported: exported.parse()?,
            shared_from: shared_from.parse()?,
            wire,
        })
    }

    fn options(self) -> Options {
        let options = Options::new().reserve(self.reserve).exported(self.exported);
        options.shared_from(self.shared_from)
    }
}

pub(crate) async fn be_worker(role: &Role) -> Result<()> {
    let setup = Setup::read(&role.words)?;
    setup.options().set()?;
    let served = role.serve(setup.wire).await;
    departures::when_the_worker_has_ended().await;
    served
}

/// They have met.
pub(crate) async fn start(workers: u32) -> Result<Processes> {
    start_with(workers, Setup::USUAL, Setup::USUAL).await
}

/// This process is set up in one way, if it is its first group, and its children in another.
pub(crate) async fn start_with(workers: u32, here: Setup, there: Setup) -> Result<Processes> {
    // The first one opens the device.
    let _ = here.options().set();
    cuda::device(0)?;
    let group = Processes::start(workers, &there.words(), here.wire).await?;
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

/// Nobody uses memory of anybody, and everybody ends well.
pub(crate) async fn finish(group: Processes) -> Result<()> {
    eventually("nothing is shared any more", || {
        let used = cuda::usage();
        used.exported == 0 && used.imported == 0
    })
    .await?;
    for peer in group.me.peers() {
        let what = format!("{} shares no memory", peer.name());
        eventually_async(&what, async || Ok(usage::on(&peer).await? == (0, 0))).await?;
    }
    group.shutdown().await
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
