//! Uses a TCPStore that somebody else hosts: a farref worker, a PyTorch process or torchrun.
//!
//! Quick requests share one connection. A wait takes a connection of its own, so that it holds
//! nobody else up. A connection is put back only after a complete answer: a request that was
//! dropped halfway costs its connection and confuses nobody.
//!
//! # Invariants
//!
//! - **TC-1** Whoever watches the store hears of every connection for quick requests that was lost, also if somebody who
//!   asked was faster and has made another one: its server may be a new one, which knows nothing.
//! - **TC-2** A pinned client has one connection and makes no other: all that it says is heard by one server.

mod connection;
mod endpoint;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ring::rand::{SecureRandom, SystemRandom};
use tokio::sync::{Mutex, MutexGuard, Notify};
use tokio::time::{Instant, sleep, timeout_at};

use self::connection::{Connection, ExchangeError};
use self::endpoint::{ATTEMPT, Endpoint};
use super::dialect::StoreDialect;
use super::error::ProtocolError;
use super::protocol::{ARRIVALS, HAD_OLD_CLIENTS, READY, Request, take_bytes, take_flag, take_i64};
use crate::store::error::StoreError;
use crate::store::limits::{MAX_KEY, MAX_KEYS, MAX_VALUE, check_size, end_of};
use crate::store::{Store, StoreFuture};

/// How long a quick request may take, reconnecting included.
const QUICK: Duration = Duration::from_secs(30);
/// A wait is renewed after this time, then after twice as long, up to ten times. Old PyTorch servers
/// forget to wake those who wait for a key that `compare_set` made.
const FIRST_RENEWAL: Duration = Duration::from_secs(1);
/// How often a pinned client, which has no second connection to wait on, looks for a key.
const PINNED_LOOK: Duration = Duration::from_millis(50);

/// A client of a TCPStore.
///
/// PyTorch puts a `/` in front of every key on the wire, and so does this client: both see the same
/// keys under the same names.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{Store, StoreServer, TcpStoreClient};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let server = StoreServer::bind("127.0.0.1:0").await?;
/// let port = server.local_addr().port();
///
/// // PyTorch's `TCPStore("127.0.0.1", port)` would see the same.
/// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
/// client.set("key", b"value").await?;
/// assert_eq!(client.try_get("key").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
pub struct TcpStoreClient {
    endpoint: Endpoint,
    dialect: StoreDialect,
    quick: Mutex<Option<Connection>>,
    /// Told when the connection is wanted by somebody who asks, so that whoever watches it lets it go.
    wanted: Notify,
    /// Whether the connection was replaced since somebody last heard that it was lost (TC-1).
    replaced: AtomicBool,
    /// Whether the first connection is the only one (TC-2).
    is_pinned: bool,
}

