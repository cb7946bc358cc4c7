//! Looking into running workers from outside of their group.
//!
//! An [`Observer`] joins nothing and changes nothing: it connects to workers, proves that it knows the
//! group's token, and is shown [`Snapshot`]s. `farref inspect` and `farref top` are made of this.
//!
//! ```
//! use farref::observe::Observer;
//! use farref::{StoreServer, Worker};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let store = StoreServer::bind("127.0.0.1:0").await?;
//! let place = store.local_addr().to_string();
//! let me = Worker::builder("alone")
//!     .rendezvous(&format!("tcp://{place}"))
//!     .store_is_hosted_elsewhere()
//!     .join()
//!     .await?;
//! let kept = me.rref("some text".to_owned())?;
//!
//! // In another process, mostly. All that it has to know is where the workers meet.
//! let mut group = Observer::new().group(&place).await?;
//! let sightings = group.look().await;
//! let snapshot = sightings[0].snapshot.as_ref().expect("it is there");
//! assert_eq!(snapshot.worker, "alone");
//! assert_eq!(snapshot.references.len(), 1);
//! # drop(kept);
//! # me.shutdown().await?;
//! # Ok(())
//! # }
//! ```

mod error;
mod group;
mod place;

use std::time::Duration;

pub use error::ObserveError;
pub use group::{GroupView, Sighting};

use place::Place;

use crate::native::{Watch, WatchError};
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
    token: String,
    references: usize,
    patience: Duration,
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
            references: 10_000,
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

    /// Finds a group, by where its workers meet (`host:port`, `tcp://host:port`, `file:///path`) or by
    /// one of them (`host:port`, `tcp://host:port`, `unix:name`).
    ///
    /// ```
    /// use farref::observe::{ObserveError, Observer};
    ///
    /// # #[tokio::main]
    /// # async fn main() {
    /// // A store that no group has met at.
    /// let store = farref::StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// let place = store.local_addr().to_string();
    /// let error = Observer::new().group(&place).await.unwrap_err();
    /// assert!(matches!(error, ObserveError::NoGroup { .. }));
    /// # }
    /// ```
    pub async fn group(&self, address: &str) -> Result<GroupView, ObserveError> {
        let place: Place = address.parse()?;
        GroupView::find(self.clone(), place).await
    }

    /// A first look at a worker, at the first of its addresses that answers.
    async fn open(&self, addresses: &[Address]) -> Result<(Watch, Snapshot), ObserveError> {
        let mut failure = ObserveError::Unknown;
        for address in addresses {
            match self.open_at(address).await {
                Ok(found) => return Ok(found),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    async fn open_at(&self, address: &Address) -> Result<(Watch, Snapshot), ObserveError> {
        let opening = async {
            let mut watch = Watch::open(address, self.token.as_bytes()).await?;
            let snapshot = watch.ask(self.references).await?;
            Ok((watch, snapshot))
        };
        self.in_time(address, opening).await
    }

    async fn again(&self, address: &str, watch: &mut Watch) -> Result<Snapshot, ObserveError> {
        self.in_time(address, watch.ask(self.references)).await
    }

    async fn in_time<T>(
        &self,
        address: impl ToString,
        work: impl Future<Output = Result<T, WatchError>>,
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
