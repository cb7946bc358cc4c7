//! Where the ranks meet, and where the launchers of several nodes tell each other what happens.
//!
//! The launcher of node 0 hosts the store. It outlives every rank, so any of them can be started again; a
//! rank 0 that hosted it would take it along. On several nodes the launchers use the same store, under
//! keys of their own: node 0 says what the run is, the first failure or stop anywhere ends the run
//! everywhere, and node 0 stays until all others are done, because their ranks may need the store until
//! then. A launcher that cannot reach the store says so and goes on trying: its ranks may be well.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::{Store as _, StoreError, StoreServer, TcpStoreClient};
use rustix::process::Signal;
use tokio::time::{sleep, timeout};

use super::environment::Place;
use super::failure::Failure;
use super::plan::{Plan, TlsNames};
use super::signals;
use crate::group_tls::GroupTls;
use farref_group::{GroupToken, PublishedToken, token_from_environment};

/// How long the launcher of another node waits for that of node 0.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// How long to wait for another node in one go; it is asked again then.
const ASK: Duration = Duration::from_secs(30);
/// How long to try to tell other nodes something: node 0 may be gone.
pub(super) const TELL: Duration = Duration::from_secs(5);
/// How long to pause before a store that cannot be reached is tried again.
const AGAIN: Duration = Duration::from_millis(500);

const RUN: &str = "farref-launch/run";
const OVER: &str = "farref-launch/over";

/// The store, and this launcher's place in it.
#[derive(Debug)]
pub(super) struct Meeting {
    place: Place,
    /// Keeps the token that was made where those find it who look on.
    published: anyhow::Result<Option<PublishedToken>>,
    server: Option<StoreServer>,
    /// What the launchers of several nodes talk through.
    others: Option<Others>,
}

#[derive(Debug)]
struct Others {
    store: TcpStoreClient,
    node: u32,
    nodes: u32,
    /// The store could not be reached the last time.
    is_lost: Cell<bool>,
}

/// Why a run is over, in all nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Over {
    Failed(Failure),
    /// Somebody asked a node to end, which is no failure.
    Stopped {
        node: u32,
        signal: Signal,
    },
}

/// What a launcher learns of the others.
#[derive(Debug)]
pub(super) enum News {
    Over(Over),
    /// The store cannot be reached, for this reason.
    Lost(StoreError),
    /// It can be reached again.
    Found,
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
                is_lost: Cell::new(false),
            });
        }
        // One of several nodes would have to tell the others, and whoever listens.
        let token = match plan.nodes == 1 && token_from_environment().is_none() {
            true => Some(GroupToken::make()?),
            false => None,
        };
        let tls = match plan.tls {
            Some(names) => Some(make_tls(plan, names, &host, port)?),
            None => None,
        };
        let published = token.as_ref().map(|token| token.publish(&host, port));
        Ok(Self {
            place: Place {
                host,
                port,
                run_id,
                token,
                tls,
            },
            published: published.transpose(),
            server,
            others,
        })
    }

    /// What is worth saying of the group's token: nothing, if all is well.
    pub(super) fn said_of_token(&self) -> Option<String> {
        let error = self.published.as_ref().err()?;
        Some(format!(
            "{error:#}: to look into this group, set FARREF_TOKEN to a token of your own before you start it"
        ))
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Tells the other nodes that the run is over, and learns why it was first.
    pub(super) async fn tell(&self, over: &Over) -> Over {
        let Some(others) = &self.others else {
            return over.clone();
        };
        let word = over.to_word();
        let first = insist(TELL, async || {
            let first = others.store.compare_set(OVER, b"", word.as_bytes());
            first.await
        });
        match first.await {
            Some(first) => Over::from_word(&first),
            // Node 0 is gone: nobody is there to be told.
            None => over.clone(),
        }
    }

    /// Waits for something to happen on another node. Never returns if nothing does.
    pub(super) async fn news(&self) -> News {
        let Some(others) = &self.others else {
            return std::future::pending().await;
        };
        loop {
            let error = match others.is_lost.get() {
                false => match others.store.get(OVER, ASK).await {
                    Ok(word) => return News::Over(Over::from_word(&word)),
                    Err(StoreError::Timeout { .. }) => continue,
                    Err(error) => error,
                },
                true => match others.store.try_get(RUN).await {
                    Ok(Some(run)) => {
                        others.is_lost.set(false);
                        return self.found(&run);
                    }
                    // A launcher that has only just begun.
                    Ok(None) => {
                        sleep(AGAIN).await;
                        continue;
                    }
                    Err(error) => error,
                },
            };
            if !others.is_lost.replace(true) {
                return News::Lost(error);
            }
            sleep(AGAIN).await;
        }
    }

    /// A store is there again: is it the same run's?
    fn found(&self, run: &[u8]) -> News {
        let run = String::from_utf8_lossy(run);
        if run.lines().next() == Some(&self.place.run_id) {
            return News::Found;
        }
        let text = "the launcher of node 0 was started anew: this node's run is over".to_owned();
        News::Over(Over::Failed(Failure { code: 1, text }))
    }

    /// Says that all ranks of this node have ended well; returns whether node 0 has heard it.
    pub(super) async fn say_done(&self, limit: Duration) -> bool {
        let Some(others) = &self.others else {
            return true;
        };
        let keys = [heard_key(others.node), done_key(others.node)];
        let said = insist(limit, async || {
            for key in &keys {
                others.store.set(key, b"1").await?;
            }
            Ok(())
        });
        said.await.is_some()
    }

    /// Whether the store must stay for other nodes.
    pub(super) fn hosts_others(&self) -> bool {
        self.server.is_some() && self.others.is_some()
    }

    /// Waits until all other nodes have said that they are done.
    pub(super) async fn others_done(&self) {
        let Some(others) = &self.others else { return };
        let keys: Vec<String> = (1..others.nodes).map(done_key).collect();
        while let Err(error) = others.store.wait(&keys, ASK).await {
            if !matches!(error, StoreError::Timeout { .. }) {
                sleep(AGAIN).await;
            }
        }
    }

    /// Closes the store, after the launchers of the other nodes had time to learn of a failure.
    pub(super) async fn end(self) {
        let Some(server) = self.server else { return };
        if let Some(others) = &self.others
            && let Ok(Some(_)) = others.store.try_get(OVER).await
        {
            let keys: Vec<String> = (1..others.nodes).map(heard_key).collect();
            let _ = others.store.wait(&keys, TELL).await;
        }
        server.close().await;
    }

    /// Says that node 0 need not stay for this node to learn of a failure.
    pub(super) async fn heard(&self) {
        if let Some(others) = &self.others {
            let key = heard_key(others.node);
            insist(TELL, async || others.store.set(&key, b"1").await).await;
        }
    }
}

