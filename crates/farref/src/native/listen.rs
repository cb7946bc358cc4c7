//! Listening: bound sockets, the tasks that accept, and the limit on strangers.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use tokio::net::TcpListener;
#[cfg(unix)]
use tokio::net::UnixListener;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

use super::config::BindOptions;
use super::greet;
use super::handshake::HandshakeFailure;
use super::memory::{MemoryListener, MemoryNetwork};
use super::shared::{Shared, lock};
use super::stream::Stream;
use crate::rendezvous::Address;

/// The pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Sockets that listen and accept nothing yet: their addresses go into the card with which an agent
/// is started.
#[derive(Debug)]
pub(crate) struct Bound {
    listeners: Vec<Listener>,
    addresses: Vec<Address>,
    pub(super) network: Option<(MemoryNetwork, String)>,
}

/// Why nothing listens at a place.
///
/// ```
/// use farref::{BindError, Error, StoreServer, Worker};
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
/// # let place = format!("tcp://{}", store.local_addr());
/// // Another program has the port already.
/// let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
/// let port = taken.local_addr().expect("an address").port();
///
/// let refused = Worker::builder("late")
///     .rendezvous(&place)
///     .store_is_hosted_elsewhere()
///     .port(port)
///     .join()
///     .await;
/// let Err(Error::Bind(error)) = refused else {
///     panic!("two listeners on one port");
/// };
/// assert!(matches!(&*error, BindError::Tcp { address, .. } if address.port() == port));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is taken, or not this host's.
    #[error("cannot listen at {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system does not let us have a Unix socket.
    #[error("cannot listen at the Unix socket {name}: {source}")]
    Unix {
        /// The socket.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// The name is taken.
    #[error("cannot listen as {name} in the network within this process: {source}")]
    Memory {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// There is no place at all to listen at.
    #[error("an agent needs at least one place to listen at")]
    Nowhere,
}

#[derive(Debug)]
enum Listener {
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

    /// Begins to accept.
    pub(super) fn start(self, shared: &Arc<Shared>) {
        for listener in self.listeners {
            shared.spawn_io(run(Arc::clone(shared), listener));
        }
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
    let path = super::stream::unix_path(&name);
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
struct RemoveOnDrop(std::path::PathBuf);

#[cfg(unix)]
impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listener {
    /// The same listener, which from now on tells this runtime when somebody connects.
    fn move_here(self) -> io::Result<Self> {
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

    async fn accept(&mut self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => Stream::tcp(listener.accept().await?.0),
            #[cfg(unix)]
            Self::Unix { listener, .. } => Ok(Stream::unix(listener.accept().await?.0)),
            Self::Memory(listener) => Ok(Stream::memory(listener.accept().await)),
        }
    }
}

/// Accepts for ever.
async fn run(shared: Arc<Shared>, listener: Listener) {
    let mut listener = match listener.move_here() {
        Ok(listener) => listener,
        Err(error) => {
            return error!(%error, "cannot accept connections: nobody can connect to this worker");
        }
    };
    loop {
        match listener.accept().await {
            Ok(stream) => shared.waiting.admit(&shared, stream),
            Err(error) => {
                warn!(%error, "cannot accept connections");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The connections whose other end has not proved anything yet. Of too many the oldest goes: a good
/// peer is done in no time, so it is hardly ever the oldest.
#[derive(Debug)]
pub(super) struct Waiting {
    most: usize,
    strangers: Mutex<Strangers>,
}

#[derive(Debug, Default)]
struct Strangers {
    next: u64,
    /// The oldest first. A task that is being started has no handle yet.
    tasks: VecDeque<(u64, Option<AbortHandle>)>,
}

impl Waiting {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            strangers: Mutex::default(),
        }
    }

    /// Begins the handshake with whoever has connected.
    pub(super) fn admit(&self, shared: &Arc<Shared>, stream: Stream) {
        let (number, oldest) = self.enter();
        if let Some(oldest) = oldest {
            oldest.abort();
            shared.meters.refused_for("overloaded");
            debug!("too many connections in their handshake: the oldest is dropped");
        }
        let ticket = Ticket {
            shared: Arc::clone(shared),
            number,
        };
        // Without the lock: an agent that has stopped starts no task but drops it, and the ticket with it.
        let Some(task) = shared.spawn_io(receive(Arc::clone(shared), stream, ticket)) else {
            return;
        };
        let mut strangers = lock(&self.strangers);
        let mut places = strangers.tasks.iter_mut();
        match places.find(|(other, _)| *other == number) {
            Some((_, place)) => *place = Some(task),
            // It is done, or has been the oldest meanwhile.
            None => {
                drop(strangers);
                task.abort();
            }
        }
    }

    /// Takes a place, and somebody else's if there are too many.
    fn enter(&self) -> (u64, Option<AbortHandle>) {
        let mut strangers = lock(&self.strangers);
        let oldest = (strangers.tasks.len() >= self.most)
            .then(|| strangers.tasks.pop_front())
            .flatten();
        let number = strangers.next;
        strangers.next += 1;
        strangers.tasks.push_back((number, None));
        (number, oldest.and_then(|(_, task)| task))
    }
}

/// A place among the strangers.
#[derive(Debug)]
pub(super) struct Ticket {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut strangers = lock(&self.shared.waiting.strangers);
        strangers.tasks.retain(|(number, _)| *number != self.number);
    }
}

async fn receive(shared: Arc<Shared>, stream: Stream, ticket: Ticket) {
    let transport = stream.transport;
    let greeting = greet::accept(&shared, stream, ticket);
    let failure = match timeout(shared.config.handshake_timeout, greeting).await {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        Err(_) => HandshakeFailure::Timeout,
    };
    shared.meters.refused(&failure);
    if failure.needs_operator() {
        warn!(transport, %failure, "a connection is refused");
    } else {
        debug!(transport, %failure, "a connection is refused");
    }
}
