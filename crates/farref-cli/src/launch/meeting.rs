//! Where the ranks meet, and where the launchers of several nodes tell each other what happens.
//!
//! The launcher of node 0 hosts the store. It outlives every rank, so any of them can be started again; a
//! rank 0 that hosted it would take it along. On several nodes the launchers use the same store, under
//! keys of their own: node 0 says what the run is, the first failure anywhere ends the run everywhere, and
//! node 0 stays until all others are done, because their ranks may need the store until then.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::{Store as _, StoreError, StoreServer, TcpStoreClient};
use tokio::time::timeout;

use super::environment::Place;
use super::failure::Failure;
use super::plan::Plan;

/// How long the launcher of another node waits for that of node 0.
const PATIENCE: Duration = Duration::from_secs(300);
/// How long to wait for another node in one go; it is asked again then.
const ASK: Duration = Duration::from_secs(30);
/// How long to try to tell other nodes something: node 0 may be gone.
const TELL: Duration = Duration::from_secs(5);

const RUN: &str = "farref-launch/run";
const FAILED: &str = "farref-launch/failed";

/// The store, and this launcher's place in it.
#[derive(Debug)]
pub(super) struct Meeting {
    place: Place,
    server: Option<StoreServer>,
    /// What the launchers of several nodes talk through.
    others: Option<Others>,
}

#[derive(Debug)]
struct Others {
    store: TcpStoreClient,
    node: u32,
    nodes: u32,
}

impl Meeting {
    pub(super) async fn begin(plan: &Plan) -> anyhow::Result<Self> {
        let (host, port) = match &plan.rendezvous {
            Some((host, port)) => (host.clone(), *port),
            None => (Ipv4Addr::LOCALHOST.to_string(), 0),
        };
        let server = match plan.node {
            0 => Some(serve(&host, port).await?),
            _ => None,
        };
        let port = server
            .as_ref()
            .map_or(port, |server| server.local_addr().port());
        let mut run_id = format!("{:016x}", fastrand::u64(..));
        let mut others = None;
        if plan.nodes > 1 {
            let store = connect(server.as_ref(), &host, port).await?;
            run_id = introduce(&store, plan, run_id).await?;
            others = Some(Others {
                store,
                node: plan.node,
                nodes: plan.nodes,
            });
        }
        Ok(Self {
            place: Place { host, port, run_id },
            server,
            others,
        })
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Tells the other nodes of a failure, and learns which one was the first.
    pub(super) async fn tell(&self, failure: &Failure) -> Failure {
        let Some(others) = &self.others else {
            return failure.clone();
        };
        let word = format!("{}\n{}", failure.code, failure.text);
        let first = others.store.compare_set(FAILED, b"", word.as_bytes());
        match timeout(TELL, first).await {
            Ok(Ok(first)) => read_failure(&first).unwrap_or_else(|| failure.clone()),
            // Node 0 is gone: nobody is there to be told.
            Ok(Err(_)) | Err(_) => failure.clone(),
        }
    }

    /// Waits for a failure on another node. Never returns if there is none.
    pub(super) async fn failure_elsewhere(&self) -> Failure {
        let Some(others) = &self.others else {
            return std::future::pending().await;
        };
        loop {
            match others.store.get(FAILED, ASK).await {
                Ok(word) => {
                    if let Some(failure) = read_failure(&word) {
                        return failure;
                    }
                }
                Err(StoreError::Timeout { .. }) => {}
                Err(_) => {
                    let text =
                        "the launcher of node 0 is gone; the ranks of this node were stopped"
                            .to_owned();
                    return Failure { code: 1, text };
                }
            }
        }
    }

    /// Says that all ranks of this node have ended well. If node 0 is gone, it does not wait for that.
    pub(super) async fn say_done(&self) {
        self.heard().await;
        if let Some(others) = &self.others {
            let _ = timeout(TELL, others.store.set(&done_key(others.node), b"1")).await;
        }
    }

    /// Whether the store must stay for other nodes.
    pub(super) fn hosts_others(&self) -> bool {
        self.server.is_some() && self.others.is_some()
    }

    /// Waits until all other nodes have said that they are done.
    pub(super) async fn others_done(&self) {
        let Some(others) = &self.others else { return };
        let keys: Vec<String> = (1..others.nodes).map(done_key).collect();
        while let Err(StoreError::Timeout { .. }) = others.store.wait(&keys, ASK).await {}
    }

    /// Closes the store, after the launchers of the other nodes had time to learn of a failure.
    pub(super) async fn end(self) {
        let Some(server) = self.server else { return };
        if let Some(others) = &self.others
            && let Ok(Some(_)) = others.store.try_get(FAILED).await
        {
            let keys: Vec<String> = (1..others.nodes).map(heard_key).collect();
            let _ = others.store.wait(&keys, TELL).await;
        }
        server.close().await;
    }

    /// Says that node 0 need not stay for this node to learn of a failure.
    pub(super) async fn heard(&self) {
        if let Some(others) = &self.others {
            let _ = timeout(TELL, others.store.set(&heard_key(others.node), b"1")).await;
        }
    }
}

fn done_key(node: u32) -> String {
    format!("farref-launch/done/{node}")
}

fn heard_key(node: u32) -> String {
    format!("farref-launch/heard/{node}")
}

fn read_failure(word: &[u8]) -> Option<Failure> {
    let word = String::from_utf8_lossy(word);
    let (code, text) = word.split_once('\n')?;
    let text = text.to_owned();
    let code = code.parse().ok()?;
    Some(Failure { code, text })
}

async fn serve(host: &str, port: u16) -> anyhow::Result<StoreServer> {
    // A name may stand for loopback here and for another address elsewhere (Debian's 127.0.1.1), so only
    // what is loopback everywhere keeps the others out.
    let loopback = match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => Some(ip),
        _ if host == "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => None,
    };
    let bound = match loopback {
        Some(ip) => StoreServer::bind((ip, port)).await,
        None => match StoreServer::bind(("::", port)).await {
            Ok(server) => Ok(server),
            // A host without IPv6.
            Err(_) => StoreServer::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        },
    };
    bound.map_err(|error| match &error {
        StoreError::Bind { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            anyhow::anyhow!(
                "cannot host the rendezvous: port {port} is in use; give --rendezvous another port \
                 (on one node, leave it out to get a free one)"
            )
        }
        _ => anyhow::Error::from(error).context("cannot host the rendezvous"),
    })
}