/// Asks the store again until it answers, for so long.
async fn insist<T>(limit: Duration, ask: impl AsyncFn() -> Result<T, StoreError>) -> Option<T> {
    let asking = async {
        loop {
            if let Ok(answer) = ask().await {
                return answer;
            }
            sleep(AGAIN).await;
        }
    };
    timeout(limit, asking).await.ok()
}

impl Over {
    fn to_word(&self) -> String {
        match self {
            Self::Failed(Failure { code, text }) => format!("failed {code}\n{text}"),
            Self::Stopped { node, signal } => format!("stopped {}\n{node}", signal.as_raw()),
        }
    }

    fn from_word(word: &[u8]) -> Self {
        let word = String::from_utf8_lossy(word);
        Self::parse(&word).unwrap_or_else(|| {
            let text = format!("the run is over; another version of farref says why: {word}");
            Self::Failed(Failure { code: 1, text })
        })
    }

    fn parse(word: &str) -> Option<Self> {
        let (head, rest) = word.split_once('\n')?;
        let (kind, number) = head.split_once(' ')?;
        match kind {
            "failed" => {
                let code = number.parse().ok()?;
                let text = rest.to_owned();
                Some(Self::Failed(Failure { code, text }))
            }
            "stopped" => {
                let signal = Signal::from_named_raw(number.parse().ok()?)?;
                let node = rest.parse().ok()?;
                signals::ends(signal).then_some(Self::Stopped { node, signal })
            }
            _ => None,
        }
    }
}

fn done_key(node: u32) -> String {
    format!("farref-launch/done/{node}")
}

fn heard_key(node: u32) -> String {
    format!("farref-launch/heard/{node}")
}

/// Certificates for all ranks.
fn make_tls(plan: &Plan, names: TlsNames, host: &str, port: u16) -> anyhow::Result<GroupTls> {
    let names = match names {
        TlsNames::Own => Some((0..plan.ranks).map(|local| plan.worker_name(local))),
        TlsNames::Any => None,
    };
    GroupTls::make(host, port, names)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_about_the_end_is_read_as_it_was_written() {
        let failure = Failure {
            code: 137,
            text: "rank 3 failed first\nand more".to_owned(),
        };
        let signal = Signal::INT;
        for over in [Over::Failed(failure), Over::Stopped { node: 7, signal }] {
            assert_eq!(Over::from_word(over.to_word().as_bytes()), over);
        }
    }

    #[test]
    fn a_word_that_cannot_be_read_is_a_failure() {
        for word in [
            "",
            "stopped 99\n0",
            "stopped 10\n0",
            "failed\nx",
            "paused 1\n2",
            "\u{fffd}",
        ] {
            let over = Over::from_word(word.as_bytes());
            assert!(
                matches!(over, Over::Failed(Failure { code: 1, .. })),
                "{word}"
            );
        }
    }
}