impl TcpStoreClient {
    /// Connects to the store, trying again until `deadline`: its host may start later than we do.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{StoreError, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let port = server.local_addr().port();
    /// TcpStoreClient::connect("localhost", port, Duration::from_secs(60)).await?;
    ///
    /// // A port that nobody listens at, and nobody else can have meanwhile.
    /// let deaf = tokio::net::TcpSocket::new_v4().expect("a socket");
    /// deaf.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
    /// let port = deaf.local_addr().expect("an address").port();
    /// let nobody = TcpStoreClient::connect("127.0.0.1", port, Duration::from_millis(20)).await;
    /// assert!(matches!(nobody, Err(StoreError::Unreachable { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect(host: &str, port: u16, deadline: Duration) -> Result<Self, StoreError> {
        Self::connect_to(Endpoint::new(host, port), None, deadline).await
    }

    /// Like [`TcpStoreClient::connect`], to a store that is known to speak this dialect. That saves a
    /// moment: a store of a newer PyTorch is told from an old one by its silence.
    ///
    /// Do not say [`StoreDialect::Greeted`] of a store that is hosted by PyTorch 1.13: nobody could use
    /// it until this client has given up.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreDialect, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let (port, timeout) = (server.local_addr().port(), Duration::from_secs(60));
    /// for dialect in [StoreDialect::Greeted, StoreDialect::Old] {
    ///     let client = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, timeout).await?;
    ///     client.add("clients", 1).await?;
    ///     assert_eq!(client.dialect(), dialect);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn connect_as(
        dialect: StoreDialect,
        host: &str,
        port: u16,
        deadline: Duration,
    ) -> Result<Self, StoreError> {
        Self::connect_to(Endpoint::new(host, port), Some(dialect), deadline).await
    }

    async fn connect_to(
        endpoint: Endpoint,
        dialect: Option<StoreDialect>,
        deadline: Duration,
    ) -> Result<Self, StoreError> {
        let connection = endpoint.connect(dialect, end_of(deadline)).await?;
        Ok(Self::with(endpoint, connection))
    }

    fn with(endpoint: Endpoint, connection: Connection) -> Self {
        Self {
            endpoint,
            dialect: connection.dialect(),
            quick: Mutex::new(Some(connection)),
            wanted: Notify::new(),
            replaced: AtomicBool::new(false),
            is_pinned: false,
        }
    }

    /// How this client and its server speak.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{StoreDialect, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let port = server.local_addr().port();
    /// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
    /// assert_eq!(client.dialect(), StoreDialect::Greeted); // it would be Old at PyTorch 1.13's
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(&self) -> StoreDialect {
        self.dialect
    }

    /// How the clients of this store speak, as far as they have come: a store that PyTorch hosts takes
    /// only those that speak as it does, and a [`StoreServer`](crate::StoreServer) tells.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreDialect, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let (port, timeout) = (server.local_addr().port(), Duration::from_secs(60));
    /// let client = TcpStoreClient::connect("127.0.0.1", port, timeout).await?;
    /// assert_eq!(client.clients_dialect().await?, StoreDialect::Greeted);
    ///
    /// // A process with PyTorch 1.13 comes.
    /// let dialect = StoreDialect::Old;
    /// let other = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, timeout).await?;
    /// other.add("processes", 1).await?;
    /// assert_eq!(client.clients_dialect().await?, StoreDialect::Old);
    /// assert_eq!(client.dialect(), StoreDialect::Greeted); // nevertheless
    /// # Ok(())
    /// # }
    /// ```
    pub async fn clients_dialect(&self) -> Result<StoreDialect, StoreError> {
        let old = Request::Check(vec![Bytes::from_static(HAD_OLD_CLIENTS)]);
        Ok(match self.ask(&[old], take_flag).await? {
            READY => StoreDialect::Old,
            _ => self.dialect,
        })
    }

    /// Counts this worker among those that have come, and says how many have. When PyTorch opens a store
    /// for a group of a fixed size, rank 0 waits until all have been counted.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let port = server.local_addr().port();
    /// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
    /// assert_eq!(client.arrive().await?, 1);
    /// assert_eq!(client.arrivals().await?, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn arrive(&self) -> Result<i64, StoreError> {
        let add = Request::Add(Bytes::from_static(ARRIVALS), 1);
        self.ask(&[add], take_i64).await
    }

    /// How many workers have been counted by [`TcpStoreClient::arrive`], or by PyTorch.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let port = server.local_addr().port();
    /// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
    /// assert_eq!(client.arrivals().await?, 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn arrivals(&self) -> Result<i64, StoreError> {
        let add = Request::Add(Bytes::from_static(ARRIVALS), 0);
        self.ask(&[add], take_i64).await
    }

    /// One quick request, or several in a row, whose answers `take` takes from the buffer.
    async fn ask<T>(
        &self,
        requests: &[Request],
        take: impl FnMut(&mut BytesMut) -> Result<Option<T>, ProtocolError>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        let end = began + QUICK;
        let work = async {
            let mut quick = self.lock().await;
            // Taken out, so that it is closed if this future is dropped before the answer.
            let mut connection = self.take_connection(&mut quick, end).await?;
            let answer = connection.exchange(requests, take).await;
            let answer = answer.map_err(|failure| self.endpoint.failed(failure))?;
            *quick = Some(connection);
            Ok(answer)
        };
        match timeout_at(end, work).await {
            Ok(result) => result,
            Err(_) => Err(self.endpoint.no_answer(began)),
        }
    }

    /// The connection for quick requests, to somebody who asks.
    async fn lock(&self) -> MutexGuard<'_, Option<Connection>> {
        // In the line before whoever watches lets go: it then stands behind.
        let (quick, ()) = tokio::join! {
            biased;
            self.quick.lock(),
            async { self.wanted.notify_one() },
        };
        quick
    }

    /// Takes the connection, or another one if it is of no use any more.
    async fn take_connection(
        &self,
        quick: &mut Option<Connection>,
        end: Instant,
    ) -> Result<Connection, StoreError> {
        if let Some(connection) = quick.take().filter(Connection::is_quiet) {
            return Ok(connection);
        }
        if self.is_pinned {
            let closed = io::ErrorKind::ConnectionAborted.into();
            return Err(self.endpoint.failed(ExchangeError::Io(closed)));
        }
        let connection = self.endpoint.connect(Some(self.dialect), end).await?;
        self.replaced.store(true, Ordering::Relaxed);
        Ok(connection)
    }

    /// A client with a connection of its own to the server of now, and no other.
    async fn pin(&self) -> Result<Self, StoreError> {
        let began = Instant::now();
        let end = began + QUICK;
        let work = async {
            // There is to be one whose loss is heard of: the pinned one comes after it, so its server is no older.
            let mut quick = self.lock().await;
            *quick = Some(self.take_connection(&mut quick, end).await?);
            drop(quick);
            self.endpoint.connect(Some(self.dialect), end).await
        };
        let connection = match timeout_at(end, work).await {
            Ok(connection) => connection?,
            Err(_) => return Err(self.endpoint.no_answer(began)),
        };
        let endpoint = self.endpoint.clone();
        Ok(Self {
            is_pinned: true,
            ..Self::with(endpoint, connection)
        })
    }

    /// Waits until the connection for quick requests is closed, or was, or there is none.
    async fn watch(&self) {
        loop {
            let quick = self.quick.lock().await;
            if self.replaced.swap(false, Ordering::Relaxed) {
                return;
            }
            let Some(connection) = &*quick else {
                return;
            };
            tokio::select! {
                () = self.wanted.notified() => {}
                () = connection.readable() => {
                    if !connection.is_quiet() {
                        return;
                    }
                }
            }
        }
    }

    async fn wait_until(&self, keys: &[String], end: Instant) -> Result<(), StoreError> {
        check_size("list of keys", keys.len(), MAX_KEYS)?;
        let keys_on_wire = keys
            .iter()
            .map(|key| on_wire(key))
            .collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() {
            return Ok(());
        }
        let began = Instant::now();
        let work = async {
            let check = Request::Check(keys_on_wire.clone());
            loop {
                if self.ask(std::slice::from_ref(&check), take_flag).await? == READY {
                    return Ok(());
                }
                if !self.is_pinned {
                    break;
                }
                sleep(PINNED_LOOK).await;
            }
            let wait = [Request::Wait(keys_on_wire.clone())];
            let mut connection = self.endpoint.connect(Some(self.dialect), end).await?;
            let mut renewal = FIRST_RENEWAL;
            loop {
                let waited = connection.wait(&wait, renewal).await;
                if waited.map_err(|failure| self.endpoint.failed(failure))? {
                    return Ok(());
                }
                if self.dialect == StoreDialect::Old {
                    // It has no words for giving up: the answer might come at any time.
                    connection = self.endpoint.connect(Some(self.dialect), end).await?;
                }
                renewal = (renewal * 2).min(FIRST_RENEWAL * 10);
            }
        };
        match timeout_at(end, work).await {
            Ok(result) => result,
            Err(_) => self.explain(keys, keys_on_wire, began).await,
        }
    }

    /// The value of a key that was there a moment ago; `None` if somebody has deleted it since.
    ///
    /// Getting a missing key is an offence at PyTorch's server. Comparing with what no value equals is not:
    /// a missing key gives the comparand back. It is for keys that are there, because PyTorch's server of
    /// today wakes those who wait for a key that is compared, even if it is not set, and they would read
    /// an empty value.
    async fn value_of_known(&self, key: &str) -> Result<Option<Bytes>, StoreError> {
        let nobody_has = nonce();
        let request = Request::CompareSet {
            key: on_wire(key)?,
            expected: nobody_has.clone(),
            desired: nobody_has.clone(),
        };
        let value = self.ask(&[request], take_bytes).await?;
        Ok((value != nobody_has).then_some(value))
    }

    /// Asks for each key alone, to say which ones nobody set in time.
    async fn explain(
        &self,
        keys: &[String],
        keys_on_wire: Vec<Bytes>,
        began: Instant,
    ) -> Result<(), StoreError> {
        let waited = began.elapsed();
        let checks: Vec<_> = keys_on_wire
            .into_iter()
            .map(|key| Request::Check(vec![key]))
            .collect();
        let mut flags = Vec::new();
        let ask = self.ask(&checks, |buffer| {
            while flags.len() < keys.len() {
                match take_flag(buffer)? {
                    Some(flag) => flags.push(flag),
                    None => return Ok(None),
                }
            }
            Ok(Some(std::mem::take(&mut flags)))
        });
        // The caller's time is up: a store that is slow now is the answer, not one more wait.
        let flags = match tokio::time::timeout(ATTEMPT, ask).await {
            Ok(flags) => flags?,
            Err(_) => return Err(self.endpoint.no_answer(began)),
        };
        let missing: Vec<_> = keys
            .iter()
            .zip(flags)
            .filter(|(_, flag)| *flag != READY)
            .map(|(key, _)| key.clone())
            .collect();
        if missing.is_empty() {
            // The last one came in the same moment.
            return Ok(());
        }
        Err(StoreError::Timeout { missing, waited })
    }
}

