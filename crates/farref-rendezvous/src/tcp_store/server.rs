//! Hosts a store for any number of TCPStore clients.
//!
//! One task for each connection, one table behind a lock that is held for single operations only. A
//! client that waits holds nothing but its place in the table's lists, and loses it when it cancels
//! or disconnects. The protocol has no error answers: a client that asks for what it may not have
//! is disconnected, and nobody else notices.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};
use tokio::task::{JoinHandle, JoinSet};

use super::super::store::{MAX_VALUE, StoreError};
use super::super::table::{Pending, Refusal, Table, WaiterId};
use super::budget::{Budget, Share};
use super::connection::{read_some, write_all};
use super::dialect::StoreDialect;
use super::protocol::{
    HAD_OLD_CLIENTS, IS_FARREF, MAGIC, NOT_READY, ProtocolError, READY, Request, STOP_WAITING,
    WAIT_CANCELLED, put_bytes,
};

/// A client that begins to greet must be done within this time.
const GREETING: Duration = Duration::from_secs(30);
/// A client must take its answers: one that does not for this long is disconnected.
const WRITE: Duration = Duration::from_secs(60);
/// After an error of `accept`, which mostly means that no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// A receive buffer above this is given back as soon as it is empty.
const KEPT_BUFFER: usize = 64 << 10;

/// What a [`StoreServer`] may use.
///
/// ```
/// use farref_rendezvous::{StoreLimits, StoreServer};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// // A store for a few workers, which need a few kilobytes each.
/// let limits = StoreLimits {
///     memory: 16 << 20,
///     clients: 64,
///     ..StoreLimits::default()
/// };
/// let server = StoreServer::bind_with("127.0.0.1:0", limits).await?;
/// # server.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StoreLimits {
    /// Bytes for keys and values, and as many again for requests and answers on their way.
    pub memory: usize,
    /// Bytes of one request or answer. At least a key and two values must fit for full use.
    pub message: usize,
    /// Connections at a time. A PyTorch client takes one, an old one two, a farref worker up to three.
    pub clients: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            message: 64 << 20,
            clients: 48 << 10,
        }
    }
}

/// A store that PyTorch's TCPStore clients and farref workers can use. Dropping it closes it.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{Store, StoreServer, TcpStoreClient};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// // A launcher hosts it; the workers are told where.
/// let server = StoreServer::bind("127.0.0.1:0").await?;
/// let place = format!("tcp://{}", server.local_addr());
///
/// // What each of them does then.
/// let (host, port) = ("127.0.0.1", server.local_addr().port());
/// let client = TcpStoreClient::connect(host, port, Duration::from_secs(60)).await?;
/// assert_eq!(client.add("workers", 1).await?, 1);
/// # assert!(place.parse::<farref_rendezvous::Rendezvous>().is_ok());
/// server.close().await;
/// # Ok(())
/// # }
/// ```
pub struct StoreServer {
    local_addr: SocketAddr,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl StoreServer {
    /// Hosts a store at `address`; port 0 takes any free one. Must be called inside a tokio runtime.
    ///
    /// ```
    /// use farref_rendezvous::{StoreError, StoreServer};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// // Two cannot have one port.
    /// let second = StoreServer::bind(server.local_addr()).await;
    /// assert!(matches!(second, Err(StoreError::Bind { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, StoreError> {
        Self::bind_with(address, StoreLimits::default()).await
    }

