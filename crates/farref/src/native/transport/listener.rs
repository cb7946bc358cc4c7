//! Where a worker listens: what is asked for, and the sockets that are bound for it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;

use super::memory::{MemoryListener, MemoryNetwork};
#[cfg(unix)]
use super::stream::unix_path;
use super::stream::{Reach, Stream};
use crate::error::BindError;
use crate::rendezvous::Address;

/// Where an agent listens.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub(crate) struct BindOptions {
    /// An address to listen at by TCP; port 0 takes any. 127.0.0.1:0 by default.
    pub(crate) tcp: Option<SocketAddr>,
    /// Whether to listen at a Unix socket too, for workers on the same host. True by default where
    /// there are such sockets.
    pub(crate) unix: bool,
    /// A network within this process, and this worker's name in it. None by default.
    pub(crate) memory: Option<(MemoryNetwork, String)>,
}

impl Default for BindOptions {
    fn default() -> Self {
        Self {
            tcp: Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)),
            unix: cfg!(unix),
            memory: None,
        }
    }
}

impl BindOptions {
    /// Listens in a network within this process and nowhere else.
    pub(crate) fn memory(network: &MemoryNetwork, name: impl Into<String>) -> Self {
        Self {
            tcp: None,
            unix: false,
            memory: Some((network.clone(), name.into())),
        }
    }
}

/// Sockets that listen and accept nothing yet: their addresses go into the card with which an agent
/// is started.
#[derive(Debug)]
pub(crate) struct Bound {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    network: Option<(MemoryNetwork, String)>,
}

/// What accepts connections of one kind.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    #[cfg(unix)]
    Unix {
        listener: UnixListener,
        /// Held for its destructor.
        _file: Option<RemoveOnDrop>,
    },
    Memory(MemoryListener),
}

impl Bound {
    /// Binds. Asynchronous only in that it needs a tokio runtime.
    pub(crate) async fn bind(options: &BindOptions) -> Result<Self, BindError> {
        let mut bound = Self {
            listeners: Vec::new(),
            addresses: Vec::new(),
            network: options.memory.clone(),
        };
        if let Some((network, name)) = &options.memory {
            let listener = network.bind(name).map_err(|source| BindError::Memory {
                name: name.clone(),
                source,
            })?;
            bound.listeners.push(Listener::Memory(listener));
            bound.addresses.push(Address::Memory(name.clone()));
        }
        #[cfg(unix)]
        if options.unix {
            let (listener, name) = bind_unix()?;
            bound.listeners.push(listener);
            bound.addresses.push(Address::Unix(name));
        }
        if let Some(address) = options.tcp {
            let failed = |source| BindError::Tcp { address, source };
            let listener = bind_tcp(address).map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            bound.listeners.push(Listener::Tcp(listener));
            bound.addresses.push(Address::Tcp(address));
        }
        if bound.listeners.is_empty() {
            return Err(BindError::Nowhere);
        }
        Ok(bound)
    }

    /// Where it listens, the best first. A TCP address may be unspecified, if that was asked for: then
    /// the caller knows what to advertise.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        self.addresses.clone()
    }

    /// What addresses of others may be tried from here.
    pub(crate) fn reach(&self) -> Reach {
        let is_tcp = |address: &Address| matches!(address, Address::Tcp(_));
        Reach {
            network: self.network.clone(),
            tcp: self.addresses.iter().any(is_tcp),
        }
    }

    /// Connections that come by TCP have little room for what is sent.
    #[cfg(all(test, unix))]
    pub(crate) fn leave_little_room(&self) {
        for listener in &self.listeners {
            if let Listener::Tcp(listener) = listener {
                // The least that there is.
                rustix::net::sockopt::set_socket_send_buffer_size(listener, 1).expect("a socket");
            }
        }
    }

    /// What listens, and what addresses of others may be tried from here.
    pub(crate) fn into_parts(self) -> (Vec<Listener>, Reach) {
        let reach = self.reach();
        (self.listeners, reach)
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

#[cfg(unix)]
fn bind_unix() -> Result<(Listener, String), BindError> {
    let mut random = [0; 8];
    let filled = SystemRandom::new().fill(&mut random);
    let number = u64::from_le_bytes(random);
    let name = if cfg!(target_os = "linux") {
        format!("@farref-{number:016x}")
    } else {
        let file = format!("farref-{number:016x}.socket");
        std::env::temp_dir().join(file).display().to_string()
    };
    let failed = |source| BindError::Unix {
        name: name.clone(),
        source,
    };
    filled.map_err(|_| failed(io::Error::other("no random numbers")))?;
    let path = unix_path(&name);
    let listener = UnixListener::bind(&path).map_err(failed)?;
    let file = (!name.starts_with('@')).then_some(RemoveOnDrop(path));
    let listener = Listener::Unix {
        listener,
        _file: file,
    };
    Ok((listener, name))
}

/// A socket's path, which is removed with the listener.
#[cfg(unix)]
#[derive(Debug)]
pub(crate) struct RemoveOnDrop(std::path::PathBuf);

#[cfg(unix)]
impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// The same listener, which from now on tells this runtime when somebody connects.
    pub(crate) fn move_here(self) -> io::Result<Self> {
        Ok(match self {
            Self::Tcp(listener) => Self::Tcp(TcpListener::from_std(listener.into_std()?)?),
            #[cfg(unix)]
            Self::Unix { listener, _file } => Self::Unix {
                listener: UnixListener::from_std(listener.into_std()?)?,
                _file,
            },
            Self::Memory(listener) => Self::Memory(listener),
        })
    }

    /// The next connection.
    pub(crate) async fn accept(&mut self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::tcp(listener.accept().await?.0),
            #[cfg(unix)]
            Self::Unix { listener, .. } => Stream::unix(listener.accept().await?.0),
            Self::Memory(listener) => Ok(Stream::memory(listener.accept().await)),
        }
    }
}