async fn connect(
    server: Option<&StoreServer>,
    host: &str,
    port: u16,
) -> anyhow::Result<TcpStoreClient> {
    let Some(server) = server else {
        let connected = TcpStoreClient::connect(host, port, PATIENCE).await;
        return connected.with_context(|| {
            format!(
                "is `farref launch --node-rank 0` running at {host}:{port}? It cannot be reached"
            )
        });
    };
    // The host's own way in works behind any kind of NAT.
    let ip = match server.local_addr() {
        address if address.ip().is_unspecified() => Ipv4Addr::LOCALHOST.to_string(),
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => address.ip().to_string(),
    };
    let connected = TcpStoreClient::connect(&ip, port, ASK).await;
    connected.context("cannot reach the store that this launcher hosts")
}

/// Takes this node's place in the run; returns the run's id, which is node 0's.
async fn introduce(store: &TcpStoreClient, plan: &Plan, run_id: String) -> anyhow::Result<String> {
    let shape = format!("--nnodes {} -n {}", plan.nodes, plan.ranks);
    if plan.node == 0 {
        let run = format!("{run_id}\n{shape}");
        store.set(RUN, run.as_bytes()).await?;
        return Ok(run_id);
    }
    let run = store.get(RUN, PATIENCE).await;
    let run = run.context("a store is there, but no `farref launch --node-rank 0` uses it")?;
    let run = String::from_utf8_lossy(&run).into_owned();
    let Some((run, theirs)) = run.split_once('\n') else {
        bail!("the launcher of node 0 is of another version of farref");
    };
    ensure!(
        theirs == shape,
        "node 0 was started with `{theirs}`, this node with `{shape}`: all nodes need the same"
    );
    let node = plan.node;
    let key = format!("farref-launch/node/{node}");
    let taken = store.compare_set(&key, b"", run_id.as_bytes()).await?;
    ensure!(
        taken[..] == *run_id.as_bytes(),
        "another launcher is node {node} of this run already: give every node its own --node-rank"
    );
    Ok(run.to_owned())
}