    /// Like [`StoreServer::bind`], with limits of the caller's choice.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreLimits, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let limits = StoreLimits { memory: 100_000, ..StoreLimits::default() };
    /// let server = StoreServer::bind_with("127.0.0.1:0", limits).await?;
    /// let port = server.local_addr().port();
    /// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
    /// client.set("small", &[0; 100]).await?;
    /// assert!(client.set("large", &[0; 1_000_000]).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bind_with(
        address: impl ToSocketAddrs + fmt::Debug,
        limits: StoreLimits,
    ) -> Result<Self, StoreError> {
        let text = format!("{address:?}");
        let bind = |source| StoreError::Bind {
            address: text.clone(),
            source,
        };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let local_addr = listener.local_addr().map_err(bind)?;
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::new(limits.memory)),
            budget: Budget::new(limits.memory),
            had_old_clients: AtomicBool::new(false),
            connections: AtomicUsize::new(0),
            limits,
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Ok(Self {
            local_addr,
            shared,
            task,
        })
    }

    /// Where it listens.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_ne!(server.local_addr().port(), 0); // which one the system chose
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How its clients speak: [`StoreDialect::Old`] as soon as one of them does.
    ///
    /// Whoever hosts a store for PyTorch learns here, once all workers have come, which generation of
    /// PyTorch it has to do with.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreDialect, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_eq!(server.clients_dialect(), StoreDialect::Greeted);
    ///
    /// // Speaks as PyTorch 1.13 does.
    /// let (port, patience) = (server.local_addr().port(), Duration::from_secs(60));
    /// let dialect = StoreDialect::Old;
    /// let client = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, patience).await?;
    /// client.set("key", b"value").await?;
    /// assert_eq!(server.clients_dialect(), StoreDialect::Old);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clients_dialect(&self) -> StoreDialect {
        match self.shared.had_old_clients.load(Ordering::Acquire) {
            true => StoreDialect::Old,
            false => StoreDialect::Greeted,
        }
    }

    /// How many connections of clients there are. Whoever is about to close the store may want to wait until
    /// the others have gone.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_eq!(server.connections(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Closes the store and waits until its port is free. Dropping the server does the same, but
    /// the port becomes free a moment later.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let address = server.local_addr();
    /// server.close().await;
    /// let next = StoreServer::bind(address).await?; // at once
    /// assert_eq!(next.local_addr(), address);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Whether no client waits for anything and no buffer is in use.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.shared.table().is_idle() && self.shared.budget.used() == 0
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The task owns the connections' tasks, so they end with it.
        self.task.abort();
    }
}

impl fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreServer")
            .field("local_addr", &self.local_addr)
            .field("keys", &self.shared.table().len())
            .finish()
    }
}

struct Shared {
    table: Mutex<Table>,
    budget: Budget,
    had_old_clients: AtomicBool,
    /// How many there are at present.
    connections: AtomicUsize,
    limits: StoreLimits,
}

