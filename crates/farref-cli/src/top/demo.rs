//! A group to look at: four workers in this process that call each other over sockets, share references
//! and drop them.

use std::time::Duration;

use anyhow::Context as _;
use farref::{RRef, StoreServer, Worker};
use tokio::task::JoinSet;

const NAMES: [&str; 4] = ["parameters", "trainer0", "trainer1", "trainer2"];

/// The group.
pub(super) struct Demo {
    store: StoreServer,
    workers: Vec<Worker>,
    /// What the workers do.
    work: JoinSet<()>,
}

impl Demo {
    pub(super) async fn start() -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0")
            .await
            .context("cannot listen on 127.0.0.1, where the workers would meet")?;
        let place = format!("tcp://{}", store.local_addr());
        let mut joining = JoinSet::new();
        for (rank, name) in NAMES.into_iter().enumerate() {
            let builder = Worker::builder(name)
                .rank(rank as u32)
                .world_size(NAMES.len() as u32)
                .rendezvous(&place)
                .store_is_hosted_elsewhere()
                .shutdown_timeout(Duration::from_secs(10));
            joining.spawn(builder.join());
        }
        let joined = joining.join_all().await.into_iter();
        let workers: Vec<Worker> = joined
            .collect::<farref::Result<_>>()
            .context("the workers of the demo did not come together")?;
        let mut work = JoinSet::new();
        for worker in &workers {
            for _ in 0..2 {
                work.spawn(do_something(worker.clone()));
            }
        }
        Ok(Self {
            store,
            workers,
            work,
        })
    }

    /// Where the workers meet.
    pub(super) fn place(&self) -> String {
        self.store.local_addr().to_string()
    }

    /// Stops the work and shuts the group down.
    pub(super) async fn end(mut self) -> anyhow::Result<()> {
        // References and calls are dropped with the tasks that hold them.
        self.work.shutdown().await;
        let mut ending = JoinSet::new();
        for worker in self.workers {
            ending.spawn(async move { worker.shutdown().await });
        }
        let ended = ending.join_all().await.into_iter();
        ended
            .collect::<farref::Result<()>>()
            .context("the workers of the demo did not end together")
    }
}

/// Until it is stopped: makes values on others, shows them to third ones, forgets them.
async fn do_something(me: Worker) {
    loop {
        // Whatever fails here is there to be looked at.
        let _ = one_round(&me).await;
        pause(50..400).await;
    }
}

async fn one_round(me: &Worker) -> farref::Result<()> {
    let name = || NAMES[fastrand::usize(..NAMES.len())];
    let (owner, user) = (me.peer(name())?, me.peer(name())?);
    let layer: RRef<Vec<f32>> = layer::on(&owner, fastrand::u32(1000..50_000)).remote();
    let examined = examine::on(&user, layer.clone()).start();
    for _ in 0..fastrand::u32(1..20) {
        norm::on(&owner, layer.clone()).await?;
        pause(1..100).await;
    }
    examined.await?;
    let _label = me.rref(format!("{} numbers", fastrand::u32(..)))?;
    pause(100..3000).await;
    Ok(())
}

async fn pause(milliseconds: std::ops::Range<u64>) {
    tokio::time::sleep(Duration::from_millis(fastrand::u64(milliseconds))).await;
}

#[farref::remote(name = "demo::layer")]
async fn layer(size: u32) -> Vec<f32> {
    (0..size).map(|_| fastrand::f32()).collect()
}

#[farref::remote(name = "demo::norm")]
async fn norm(layer: RRef<Vec<f32>>) -> farref::Result<f32> {
    let layer = layer.to_here().await?;
    Ok(layer.iter().map(|value| value * value).sum::<f32>().sqrt())
}

#[farref::remote(name = "demo::examine")]
async fn examine(layer: RRef<Vec<f32>>) -> farref::Result<usize> {
    let numbers = layer.to_here().await?.len();
    // It takes a while, during which the reference is held.
    pause(200..4000).await;
    Ok(numbers)
}
