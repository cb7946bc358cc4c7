//! Two workers tell each other of their devices, and open each other's pools.

use std::sync::Arc;

use farref::context::NodeId;
use farref::{Peer, Worker};
use farref_cuda::{Cuda, CudaError, ImportedPool, Ticket};
use serde::{Deserialize, Serialize};

use super::device;
use super::device_map::DeviceMap;
use super::peers::{MOST_DEVICES, Opened, Peers, PoolId};
use crate::error::{Error, Result};

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
    opened: Opened,
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
    let told = introduction.tickets.len() as u64;
    let (life, answer) = introduced::on(peer, introduction).await?;
    // CT-4
    if worker.peer_of(life).name() != peer.name() {
        let reason = format!("worker `{}` says that it is another one", peer.name());
        return Err(Error::Invalid(reason));
    }
    let is_shared = take(worker, life, answer).await?;
    if is_shared {
        has_opened::on(peer, peers.opened()).await?;
    }
    peers.meeting(life, |meeting| meeting.succeed(told));
    Ok(match is_shared {
        true => Path::Shared,
        false => Path::Copied,
    })
}

/// The same in the background, if it was not done yet, or a device was opened since.
pub(super) fn meet_later(peers: &Arc<Peers>, worker: &Worker, peer: Peer, life: NodeId) {
    peers.know(worker, life);
    let pools = own_tickets().len() as u64;
    if peers.meeting(life, |meeting| meeting.begin(pools)) == Some(true) {
        let (me, peers) = (worker.clone(), Arc::clone(peers));
        // Whoever sends a tensor does not wait for this, and may have no runtime: the worker has one.
        worker.runtime().spawn(async move {
            let met = meet(&me, &peer).await;
            if let Err(error) = &met {
                tracing::debug!(peer = peer.name(), %error, "tensors on CUDA devices are copied to this peer for now");
            }
            peers.meeting(life, |meeting| meeting.end(met.is_err()));
        });
    }
}

/// Has a peer meet the owner of memory that is to be handed on to it, in the background, if it was not asked to yet for that pool.
pub(super) fn acquaint_later(
    peers: &Arc<Peers>,
    worker: &Worker,
    peer: Peer,
    life: NodeId,
    owner: Peer,
    (owners_life, pool): PoolId,
) {
    peers.know(worker, life);
    // Later pools of a process have higher numbers.
    let told = pool.saturating_add(1);
    let begins = peers.acquainting(life, owners_life, |meeting| meeting.begin(told));
    if begins != Some(true) {
        return;
    }
    let peers = Arc::clone(peers);
    worker.runtime().spawn(async move {
        let opened = acquainted::on(&peer, owner).await;
        let noted = opened.map_err(Error::from);
        let noted = noted.and_then(|opened| peers.note_opened(life, &opened));
        if let Err(error) = &noted {
            tracing::debug!(peer = peer.name(), %error, "tensors of a third worker are copied to this peer for now");
        }
        peers.acquainting(life, owners_life, |meeting| {
            if noted.is_ok() {
                meeting.succeed(told);
            }
            meeting.end(noted.is_err());
        });
    });
}

/// What this worker says of itself.
fn introduce(peers: &Peers, to: &str) -> Introduction {
    Introduction {
        tickets: own_tickets(),
        map: peers.map(to).unwrap_or_default().pairs(),
        opened: peers.opened(),
    }
}

/// For the devices that are open here.
fn own_tickets() -> Vec<Ticket> {
    let devices = device::all_open();
    let pools = devices
        .iter()
        .filter_map(|device| device.pool.as_ref().ok());
    pools.map(|pool| pool.ticket()).collect()
}

