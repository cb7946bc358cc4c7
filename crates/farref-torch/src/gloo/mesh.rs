//! Connects every rank with every other one, by what they publish in the store.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use farref::Store;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::collective::Gloo;
use super::error::GlooError;
use super::pair::Pair;
use super::rank::{GlooDialect, Published, connects, port_index};
use crate::deadline::end_of;

/// How long who connects may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// How many may be about to say it, beside the ranks.
const STRANGERS: usize = 64;
const PAUSE: Duration = Duration::from_millis(100);

/// Which rank this is, and how it finds the others.
#[derive(Debug)]
pub(crate) struct MeshConfig<'a> {
    pub(crate) store: &'a dyn Store,
    /// What the keys begin with; Gloo's own begin behind it.
    pub(crate) keys: String,
    pub(crate) rank: u16,
    pub(crate) world: u16,
    pub(crate) dialect: GlooDialect,
    /// An address of this host that the others reach.
    pub(crate) ip: IpAddr,
    pub(crate) hostname: String,
    pub(crate) patience: Duration,
}

/// Somebody who has connected, or was connected to.
struct Newcomer {
    rank: u16,
    stream: TcpStream,
    /// Nobody but itself says that it is that rank.
    claimed: bool,
}

type Met = Result<Newcomer, io::Error>;

impl MeshConfig<'_> {
    /// Connects with all others.
    pub(crate) async fn connect(&self) -> Result<Gloo, GlooError> {
        let began = Instant::now();
        let end = end_of(self.patience);
        let mut pairs: Vec<Option<Pair>> = (0..self.world).map(|_| None).collect();
        let mut listeners = self.publish().await?;
        let mut connecting: JoinSet<Met> = JoinSet::new();
        let mut expected = Vec::new();
        for peer in self.peers() {
            let (mine, (theirs, id)) = (
                listeners.address(self.rank, peer)?,
                self.published(peer, end).await?,
            );
            match connects(mine, theirs) {
                None => {
                    return Err(GlooError::Family {
                        rank: peer,
                        mine,
                        theirs,
                    });
                }
                Some(true) => drop(connecting.spawn(connect(peer, theirs, id, end))),
                Some(false) => expected.push(peer),
            }
        }
        listeners.expect(self.rank, &expected, &mut connecting);

        let mut last = None;
        let all = async {
            while pairs.iter().flatten().count() + 1 < usize::from(self.world) {
                let met = tokio::select! {
                    Some(met) = connecting.join_next() => met,
                    accepted = listeners.accept() => {
                        // Above that, strangers are to wait until others have introduced themselves.
                        if let Some(stream) = accepted && connecting.len() < self.crowd() {
                            connecting.spawn(introduction(stream));
                        }
                        continue;
                    }
                };
                match met.unwrap_or_else(|panicked| Err(io::Error::other(panicked))) {
                    Ok(newcomer) => {
                        let Newcomer {
                            rank,
                            stream,
                            claimed,
                        } = newcomer;
                        if let Some(pair @ None) = pairs.get_mut(usize::from(rank))
                            && (!claimed || expected.contains(&rank))
                        {
                            *pair = Some(Pair::new(rank, stream));
                        }
                    }
                    Err(error) => last = Some(error),
                }
            }
        };
        if timeout_at(end, all).await.is_err() {
            let missing = self.peers();
            let missing = missing.filter(|peer| pairs[usize::from(*peer)].is_none());
            return Err(GlooError::Missing {
                ranks: missing.collect(),
                waited: began.elapsed(),
                last,
            });
        }
        Ok(Gloo::new(self.rank, pairs))
    }

    fn peers(&self) -> impl Iterator<Item = u16> + use<> {
        let own = self.rank;
        (0..self.world).filter(move |rank| *rank != own)
    }

    fn crowd(&self) -> usize {
        usize::from(self.world) + STRANGERS
    }

    async fn publish(&self) -> Result<Listeners, GlooError> {
        let listen = || async {
            let address = self.ip;
            let listener = TcpListener::bind((address, 0)).await;
            listener.map_err(|source| GlooError::Listen { address, source })
        };
        let store = |doing: &str, source| GlooError::Store {
            doing: format!("publishing this rank's {doing}"),
            source,
        };
        let key = format!("{}{}", self.keys, self.rank);
        let (listeners, published) = match self.dialect {
            GlooDialect::PairIds => {
                let listeners = Listeners::Shared(listen().await?);
                let published = Published::PairIds {
                    hostname: self.hostname.clone().into_bytes(),
                    address: listeners.address(self.rank, self.rank)?,
                    ids: (0..self.world).map(u64::from).collect(),
                };
                (listeners, published)
            }
            GlooDialect::PortPerPeer => {
                let mut ports = Vec::new();
                let mut addresses = Vec::new();
                for _ in self.peers() {
                    let listener = listen().await?;
                    addresses.push(address_of(&listener)?);
                    ports.push(Some(listener));
                }
                // Others look there for who shares a host with them.
                let hostname = format!("{}rank_{}", self.keys, self.rank);
                let set = self.store.set(&hostname, self.hostname.as_bytes()).await;
                set.map_err(|source| store("host", source))?;
                (Listeners::PerPeer(ports), Published::PortPerPeer(addresses))
            }
        };
        let set = self.store.set(&key, &published.encode()).await;
        set.map_err(|source| store("address", source))?;
        Ok(listeners)
    }

    /// Where a rank listens for this one.
    async fn published(
        &self,
        peer: u16,
        end: Instant,
    ) -> Result<(SocketAddr, Option<u64>), GlooError> {
        let key = format!("{}{peer}", self.keys);
        let left = end.saturating_duration_since(Instant::now());
        let got = self.store.get(&key, left).await;
        let bytes = got.map_err(|source| GlooError::Store {
            doing: format!("waiting for the address of rank {peer}"),
            source,
        })?;
        let published = Published::decode(self.dialect, &bytes, self.world);
        let published = published.and_then(|published| {
            let here = published.for_peer(peer, self.rank);
            here.ok_or_else(|| "there is no address for this rank".to_owned())
        });
        published.map_err(|reason| GlooError::Published { rank: peer, reason })
    }
}

