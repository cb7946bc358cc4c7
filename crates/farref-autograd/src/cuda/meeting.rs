//! Two workers tell each other of their devices, and open each other's pools.

use std::sync::Arc;

use farref::context::NodeId;
use farref::{Peer, Worker};
use farref_cuda::{Cuda, CudaError, ImportedPool, Ticket};
use serde::{Deserialize, Serialize};

use super::device;
use super::device_map::DeviceMap;
use super::peers::{Peers, PoolId};
use crate::error::Result;

/// How tensors on CUDA devices go to a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Path {
    /// Those on a GPU that both see are used where they are.
    Shared,
    /// They are copied: the peer is on another host, sees other GPUs, or is not of this kind.
    Copied,
}

/// What one worker says to another.
#[derive(Serialize, Deserialize)]
#[serde(rename = "farref_autograd::cuda::Introduction")]
struct Introduction {
    tickets: Vec<Ticket>,
    /// Where it sends tensors: from which of its devices to which.
    map: Vec<(u32, u32)>,
    /// The pools that it has opened, of the other one and of others.
    opened: Vec<PoolId>,
}

/// Meets a peer: from then on tensors are shared with it that can be.
///
/// There is no need to call this: it is done in the background when a tensor on a CUDA device is first sent to a peer, and
/// what is sent until then is copied. Says how tensors on CUDA devices go there.
///
/// ```no_run
/// use farref_autograd::cuda::{self, Path};
///
/// # async fn example(me: &farref::Worker) -> farref_autograd::Result<()> {
/// let peer = me.peer("evaluator")?;
/// if cuda::meet(me, &peer).await? == Path::Copied {
///     println!("the evaluator is not on this GPU");
/// }
/// # Ok(())
/// # }
/// ```
pub async fn meet(worker: &Worker, peer: &Peer) -> Result<Path> {
    let peers = worker.extension::<Peers>();
    let introduction = introduce(&peers, peer.name());
    let (life, answer) = introduced::on(peer, introduction).await?;
    let is_shared = take(worker, peer, life, answer).await;
    if is_shared {
        has_opened::on(peer, peers.pools()).await?;
    }
    Ok(match is_shared {
        true => Path::Shared,
        false => Path::Copied,
    })
}

/// The same in the background, if it was not done yet.
pub(super) fn meet_later(peers: &Peers, worker: Worker, peer: Peer, life: NodeId) {
    if peers.begin(life) {
        in_background(async move {
            if let Err(error) = meet(&worker, &peer).await {
                tracing::debug!(peer = peer.name(), %error, "tensors on CUDA devices are copied to this peer");
            }
        });
    }
}

/// Has a peer meet the owner of memory that is to be handed on to it, in the background, if it was not asked to yet.
pub(super) fn acquaint_later(
    peers: &Arc<Peers>,
    peer: Peer,
    life: NodeId,
    owner: Peer,
    owners_life: NodeId,
) {
    if !peers.begin_acquainting(life, owners_life) {
        return;
    }
    let peers = Arc::clone(peers);
    in_background(async move {
        match acquainted::on(&peer, owner).await {
            Ok(opened) => peers.note_opened(life, &limited(opened)),
            Err(error) => {
                tracing::debug!(peer = peer.name(), %error, "tensors of a third worker are copied to this peer")
            }
        }
    });
}

/// Whoever sends a tensor does not wait for this, and may have no runtime.
fn in_background(work: impl Future<Output = ()> + Send + 'static) {
    let thread = std::thread::Builder::new().name("farref-cuda-meet".to_owned());
    let begun = thread.spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        match runtime {
            Ok(runtime) => runtime.block_on(work),
            Err(error) => tracing::debug!(%error, "tensors on CUDA devices are copied: no runtime to meet a peer"),
        }
    });
    if let Err(error) = begun {
        tracing::debug!(%error, "tensors on CUDA devices are copied: no thread to meet a peer");
    }
}

/// What this worker says of itself.
fn introduce(peers: &Peers, to: &str) -> Introduction {
    let devices = device::all_open();
    let pools = devices
        .iter()
        .filter_map(|device| device.pool.as_ref().ok());
    Introduction {
        tickets: pools.map(|pool| pool.ticket()).collect(),
        map: peers.map(to).unwrap_or_default().pairs(),
        opened: peers.pools(),
    }
}