impl Shared {
    /// Every operation on the table leaves it whole, so a panic elsewhere does not spoil it.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a client was disconnected.
#[derive(Debug, thiserror::Error)]
enum Disconnect {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("no memory is left for its request or answer")]
    Memory,
    #[error("the answer would be larger than allowed")]
    Answer,
    #[error("it was silent for too long")]
    Silent,
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut clients = JoinSet::new();
    loop {
        shared.connections.store(clients.len(), Ordering::Release);
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((_, peer)) if clients.len() >= shared.limits.clients => {
                tracing::warn!(%peer, "the store has as many clients as it may; refused another");
            }
            Ok((stream, peer)) => {
                let shared = shared.clone();
                clients.spawn(async move {
                    if let Err(reason) = Client::serve(stream, shared).await {
                        tracing::debug!(%peer, %reason, "disconnected a client of the store");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the store cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

struct Client {
    stream: TcpStream,
    shared: Arc<Shared>,
    buffer: BytesMut,
    share: Share,
    dialect: StoreDialect,
}

/// What became of a request.
enum Outcome {
    /// It has no answer.
    Done,
    Answer(BytesMut),
    /// The answer has to wait; the request is taken up again then.
    Blocked(Pending, Request),
}

impl Client {
    async fn serve(stream: TcpStream, shared: Arc<Shared>) -> Result<(), Disconnect> {
        stream.set_nodelay(true)?;
        let mut client = Self {
            share: shared.budget.share(),
            buffer: BytesMut::new(),
            dialect: StoreDialect::Greeted,
            stream,
            shared,
        };
        // Whoever says nothing may stay. PyTorch 1.13 opens a second connection that it does not use, and
        // keeps a core busy if it is closed.
        if !client.read().await? {
            return Ok(());
        }
        let mut next = within(GREETING, client.first_request()).await?;
        while let Some(request) = next {
            if client.dialect == StoreDialect::Old && !request.is_probe() {
                let had_old_clients = &client.shared.had_old_clients;
                had_old_clients.store(true, Ordering::Release);
            }
            if !client.handle(request).await? {
                break;
            }
            next = client.request().await?;
        }
        Ok(())
    }

    /// Finds out how the client speaks.
    async fn first_request(&mut self) -> Result<Option<Request>, Disconnect> {
        self.dialect = loop {
            if let Some(dialect) = StoreDialect::of(&self.buffer)? {
                break dialect;
            }
            if !self.read().await? {
                return Ok(None);
            }
        };
        self.request().await
    }

    /// The next request; `None` if the client has hung up.
    async fn request(&mut self) -> Result<Option<Request>, Disconnect> {
        loop {
            let limit = self.shared.limits.message;
            if let Some(request) = Request::parse(self.dialect, &mut self.buffer, limit)? {
                if self.buffer.is_empty() && self.buffer.capacity() > KEPT_BUFFER {
                    self.buffer = BytesMut::new();
                    self.account()?;
                }
                return Ok(Some(request));
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }

    /// Takes in what has come; `false` if the client has hung up.
    async fn read(&mut self) -> Result<bool, Disconnect> {
        let size = read_some(&self.stream, &mut self.buffer).await?;
        self.account()?;
        Ok(size > 0)
    }

    fn account(&mut self) -> Result<(), Disconnect> {
        if self.share.resize(self.buffer.capacity()) {
            Ok(())
        } else {
            Err(Disconnect::Memory)
        }
    }

    /// `false` if the client hung up meanwhile.
    async fn handle(&mut self, mut request: Request) -> Result<bool, Disconnect> {
        // The keys somebody waits for stay in memory as long as the wait lasts.
        let mut kept = self.shared.budget.share();
        if !kept.resize(request.weight()) {
            return Err(Disconnect::Memory);
        }
        loop {
            let room = self.room_for_answer(&request).await?;
            let (pending, blocked) = match self.shared.execute(request)? {
                Outcome::Done => return Ok(true),
                Outcome::Answer(answer) => {
                    self.answer(&answer, room).await?;
                    return Ok(true);
                }
                Outcome::Blocked(pending, blocked) => (pending, blocked),
            };
            let _waiting = Waiting {
                shared: self.shared.clone(),
                id: pending.id,
            };
            tokio::select! {
                // A client gone or cancelled in the same moment must not take what it waited for.
                biased;
                next = self.request() => match next? {
                    None => return Ok(false),
                    Some(Request::CancelWait) => {
                        self.answer(&[WAIT_CANCELLED], room).await?;
                        return Ok(true);
                    }
                    // Its time is up, and it has no words to say so.
                    Some(next) if self.dialect == StoreDialect::Old => {
                        if !kept.resize(next.weight()) {
                            return Err(Disconnect::Memory);
                        }
                        request = next;
                        continue;
                    }
                    Some(_) => return Err(ProtocolError::OutOfTurn.into()),
                },
                _ = pending.done => {}
            }
            match blocked {
                // What was waited for has been there, which is all that these two ask.
                Request::Wait(_) | Request::Barrier(..) => {
                    self.answer(&[STOP_WAITING], room).await?;
                    return Ok(true);
                }
                other => request = other,
            }
        }
    }

    /// Waits for the memory that the answer will take, if it is a value. Many may ask for one large
    /// value at once: they are answered one after the other, and not turned away.
    async fn room_for_answer(&self, request: &Request) -> Result<Share, Disconnect> {
        let size = match request {
            Request::Get(key) | Request::CompareSet { key, .. } => {
                self.shared.table().value(key).map_or(0, Bytes::len)
            }
            _ => 0,
        };
        within(WRITE, async {
            let room = self.shared.budget.reserve(size).await;
            room.ok_or(Disconnect::Memory)
        })
        .await
    }

    async fn answer(&self, bytes: &[u8], mut room: Share) -> Result<(), Disconnect> {
        if !room.resize(bytes.len()) {
            return Err(Disconnect::Memory);
        }
        within(WRITE, async { Ok(write_all(&self.stream, bytes).await?) }).await
    }
}

impl Shared {
    fn execute(&self, request: Request) -> Result<Outcome, Disconnect> {
        let mut table = self.table();
        let mut out = BytesMut::new();
        match request {
            Request::Validate(MAGIC) => return Ok(Outcome::Done),
            Request::Validate(_) => return Err(ProtocolError::NoGreeting.into()),
            Request::Set(key, value) => {
                table.set(key, value)?;
                return Ok(Outcome::Done);
            }
            Request::MultiSet(pairs) => {
                for (key, value) in pairs {
                    table.set(key, value)?;
                }
                return Ok(Outcome::Done);
            }
            Request::Append(key, value) => {
                // Checked after the fact would be too late: nobody could read the value any more.
                let size = table.value(&key).map_or(0, Bytes::len) + value.len();
                if size > MAX_VALUE {
                    return Err(Disconnect::Answer);
                }
                table.append(key, &value)?;
                return Ok(Outcome::Done);
            }
            Request::QueuePush(key, value) => {
                table.push(key, value)?;
                return Ok(Outcome::Done);
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => put_bytes(&mut out, &table.compare_set(key, expected, desired)?),
            Request::Get(key) => {
                let Some(value) = table.value(&key) else {
                    return Ok(block(&mut table, vec![key], |mut keys| {
                        Request::Get(keys.pop().unwrap_or_default())
                    }));
                };
                put_bytes(&mut out, value);
            }
            Request::MultiGet(keys) => {
                let size: usize = keys
                    .iter()
                    .map(|key| 8 + table.value(key).map_or(0, Bytes::len))
                    .sum();
                if size > self.limits.message {
                    return Err(Disconnect::Answer);
                }
                if keys.iter().any(|key| table.value(key).is_none()) {
                    return Ok(block(&mut table, keys, Request::MultiGet));
                }
                for key in &keys {
                    put_bytes(&mut out, table.value(key).map_or(&[][..], |value| value));
                }
            }
            Request::Add(key, delta) => out.put_i64_le(table.add(key, delta)?),
            Request::Check(keys) => {
                let ready = keys.iter().all(|key| match &key[..] {
                    IS_FARREF => true,
                    HAD_OLD_CLIENTS => self.had_old_clients.load(Ordering::Acquire),
                    key => table.has(key),
                });
                out.put_u8(if ready { READY } else { NOT_READY });
            }
            Request::Wait(keys) => match table.wait(&keys) {
                Some(pending) => return Ok(Outcome::Blocked(pending, Request::Wait(Vec::new()))),
                None => out.put_u8(STOP_WAITING),
            },
            Request::Barrier(key, world) => match table.barrier(key, world)? {
                Some(pending) => {
                    let rest = Request::Barrier(Bytes::new(), world);
                    return Ok(Outcome::Blocked(pending, rest));
                }
                None => out.put_u8(STOP_WAITING),
            },
            Request::CancelWait => out.put_u8(WAIT_CANCELLED),
            Request::KeyCount => out.put_i64_le(as_i64(table.len())),
            Request::Delete(key) => out.put_i64_le(i64::from(table.delete(&key))),
            Request::Ping(nonce) => out.put_u32_le(nonce),
            Request::QueuePop(key) => {
                let (length, item) = table.pop(&key);
                out.put_i64_le(as_i64(length));
                if let Some(item) = item {
                    put_bytes(&mut out, &item);
                }
            }
            Request::QueueLen(key) => out.put_i64_le(as_i64(table.queue_len(&key))),
            Request::ListKeys => {
                let size: usize = table.keys().map(|key| 8 + key.len()).sum();
                if size > self.limits.message {
                    return Err(Disconnect::Answer);
                }
                out.put_i64_le(as_i64(table.len()));
                table.keys().for_each(|key| put_bytes(&mut out, key));
            }
        }
        Ok(Outcome::Answer(out))
    }
}

/// Blocks a request for values until its keys have been there. A key may have a queue but no value:
/// waiting for it ends at once then, so only those with neither are waited for.
fn block(
    table: &mut Table,
    keys: Vec<Bytes>,
    again: impl FnOnce(Vec<Bytes>) -> Request,
) -> Outcome {
    let missing: Vec<Bytes> = keys
        .iter()
        .filter(|key| table.value(key).is_none())
        .cloned()
        .collect();
    Outcome::Blocked(table.wait_for_values(missing), again(keys))
}

fn as_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

async fn within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Disconnect>>,
) -> Result<T, Disconnect> {
    tokio::time::timeout(time, work)
        .await
        .unwrap_or(Err(Disconnect::Silent))
}

/// Takes a client off the table's lists when it is answered, cancels or goes.
struct Waiting {
    shared: Arc<Shared>,
    id: WaiterId,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.shared.table().cancel(self.id);
    }
}