/// Where the others come in.
enum Listeners {
    /// All at one port; who comes says who it is.
    Shared(TcpListener),
    /// Each at a port of its own.
    PerPeer(Vec<Option<TcpListener>>),
}

impl Listeners {
    /// Where `peer` comes in.
    fn address(&self, own: u16, peer: u16) -> Result<SocketAddr, GlooError> {
        let listener = match self {
            Self::Shared(listener) => Some(listener),
            Self::PerPeer(ports) => port_index(own, peer)
                .and_then(|index| ports.get(index))
                .and_then(Option::as_ref),
        };
        let missing = || GlooError::Published {
            rank: own,
            reason: format!("there is no port for rank {peer}"),
        };
        address_of(listener.ok_or_else(missing)?)
    }

    /// Waits for those who will come, where each has a port of its own.
    fn expect(&mut self, own: u16, peers: &[u16], connecting: &mut JoinSet<Met>) {
        let Self::PerPeer(ports) = self else { return };
        for &peer in peers {
            let port = port_index(own, peer).and_then(|index| ports.get_mut(index));
            if let Some(listener) = port.and_then(Option::take) {
                connecting.spawn(async move {
                    let (stream, _) = listener.accept().await?;
                    stream.set_nodelay(true)?;
                    Ok(Newcomer {
                        rank: peer,
                        stream,
                        claimed: false,
                    })
                });
            }
        }
    }

    /// Somebody who will have to say who it is.
    async fn accept(&self) -> Option<TcpStream> {
        match self {
            Self::Shared(listener) => match listener.accept().await {
                Ok((stream, _)) => Some(stream),
                Err(_) => {
                    sleep(PAUSE).await;
                    None
                }
            },
            Self::PerPeer(_) => std::future::pending().await,
        }
    }
}

fn address_of(listener: &TcpListener) -> Result<SocketAddr, GlooError> {
    listener.local_addr().map_err(|source| GlooError::Listen {
        address: std::net::Ipv4Addr::UNSPECIFIED.into(),
        source,
    })
}

/// This rank has published the ranks themselves as the numbers to say.
async fn introduction(mut stream: TcpStream) -> Met {
    stream.set_nodelay(true)?;
    let number = timeout(INTRODUCTION, stream.read_u64_le()).await??;
    let rank = u16::try_from(number).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(Newcomer {
        rank,
        stream,
        claimed: true,
    })
}

async fn connect(peer: u16, address: SocketAddr, id: Option<u64>, end: Instant) -> Met {
    loop {
        let attempt = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            if let Some(id) = id {
                let id = id.to_le_bytes();
                let mut left = &id[..];
                while !left.is_empty() {
                    stream.writable().await?;
                    match stream.try_write(left) {
                        Ok(size) => left = &left[size..],
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(Newcomer {
                rank: peer,
                stream,
                claimed: false,
            })
        };
        match timeout_at(end, attempt).await {
            Ok(Err(_)) if Instant::now() + PAUSE < end => sleep(PAUSE).await,
            Ok(met) => return met,
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
