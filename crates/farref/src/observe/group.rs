//! All workers of a group, seen from outside: finding them, and keeping an eye on them.

use std::collections::BTreeMap;

use tokio::task::JoinSet;

use super::address::{ObservedAddress, shown_address};
use super::error::ObserveError;
use super::observer::Observer;
use crate::native::ObserverConnection;
use crate::rendezvous::{self, Address, Card};
use crate::report::snapshot::Snapshot;

/// A group seen from outside.
///
/// ```
/// use farref::observe::Observer;
/// # use farref::{StoreServer, Worker};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = StoreServer::bind("127.0.0.1:0").await?;
/// # let place = store.local_addr().to_string();
/// # let tcp = format!("tcp://{place}");
/// # let worker = |name, rank| {
/// #     Worker::builder(name).rank(rank).world_size(2).rendezvous(&tcp)
/// #         .store_is_hosted_elsewhere().join()
/// # };
/// let (a, b) = tokio::try_join!(worker("a", 0), worker("b", 1))?;
///
/// let mut group = Observer::new().group(&place).await?;
/// let names = |sightings: Vec<farref::observe::Sighting>| -> Vec<String> {
///     sightings.into_iter().map(|sighting| sighting.name).collect()
/// };
/// assert_eq!(names(group.look().await), ["a", "b"]);
///
/// tokio::try_join!(a.shutdown(), b.shutdown())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct GroupView {
    observer: Observer,
    /// By rank.
    workers: BTreeMap<u32, KnownWorker>,
}

/// What was seen of one worker.
///
/// ```
/// use farref::observe::Sighting;
///
/// fn describe(sighting: &Sighting) -> String {
///     match &sighting.snapshot {
///         Ok(snapshot) => format!("{} has {} calls", sighting.name, snapshot.open_calls),
///         Err(error) => format!("{}: {error}", sighting.name),
///     }
/// }
/// # let _ = describe;
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub struct Sighting {
    /// The worker.
    pub name: String,
    /// Its rank.
    pub rank: u32,
    /// What it has, or why that is not known.
    pub snapshot: Result<Snapshot, ObserveError>,
}

/// A worker that somebody has told of.
#[derive(Debug)]
struct KnownWorker {
    name: String,
    incarnation: u32,
    addresses: Vec<Address>,
    connection: Option<ObserverConnection>,
}

impl Observer {
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
        let place: ObservedAddress = address.parse()?;
        GroupView::find(self.clone(), place).await
    }
}

impl GroupView {
    pub(super) async fn find(
        observer: Observer,
        place: ObservedAddress,
    ) -> Result<Self, ObserveError> {
        let mut view = Self {
            observer,
            workers: BTreeMap::new(),
        };
        match &place {
            ObservedAddress::Worker(address) => {
                let (connection, snapshot) = view.observer.open_at(address, None).await?;
                view.begin_with(address.clone(), connection, &snapshot);
            }
            ObservedAddress::Store(store) => view.find_in_store(store).await?,
            ObservedAddress::Either { host, port } => view.find_at(host, *port).await?,
        }
        Ok(view)
    }

    /// A worker listens there, or a store.
    async fn find_at(&mut self, host: &str, port: u16) -> Result<(), ObserveError> {
        let address = format!("{host}:{port}");
        let unreachable = |source| ObserveError::Unreachable {
            address: address.clone(),
            source,
        };
        let addresses: Vec<Address> = tokio::net::lookup_host((host, port))
            .await
            .map_err(unreachable)?
            .map(Address::Tcp)
            .collect();
        let stranger = |error: &ObserveError| matches!(error, ObserveError::Stranger { .. });
        for address in &addresses {
            match self.observer.open_at(address, None).await {
                Ok((connection, snapshot)) => {
                    self.begin_with(address.clone(), connection, &snapshot);
                    return Ok(());
                }
                // Perhaps a store.
                Err(error) if stranger(&error) => break,
                // A name may stand for several addresses.
                Err(_) if Some(address) != addresses.last() => {}
                Err(error) => return Err(error),
            }
        }
        let store = rendezvous::Rendezvous::Tcp {
            host: host.to_owned(),
            port,
        };
        match self.find_in_store(&store).await {
            // It speaks neither language.
            Err(ObserveError::Store(_)) => Err(ObserveError::Stranger { address }),
            other => other,
        }
    }

    async fn find_in_store(&mut self, place: &rendezvous::Rendezvous) -> Result<(), ObserveError> {
        let limit = self.observer.patience;
        let reading = async {
            let store = rendezvous::look(place, limit).await?;
            rendezvous::latest_group(store).await
        };
        let cards = tokio::time::timeout(limit, reading)
            .await
            .map_err(|_| ObserveError::Silent {
                address: place.to_string(),
                waited: limit,
            })??
            .filter(|cards| !cards.is_empty())
            .ok_or_else(|| ObserveError::NoGroup {
                address: place.to_string(),
            })?;
        cards.into_iter().for_each(|card| self.learn_card(card));
        Ok(())
    }