impl Store for TcpStoreClient {
    fn lost(&self) -> StoreFuture<'_, ()> {
        Box::pin(async {
            self.watch().await;
            Ok(())
        })
    }

    fn pinned(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async {
            let pinned: Arc<dyn Store> = Arc::new(self.pin().await?);
            Ok(Some(pinned))
        })
    }

    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = on_wire(key)?;
            let set = Request::Set(key.clone(), checked(value)?);
            // Setting has no answer. The question behind it has one, which shows that it was done.
            let requests = [set, Request::Check(vec![key])];
            self.ask(&requests, take_flag).await.map(drop)
        })
    }

    fn get<'a>(&'a self, key: &'a str, deadline: Duration) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let end = end_of(deadline);
            let keys = [key.to_owned()];
            loop {
                self.wait_until(&keys, end).await?;
                // It may have been deleted meanwhile.
                if let Some(value) = self.value_of_known(key).await? {
                    return Ok(value);
                }
            }
        })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            let check = Request::Check(vec![on_wire(key)?]);
            match self.ask(&[check], take_flag).await? {
                READY => self.value_of_known(key).await,
                _ => Ok(None),
            }
        })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            self.ask(&[Request::Add(on_wire(key)?, delta)], take_i64)
                .await
        })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let request = Request::CompareSet {
                key: on_wire(key)?,
                expected: checked(expected)?,
                desired: checked(desired)?,
            };
            self.ask(&[request], take_bytes).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let request = [Request::Delete(on_wire(key)?)];
            Ok(self.ask(&request, take_i64).await? > 0)
        })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.wait_until(keys, end_of(deadline)))
    }
}

impl fmt::Debug for TcpStoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStoreClient({})", self.endpoint)
    }
}

fn on_wire(key: &str) -> Result<Bytes, StoreError> {
    check_size("key", key.len() + 1, MAX_KEY)?;
    Ok(Bytes::from(format!("/{key}")))
}

fn checked(value: &[u8]) -> Result<Bytes, StoreError> {
    check_size("value", value.len(), MAX_VALUE)?;
    Ok(Bytes::copy_from_slice(value))
}

/// Bytes that no value in the store equals.
fn nonce() -> Bytes {
    let mut bytes = *b"farref: nobody has this value 0123456789abcdef";
    let random = bytes.len() - 16;
    // Without randomness the text alone still differs from every value that farref writes.
    let _ = SystemRandom::new().fill(&mut bytes[random..]);
    Bytes::copy_from_slice(&bytes)
}
