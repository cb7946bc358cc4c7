//! From a rendezvous to a store: hosts it if this worker has to, and connects to it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use crate::error::RendezvousError;
use crate::etcd_place::EtcdPlace;
use crate::location::Rendezvous;
#[cfg(feature = "etcd")]
use crate::store::EtcdStore;
#[cfg(not(feature = "etcd"))]
use crate::store::StoreError;
use crate::store::{FileStore, Store, StoreDialect, StoreServer, TcpStoreClient};

/// How long the store's host keeps it after it has given up: the others look every second for the reason.
const LINGER: Duration = Duration::from_millis(1_500);

/// A store to use, and its server if this worker hosts it. The store works while the server lives.
#[derive(Debug)]
pub struct Opened {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Its server, if it is hosted here.
    pub server: Option<StoreServer>,
}

impl Opened {
    /// Closes the store, if it is hosted here, after its group did not come together for this reason: when
    /// this returns, the port is free for the next attempt.
    pub async fn give_up(self, reason: Option<&RendezvousError>) {
        if let Some(presence) = self.store.presence()
            && let Err(error) = presence.leave().await
        {
            tracing::debug!(%error, "the store was not left");
        }
        let Some(server) = self.server else {
            return;
        };
        if reason.is_some_and(RendezvousError::concerns_all) {
            // The others are still to find out from it why they wait in vain.
            tokio::time::sleep(LINGER).await;
        }
        server.close().await;
    }
}

/// Opens the store of a rendezvous. `hosts` says that this worker is the one to host it, as rank 0
/// is unless the launcher does it.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{Rendezvous, open};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let free = farref_rendezvous::StoreServer::bind("127.0.0.1:0").await?;
/// # let place = format!("tcp://{}", free.local_addr());
/// # free.close().await;
/// let place: Rendezvous = place.parse()?; // such as tcp://127.0.0.1:29500
/// let timeout = Duration::from_secs(60);
/// let host = open(&place, true, timeout).await?;
/// let guest = open(&place, false, timeout).await?;
/// host.store.set("key", b"value").await?;
/// assert_eq!(guest.store.try_get("key").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
pub async fn open(
    rendezvous: &Rendezvous,
    hosts: bool,
    timeout: Duration,
) -> Result<Opened, RendezvousError> {
    let (host, port) = match rendezvous {
        Rendezvous::File(path) => {
            let store = Arc::new(FileStore::new(path));
            let server = None;
            return Ok(Opened { store, server });
        }
        Rendezvous::Etcd(place) => {
            let store = open_etcd(place, timeout, false).await?;
            let server = None;
            return Ok(Opened { store, server });
        }
        Rendezvous::Tcp { host, port } => (host.as_str(), *port),
    };
    let server = match hosts {
        true => Some(host_store(host, port).await?),
        false => None,
    };
    // The host's own way in is the address it listens at, which works behind any kind of NAT.
    let store = match &server {
        Some(server) => {
            let ip = reachable(server.local_addr().ip()).to_string();
            let (dialect, port) = (StoreDialect::Greeted, server.local_addr().port());
            TcpStoreClient::connect_as(dialect, &ip, port, timeout).await?
        }
        None => TcpStoreClient::connect(host, port, timeout).await?,
    };
    let store = Arc::new(store);
    Ok(Opened { store, server })
}

/// Opens the store of a rendezvous to read what is in it, unnoticed.
pub async fn look(
    rendezvous: &Rendezvous,
    timeout: Duration,
) -> Result<Arc<dyn Store>, RendezvousError> {
    match rendezvous {
        Rendezvous::Etcd(place) => open_etcd(place, timeout, true).await,
        rendezvous => Ok(open(rendezvous, false, timeout).await?.store),
    }
}

#[cfg(feature = "etcd")]
async fn open_etcd(
    place: &EtcdPlace,
    timeout: Duration,
    unnoticed: bool,
) -> Result<Arc<dyn Store>, RendezvousError> {
    let store = match unnoticed {
        true => EtcdStore::look(place, timeout).await?,
        false => EtcdStore::open(place, timeout).await?,
    };
    Ok(Arc::new(store))
}

#[cfg(not(feature = "etcd"))]
async fn open_etcd(
    place: &EtcdPlace,
    _: Duration,
    _: bool,
) -> Result<Arc<dyn Store>, RendezvousError> {
    let (place, feature) = (place.to_string(), "etcd");
    Err(StoreError::NotBuilt { place, feature }.into())
}

/// Hosts the store at an address of this host.
pub async fn host_store(host: &str, port: u16) -> Result<StoreServer, RendezvousError> {
    // A name may stand for loopback here and for another address elsewhere (Debian's 127.0.1.1),
    // so only what is loopback everywhere keeps the others out.
    let loopback = match host.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => Some(ip),
        _ if host == "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => None,
    };
    let server = match loopback {
        Some(ip) => StoreServer::bind((ip, port)).await,
        None => match StoreServer::bind(("::", port)).await {
            Ok(server) => Ok(server),
            // A host without IPv6.
            Err(_) => StoreServer::bind((Ipv4Addr::UNSPECIFIED, port)).await,
        },
    };
    server.map_err(|source| RendezvousError::Store {
        doing: "hosting the rendezvous",
        source,
    })
}

fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        ip if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::{Scratch, TEST_TIMEOUT};

    use super::*;

    #[tokio::test]
    async fn a_rendezvous_opens_the_store_it_names() {
        let scratch = Scratch::new().unwrap();
        let free = StoreServer::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().port();
        free.close().await;
        for host in ["127.0.0.1", "localhost", "0.0.0.0"] {
            let at: Rendezvous = format!("tcp://{host}:{port}").parse().unwrap();
            let hosted = open(&at, true, TEST_TIMEOUT).await.unwrap();
            let used = open(&at, false, TEST_TIMEOUT).await.unwrap();
            assert!(hosted.server.is_some() && used.server.is_none());
            hosted.store.set("k", b"v").await.unwrap();
            assert_eq!(used.store.try_get("k").await.unwrap().unwrap(), "v");
            let taken = open(&at, true, TEST_TIMEOUT).await.unwrap_err().to_string();
            assert!(taken.contains("another process"), "{taken}");
            drop(used);
            hosted.server.unwrap().close().await;
        }
        let at = Rendezvous::File(scratch.path().join("store"));
        let opened = open(&at, true, TEST_TIMEOUT).await.unwrap();
        assert!(opened.server.is_none());
        opened.store.set("k", b"v").await.unwrap();
    }
}