    fn learn_card(&mut self, card: Card) {
        let (rank, incarnation) = (card.node.worker.0, card.node.incarnation.0);
        self.learn(rank, card.name, incarnation, card.addresses);
    }

    /// Somebody tells of a life of a worker.
    fn learn(&mut self, rank: u32, name: String, incarnation: u32, addresses: Vec<Address>) {
        let known = self.workers.get(&rank);
        if known.is_none_or(|known| known.incarnation < incarnation) {
            let connection = None;
            let known = KnownWorker {
                name,
                incarnation,
                addresses,
                connection,
            };
            self.workers.insert(rank, known);
        }
    }

    fn begin_with(
        &mut self,
        address: Address,
        connection: ObserverConnection,
        snapshot: &Snapshot,
    ) {
        let known = KnownWorker {
            name: snapshot.worker.clone(),
            incarnation: snapshot.incarnation,
            addresses: vec![address],
            connection: Some(connection),
        };
        self.workers.insert(snapshot.rank, known);
        self.learn_from(snapshot);
    }

    /// Learns of newcomers, and of those who are gone.
    fn learn_from(&mut self, snapshot: &Snapshot) {
        for peer in &snapshot.peers {
            if matches!(&*peer.status, "alive" | "joining") {
                let addresses = peer.addresses.iter().filter_map(|text| shown_address(text));
                let (name, addresses) = (peer.name.clone(), addresses.collect());
                self.learn(peer.rank, name, peer.incarnation, addresses);
            } else {
                let over = |known: &KnownWorker| known.incarnation <= peer.incarnation;
                if self.workers.get(&peer.rank).is_some_and(over) {
                    self.workers.remove(&peer.rank);
                }
            }
        }
    }

    /// Looks at all workers at once, in the order of their ranks. Whoever has joined is found, whoever
    /// has left or died, and is known to have, is not shown any more.
    ///
    /// ```
    /// # use farref::{StoreServer, Worker};
    /// # use farref::observe::Observer;
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await?;
    /// # let place = store.local_addr().to_string();
    /// # let tcp = format!("tcp://{place}");
    /// # let worker = |name| {
    /// #     Worker::builder(name).rendezvous(&tcp).store_is_hosted_elsewhere().join()
    /// # };
    /// let first = worker("first").await?;
    /// let mut group = Observer::new().group(&place).await?;
    /// assert_eq!(group.look().await.len(), 1);
    /// let second = worker("second").await?;
    /// assert_eq!(group.look().await.len(), 2);
    /// # tokio::try_join!(first.shutdown(), second.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn look(&mut self) -> Vec<Sighting> {
        let mut sightings = BTreeMap::new();
        // Those who are found by the first look are looked at in a second, and so on.
        for _ in 0..4 {
            let unseen: Vec<u32> = self
                .workers
                .iter()
                .filter(|(rank, _)| !sightings.contains_key(*rank))
                .map(|(rank, _)| *rank)
                .collect();
            if unseen.is_empty() {
                break;
            }
            for (rank, snapshot) in self.look_at(&unseen).await {
                sightings.insert(rank, snapshot);
            }
            let seen: Vec<&Snapshot> = sightings.values().flatten().collect();
            seen.into_iter()
                .for_each(|snapshot| self.learn_from(snapshot));
        }
        let seen = sightings.into_iter().filter_map(|(rank, snapshot)| {
            let name = self.workers.get(&rank)?.name.clone();
            Some(Sighting {
                name,
                rank,
                snapshot,
            })
        });
        seen.collect()
    }

    async fn look_at(&mut self, ranks: &[u32]) -> Vec<(u32, Result<Snapshot, ObserveError>)> {
        let mut looking = JoinSet::new();
        for &rank in ranks {
            let Some(known) = self.workers.get_mut(&rank) else {
                continue;
            };
            let (observer, name) = (self.observer.clone(), known.name.clone());
            let (addresses, connection) = (known.addresses.clone(), known.connection.take());
            looking.spawn(async move {
                let looked = match connection {
                    Some(mut connection) => {
                        let snapshot = observer.again(&name, &mut connection).await;
                        snapshot.map(|snapshot| (connection, snapshot))
                    }
                    None => {
                        // Who does not know what a worker is called has made something up.
                        let known = rendezvous::check_name(&name).is_ok();
                        let name = known.then_some(&*name);
                        observer.open(&addresses, name).await
                    }
                };
                (rank, looked)
            });
        }
        let mut results = Vec::new();
        while let Some(looked) = looking.join_next().await {
            let Ok((rank, looked)) = looked else {
                continue;
            };
            let snapshot = looked.map(|(connection, snapshot)| {
                if let Some(known) = self.workers.get_mut(&rank) {
                    known.connection = Some(connection);
                }
                snapshot
            });
            results.push((rank, snapshot));
        }
        results
    }
}
