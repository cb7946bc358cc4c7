//! From a rendezvous to a store: hosts it if this worker has to, and connects to it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use super::error::RendezvousError;
use super::file_store::FileStore;
use super::location::Rendezvous;
use super::store::Store;
use super::tcp_store::{StoreDialect, StoreServer, TcpStoreClient};

/// A store to use, and its server if this worker hosts it. The store works while the server lives.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) server: Option<StoreServer>,
}

/// Opens the store of a rendezvous. `hosts` says that this worker is the one to host it, as rank 0
/// is unless the launcher does it.
pub(crate) async fn open(
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
        Rendezvous::Tcp { host, port } => (host.as_str(), *port),
    };
    let server = match hosts {
        true => Some(serve(host, port).await?),
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

/// Hosts the store at an address of this host.
pub(crate) async fn serve(host: &str, port: u16) -> Result<StoreServer, RendezvousError> {
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
