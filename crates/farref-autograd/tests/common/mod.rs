//! The fixture: a group of workers in one process, and at the end the proof that nothing is left.
#![allow(dead_code)]

pub(crate) mod processes;
pub(crate) mod program;
pub(crate) mod spread;
pub(crate) mod training;

use anyhow::{Context as _, Result};
use farref::testing::Cluster;
use farref::{Peer, Worker};
use farref_autograd::candle::{self, DType, Device};
use farref_autograd::engine::{Counts, Engine};
use farref_autograd::{Candle, Parameter, Tensor};
use farref_testkit::{eventually, thorough, within};

pub(crate) struct Group {
    pub(crate) cluster: Cluster,
}

impl Group {
    pub(crate) async fn start(workers: u32) -> Result<Self> {
        Ok(Self {
            cluster: Cluster::start(workers).await?,
        })
    }

    pub(crate) fn worker(&self, index: usize) -> &Worker {
        self.cluster.worker(index)
    }

    /// Worker `to` as worker 0 sees it.
    pub(crate) fn peer(&self, to: usize) -> Result<Peer> {
        Ok(self.worker(0).peer(&format!("worker{to}"))?)
    }

    /// What the engines of these workers keep.
    pub(crate) fn counts(&self, workers: impl IntoIterator<Item = usize>) -> Vec<Counts> {
        let workers = workers.into_iter();
        workers
            .map(|index| Engine::<Candle>::of(self.worker(index)).counts())
            .collect()
    }

    /// Contexts, sends, recvs and passes are gone everywhere; so are references and calls.
    pub(crate) async fn finish(self, workers: usize) -> Result<()> {
        eventually("engines are empty", || {
            self.counts(0..workers)
                .iter()
                .all(|counts| *counts == Counts::default())
        })
        .await?;
        // Those who took part have forgotten it; that they have is on its way.
        eventually("contexts are closed", || {
            (0..workers).all(|index| self.worker(index).snapshot().contexts == 0)
        })
        .await?;
        self.cluster.shutdown().await?;
        Ok(())
    }
}

pub(crate) fn ones(shape: impl Into<candle::Shape>) -> Result<candle::Tensor> {
    Ok(candle::Tensor::ones(shape, DType::F64, &Device::Cpu)?)
}

/// A parameter with these elements.
pub(crate) fn parameter(elements: &[f64], shape: impl Into<candle::Shape>) -> Result<Parameter> {
    let tensor = Tensor::from_vec(elements.to_vec(), shape.into())?;
    Ok(Parameter::new(&tensor)?)
}

pub(crate) fn elements(tensor: &candle::Tensor) -> Result<Vec<f64>> {
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// An error of a test's remote function.
#[derive(Debug)]
pub(crate) struct Failed(anyhow::Error);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Failed {}

impl From<anyhow::Error> for Failed {
    fn from(error: anyhow::Error) -> Self {
        Self(error)
    }
}

/// How many random programs a test checks.
pub(crate) fn random_programs() -> u64 {
    if thorough() { 300 } else { 12 }
}

/// Checks many seeds, several at a time.
pub(crate) async fn in_parallel<F: Future<Output = Result<()>> + Send + 'static>(
    seeds: impl Iterator<Item = u64>,
    check: impl Fn(u64) -> F,
) -> Result<()> {
    const AT_ONCE: usize = 8;
    let mut tasks = tokio::task::JoinSet::new();
    for seed in seeds {
        let check = check(seed);
        tasks.spawn(async move {
            let seed = format!("seed {seed}");
            within(&seed, check).await?.context(seed)
        });
        if tasks.len() == AT_ONCE
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