/// Opens what can be opened of what a peer has said. Says whether one of them has opened something of the other.
async fn take(worker: &Worker, life: NodeId, said: Introduction) -> Result<bool> {
    let peers = worker.extension::<Peers>();
    peers.know(worker, life);
    peers.note_opened(life, &said.opened)?;
    // CT-4
    let map = &said.map[..said.map.len().min(MOST_DEVICES)];
    let map = DeviceMap::of_pairs(map);
    let known = Arc::clone(&peers);
    let tickets = said.tickets;
    // Sockets and the driver take their time.
    let taken = tokio::task::spawn_blocking(move || {
        let is_near = tickets.iter().any(Ticket::is_of_this_host);
        (is_near, open(&known, life, tickets))
    });
    let (is_near, opened) = taken.await.unwrap_or_default();
    let (me, pools) = (worker.node(), said.opened.pools);
    let is_shared = !opened.is_empty() || pools.iter().any(|&(owner, _)| owner == me);
    peers.note_peer(life, map, is_near, opened);
    Ok(is_shared)
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
            // All of a process are had from one socket: the others would take as long.
            Err(error @ CudaError::Unreachable(_)) => {
                tracing::debug!(%error, "the device memory of a peer cannot be shared");
                break;
            }
            Err(error) => tracing::debug!(%error, "device memory of a peer cannot be shared"),
        }
    }
    opened
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
    take(&worker, life, caller).await?;
    let peers = worker.extension::<Peers>();
    let answer = introduce(&peers, from.name());
    let told = answer.tickets.len() as u64;
    peers.meeting(life, |meeting| meeting.succeed(told));
    Ok((worker.node(), answer))
}

/// Meets a third worker. Says which pools are open here then.
#[farref::remote]
async fn acquainted(with: Peer) -> Result<Opened> {
    let (worker, ..) = who_calls()?;
    meet(&worker, &with).await?;
    Ok(worker.extension::<Peers>().opened())
}

/// A peer has opened these pools.
#[farref::remote]
async fn has_opened(opened: Opened) -> Result<()> {
    let (worker, _, life) = who_calls()?;
    worker.extension::<Peers>().note_opened(life, &opened)
}

/// Who is called, and by whom.
fn who_calls() -> Result<(Worker, Peer, NodeId)> {
    let outside = || candle_core::Error::Msg("outside of a remote function".to_owned());
    let worker = Worker::current().ok_or_else(outside)?;
    let caller = Worker::caller().ok_or_else(outside)?;
    let life = Worker::caller_node().ok_or_else(outside)?;
    Ok((worker, caller, life))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use farref::testing::Cluster;

    use super::*;

    async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        for _ in 0..3000 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("not after 30 s: {what}");
    }

    /// CT-5: the thread on which a tensor is sent, and whatever runtime it has, are gone long before the peer is.
    #[tokio::test]
    async fn a_peer_that_was_met_in_the_background_is_forgotten_when_it_is_gone() {
        let cluster = Cluster::start(2).await.unwrap();
        let me = cluster.worker(0).clone();
        let (peer, life) = (me.peer("worker1").unwrap(), cluster.worker(1).node());
        let peers = me.extension::<Peers>();
        let there = cluster.worker(1).extension::<Peers>();
        let (worker, known) = (me.clone(), Arc::clone(&peers));
        std::thread::spawn(move || meet_later(&known, &worker, peer, life))
            .join()
            .unwrap();
        until("they have met", || there.knows(me.node())).await;
        assert!(peers.knows(life));
        cluster.crash(1).await;
        until("it is forgotten", || !peers.knows(life)).await;
        drop(me);
        cluster.shutdown().await.unwrap();
    }

    #[tokio::test]
    async fn however_often_two_meet_one_task_watches() {
        let cluster = Cluster::start(2).await.unwrap();
        let me = cluster.worker(0);
        let peer = me.peer("worker1").unwrap();
        let tasks = || me.runtime().metrics().num_alive_tasks();
        meet(me, &peer).await.unwrap();
        until("the first meeting is over", {
            let mut last = usize::MAX;
            move || std::mem::replace(&mut last, tasks()) == last
        })
        .await;
        let before = tasks();
        for _ in 0..50 {
            meet(me, &peer).await.unwrap();
        }
        until("nothing is left of the others", || tasks() <= before).await;
        cluster.shutdown().await.unwrap();
    }
}
