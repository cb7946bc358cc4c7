//! How to look at workers from outside of their group.

use std::time::Duration;

use super::error::ObserveError;
use crate::native::{ObserverConnection, ObserverConnectionError, Tls};
use crate::rendezvous::Address;
use crate::report::snapshot::Snapshot;

/// How to look: with which token, how closely, how patiently.
///
/// ```
/// use std::time::Duration;
///
/// use farref::observe::{ObserveError, Observer};
///
/// # #[tokio::main]
/// # async fn main() {
/// let observer = Observer::new()
///     .token("only we know")
///     .references(100)
///     .patience(Duration::from_secs(1));
/// // Nobody is there.
/// let error = observer.group("127.0.0.1:9").await.unwrap_err();
/// assert!(matches!(error, ObserveError::Unreachable { .. }));
/// # }
/// ```
#[derive(Clone)]
pub struct Observer {
    pub(super) token: String,
    tls: Option<Tls>,
    pub(super) references: usize,
    pub(super) calls: usize,
    pub(super) patience: Duration,
}

impl Default for Observer {
    fn default() -> Self {
        Self::new()
    }
}

impl Observer {
    /// An observer without a token, that wants to see up to 10,000 references of each worker and waits
    /// 5 s for an answer.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() {
    /// let observer = farref::observe::Observer::new();
    /// assert!(observer.group("no address").await.is_err());
    /// # }
    /// ```
    pub fn new() -> Self {
        Self {
            token: String::new(),
            tls: None,
            references: 10_000,
            calls: 0,
            patience: Duration::from_secs(5),
        }
    }

    /// The group's token.
    ///
    /// ```
    /// let observer = farref::observe::Observer::new().token("only we know");
    /// assert!(!format!("{observer:?}").contains("only we know")); // not in logs
    /// ```
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = token.into();
        self
    }

    /// A certificate of the group's authority, for workers that are to be reached with TLS only: an observer's, or a worker's.
    ///
    /// ```no_run
    /// let tls = farref::Tls::from_files("certs/observer.pem", "certs/observer.key", "certs/ca.pem")?;
    /// let observer = farref::observe::Observer::new().tls(tls);
    /// # drop(observer);
    /// # Ok::<(), farref::TlsError>(())
    /// ```
    #[must_use]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// How many references of each worker to see, at most 100,000: those with the least ids, which are
    /// mostly the oldest.
    ///
    /// ```
    /// let observer = farref::observe::Observer::new().references(0); // only how many there are
    /// # drop(observer);
    /// ```
    #[must_use]
    pub fn references(mut self, most: usize) -> Self {
        self.references = most;
        self
    }

    /// How many [calls that are over](crate::Snapshot::finished) to see with each look, at most 4096: those since the look
    /// before. None by default.
    ///
    /// Whoever asks for some is taken to look on, for a quarter of a minute from each question on. Workers then record
    /// what becomes of calls that are made outside of remote functions, of at most 250 a second, and of all calls that
    /// these cause.
    ///
    /// ```
    /// # use farref::{StoreServer, Worker};
    /// use farref::observe::Observer;
    ///
    /// #[farref::remote(name = "ping")]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await?;
    /// # let place = store.local_addr().to_string();
    /// # let me = Worker::builder("alone").rendezvous(&format!("tcp://{place}")).store_is_hosted_elsewhere()
    /// #     .join().await?;
    /// let mut group = Observer::new().calls(100).group(&place).await?;
    /// group.look().await; // from now on
    /// ping::on(&me.peer("alone")?).await?;
    ///
    /// let sightings = group.look().await;
    /// let snapshot = sightings[0].snapshot.as_ref().expect("it is there");
    /// assert_eq!(snapshot.finished[0].function, "ping");
    /// assert!(snapshot.finished[0].trace.is_outermost());
    /// # me.shutdown().await?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn calls(mut self, most: usize) -> Self {
        self.calls = most;
        self
    }

    /// How long to wait for each worker.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let observer = farref::observe::Observer::new().patience(Duration::from_millis(500));
    /// # drop(observer);
    /// ```
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// A first look at a worker, of that name if it is known, at the first of its addresses that answers.
    pub(super) async fn open(
        &self,
        addresses: &[Address],
        name: Option<&str>,
    ) -> Result<(ObserverConnection, Snapshot), ObserveError> {
        let mut failure = ObserveError::Unknown;
        for address in addresses {
            match self.open_at(address, name).await {
                Ok(found) => return Ok(found),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(super) async fn open_at(
        &self,
        address: &Address,
        name: Option<&str>,
    ) -> Result<(ObserverConnection, Snapshot), ObserveError> {
        let opening = async {
            let (token, tls) = (self.token.as_bytes(), self.tls.as_ref());
            let mut connection = ObserverConnection::open(address, token, tls, name).await?;
            let snapshot = connection.ask(self.references, self.calls).await?;
            Ok((connection, snapshot))
        };
        self.in_time(address, opening).await
    }

    pub(super) async fn again(
        &self,
        address: &str,
        connection: &mut ObserverConnection,
    ) -> Result<Snapshot, ObserveError> {
        let asking = connection.ask(self.references, self.calls);
        self.in_time(address, asking).await
    }

    pub(super) async fn in_time<T>(
        &self,
        address: impl ToString,
        work: impl Future<Output = Result<T, ObserverConnectionError>>,
    ) -> Result<T, ObserveError> {
        match tokio::time::timeout(self.patience, work).await {
            Ok(result) => result.map_err(|error| ObserveError::of(address.to_string(), error)),
            Err(_) => Err(ObserveError::Silent {
                address: address.to_string(),
                waited: self.patience,
            }),
        }
    }
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token: this ends up in logs.
        f.debug_struct("Observer")
            .field("references", &self.references)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}
