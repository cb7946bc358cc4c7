//! farref, with everything as it is by default.

use std::time::Duration;

use farref::{Blob, Peer, StoreServer, Worker, WorkerBuilder};
use tokio::task::JoinHandle;

use crate::measure::{self, Caller, Turns};
use crate::results::Results;
use crate::transport::{Transport, announce};

/// How long the two workers wait for each other.
const PATIENCE: Duration = Duration::from_secs(30);

#[farref::remote]
async fn nothing() {}

#[farref::remote]
async fn swallow(blob: Blob) -> usize {
    blob.len()
}

fn worker(name: &str, rank: u32, transport: Transport, store: &str) -> WorkerBuilder {
    Worker::builder(name)
        .rank(rank)
        .world_size(2)
        .rendezvous(&format!("tcp://{store}"))
        .store_is_hosted_elsewhere()
        .join_timeout(PATIENCE)
        // Both are started by one who measures; by TCP there has to be one.
        .token("of this measurement")
        .unix_sockets(transport != Transport::Tcp)
        .shared_memory(transport == Transport::Shm)
}

pub(super) async fn serve(transport: Transport) -> anyhow::Result<()> {
    let store = StoreServer::bind("127.0.0.1:0").await?;
    let place = store.local_addr().to_string();
    announce(&place);
    let me = worker("server", 1, transport, &place).join().await?;
    me.serve().await?;
    store.close().await;
    Ok(())
}

pub(super) async fn measure(
    transport: Transport,
    place: String,
    time: Duration,
) -> anyhow::Result<Results> {
    let me = worker("caller", 0, transport, &place).join().await?;
    let caller = Calls(me.peer("server")?);
    let results = measure::all(caller, time).await?;
    me.shutdown().await?;
    Ok(results)
}

#[derive(Clone)]
struct Calls(Peer);

impl Caller for Calls {
    type Payload = Blob;

    async fn call(&self) -> anyhow::Result<()> {
        Ok(nothing::on(&self.0).await?)
    }

    fn start(&self, turns: Turns) -> JoinHandle<anyhow::Result<u64>> {
        let me = self.clone();
        tokio::spawn(async move { turns.count(|| me.call()).await })
    }

    fn payload(bytes: Vec<u8>) -> Blob {
        Blob::from(bytes)
    }

    async fn send(&self, payload: &Blob) -> anyhow::Result<usize> {
        Ok(swallow::on(&self.0, payload.clone()).await?)
    }
}