/// Opens what can be opened of what a peer has said. Says whether one of them has opened something of the other.
async fn take(worker: &Worker, peer: &Peer, life: NodeId, said: Introduction) -> bool {
    let peers = worker.extension::<Peers>();
    let map = DeviceMap::of_pairs(&said.map);
    let known = Arc::clone(&peers);
    let tickets = said.tickets;
    // Sockets and the driver take their time.
    let opened = tokio::task::spawn_blocking(move || open(&known, life, tickets)).await;
    let opened = opened.unwrap_or_default();
    let (me, pools) = (worker.node(), limited(said.opened));
    let is_shared = !opened.is_empty() || pools.iter().any(|&(owner, _)| owner == me);
    peers.note_peer(life, map, opened);
    peers.note_opened(life, &pools);
    forget_when_gone(worker, peer, life);
    is_shared
}

/// A peer's word, as much of it as can be true.
fn limited(mut pools: Vec<PoolId>) -> Vec<PoolId> {
    pools.truncate(MOST_POOLS);
    pools
}

/// CT-4: each is looked at by `farref_cuda`; a peer has as many as it has devices.
fn open(peers: &Peers, owner: NodeId, tickets: Vec<Ticket>) -> Vec<(u64, Arc<ImportedPool>)> {
    let Ok(cuda) = Cuda::open() else {
        return Vec::new();
    };
    let mut opened = Vec::new();
    for ticket in tickets.iter().take(MOST_DEVICES) {
        let pool = match peers.pool((owner, ticket.pool())) {
            Some(pool) => Ok(pool),
            None => ImportedPool::open(&cuda, ticket),
        };
        match pool {
            // Before tensors come: candle takes its time.
            Ok(pool) if device::open(pool.ordinal()).is_ok() => opened.push((ticket.pool(), pool)),
            Ok(_) | Err(CudaError::OtherHost | CudaError::OtherDevice { .. }) => {}
            Err(error) => tracing::debug!(%error, "device memory of a peer cannot be shared"),
        }
    }
    opened
}

/// No host has more.
const MOST_DEVICES: usize = 64;
/// Nor is there so much on one.
const MOST_POOLS: usize = 4096;

fn forget_when_gone(worker: &Worker, peer: &Peer, life: NodeId) {
    let peers = worker.extension::<Peers>();
    let gone = peer.gone();
    tokio::spawn(async move {
        let _ = gone.await;
        peers.forget(life);
    });
}

/// A peer introduces itself. Answers who this is, and the same.
#[farref::remote]
async fn introduced(caller: Introduction) -> Result<(NodeId, Introduction)> {
    let (worker, from, life) = who_calls()?;
    // So that there is something to open: the caller has a GPU.
    if !caller.tickets.is_empty() && device::count() > 0 && device::all_open().is_empty() {
        let opened = tokio::task::spawn_blocking(|| device::open(0).map(drop)).await;
        if let Ok(Err(error)) = opened {
            tracing::debug!(error, "no CUDA device is opened for a peer");
        }
    }
    take(&worker, &from, life, caller).await;
    let peers = worker.extension::<Peers>();
    Ok((worker.node(), introduce(&peers, from.name())))
}

/// Meets a third worker. Says which pools are open here then.
#[farref::remote]
async fn acquainted(with: Peer) -> Result<Vec<PoolId>> {
    let (worker, ..) = who_calls()?;
    meet(&worker, &with).await?;
    Ok(worker.extension::<Peers>().pools())
}

/// A peer has opened these pools.
#[farref::remote]
async fn has_opened(pools: Vec<PoolId>) -> Result<()> {
    let (worker, _, life) = who_calls()?;
    worker
        .extension::<Peers>()
        .note_opened(life, &limited(pools));
    Ok(())
}

/// Who is called, and by whom.
fn who_calls() -> Result<(Worker, Peer, NodeId)> {
    let outside = || candle_core::Error::Msg("outside of a remote function".to_owned());
    let worker = Worker::current().ok_or_else(outside)?;
    let caller = Worker::caller().ok_or_else(outside)?;
    let life = Worker::caller_node().ok_or_else(outside)?;
    Ok((worker, caller, life))
}
