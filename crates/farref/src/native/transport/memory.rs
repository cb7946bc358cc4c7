//! A network within one process, whose faults are at the command of a test.
//!
//! Endpoints bind a name and connect to names. The bytes go through the same framing, handshake and
//! sessions as over sockets; buffers are bounded, so writers are held back as they would be there.
//!
//! Faults are named after pairs of endpoints and hold for both directions, for established connections
//! and for those to come: [`cut`](MemoryNetwork::cut), [`cut_after`](MemoryNetwork::cut_after),
//! [`partition`](MemoryNetwork::partition) and [`heal`](MemoryNetwork::heal),
//! [`set_latency`](MemoryNetwork::set_latency), [`crash`](MemoryNetwork::crash).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};

use super::pipe::{Duplex, PipeReader, PipeWriter};
use crate::support::lock::lock;

/// How many bytes a pipe holds unless told otherwise: what a Unix socket does.
const CAPACITY: usize = 208 << 10;

/// A network for workers that live in one process. Clones are the same network.
///
/// The workers of a [`Cluster`](crate::testing::Cluster) are on one; its methods are the way to
/// their faults.
///
/// ```
/// use farref::MemoryNetwork;
///
/// let network = MemoryNetwork::new();
/// // Faults hold for pairs of names, whoever they are or will be.
/// network.partition("a", "b");
/// network.heal("a", "b");
/// assert_eq!(network.connections("a", "b"), 0);
/// assert_eq!(network.cut("a", "b"), 0); // there was nothing to break
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryNetwork(Arc<Network>);

#[derive(Debug, Default)]
struct Network {
    state: Mutex<NetworkState>,
    /// Something that a hanging connection attempt may wait for has changed.
    changed: Notify,
}

#[derive(Debug, Default)]
struct NetworkState {
    listeners: HashMap<String, mpsc::UnboundedSender<(PipeReader, PipeWriter)>>,
    /// In their order: what happens to all of them happens the same way each time (SM-1).
    pairs: BTreeMap<(String, String), Pair>,
    capacity: Option<usize>,
    /// Endpoints that connect to nobody, until their names are bound again.
    crashed: HashSet<String>,
}

/// What there is between two endpoints.
#[derive(Debug, Default)]
struct Pair {
    partitioned: bool,
    latency: Duration,
    /// Index 0 of each is the end whose name sorts first.
    connections: Vec<Weak<Duplex>>,
}

impl Pair {
    /// All connections of which an end is left.
    fn all(&mut self) -> Vec<Arc<Duplex>> {
        self.connections
            .retain(|connection| connection.strong_count() > 0);
        self.connections.iter().filter_map(Weak::upgrade).collect()
    }

    /// Those of which neither end is gone.
    fn live(&mut self) -> Vec<Arc<Duplex>> {
        let mut connections = self.all();
        connections.retain(|connection| !connection.is_over());
        connections
    }
}

impl MemoryNetwork {
    /// A network with nobody in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Breaks all connections between two endpoints at once; what is under way is lost. Returns how
    /// many there were.
    pub fn cut(&self, a: &str, b: &str) -> usize {
        let connections = self.0.state().pair(a, b).live();
        connections.iter().for_each(|connection| connection.cut());
        connections.len()
    }

    /// Breaks each connection between two endpoints once so many more bytes have been written on it
    /// from `a` to `b`: that is in the middle of whatever is written then. Returns how many there
    /// were.
    pub fn cut_after(&self, a: &str, b: &str, bytes: u64) -> usize {
        let connections = self.0.state().pair(a, b).live();
        for connection in &connections {
            let direction = usize::from(a > b);
            if let Some(pipe) = connection.pipes.get(direction) {
                pipe.set_cut_after(bytes);
            }
        }
        connections.len()
    }

    /// Nothing passes between two endpoints any more, and nothing is lost: bytes wait, connection
    /// attempts hang.
    pub fn partition(&self, a: &str, b: &str) {
        self.set_partitioned(a, b, true);
    }

    /// Ends a [`partition`](Self::partition).
    pub fn heal(&self, a: &str, b: &str) {
        self.set_partitioned(a, b, false);
        self.0.changed.notify_waiters();
    }

    fn set_partitioned(&self, a: &str, b: &str, partitioned: bool) {
        let mut state = self.0.state();
        let pair = state.pair(a, b);
        pair.partitioned = partitioned;
        // Those that are over too: the other end is to hear of it in time, and not before.
        for connection in pair.all() {
            connection.set_frozen(partitioned);
        }
    }

    /// Nothing passes any more on the newest connection between two endpoints. Undone by
    /// [`heal`](Self::heal).
    #[cfg(test)]
    pub(crate) fn freeze_newest(&self, a: &str, b: &str) {
        let connections = self.0.state().pair(a, b).live();
        if let Some(connection) = connections.last() {
            connection.set_frozen(true);
        }
    }

    /// How long bytes are under way between two endpoints. Nothing by default.
    pub fn set_latency(&self, a: &str, b: &str, latency: Duration) {
        let mut state = self.0.state();
        let pair = state.pair(a, b);
        pair.latency = latency;
        for connection in pair.live() {
            for pipe in &connection.pipes {
                pipe.set_latency(latency);
            }
        }
    }

    /// How many bytes each direction of a connection made from now on holds.
    pub fn set_capacity(&self, bytes: usize) {
        self.0.state().capacity = Some(bytes.max(1));
    }

    /// The endpoint is gone as if its process had been killed: its connections break, attempts to
    /// connect to it are refused, and so are its own. The name may be bound again.
    pub fn crash(&self, name: &str) {
        let connections: Vec<_> = {
            let mut state = self.0.state();
            state.listeners.remove(name);
            state.crashed.insert(name.to_owned());
            state
                .pairs
                .iter_mut()
                .filter(|((a, b), _)| a == name || b == name)
                .flat_map(|(_, pair)| {
                    let partitioned = pair.partitioned;
                    let connections = pair.live().into_iter();
                    connections.map(move |connection| (connection, partitioned))
                })
                .collect()
        };
        // Who is killed says nothing of what it sees of its end: nothing passes anywhere before anything breaks.
        for (connection, _) in &connections {
            connection.set_frozen(true);
        }
        for (connection, _) in &connections {
            connection.cut();
        }
        for (connection, partitioned) in &connections {
            connection.set_frozen(*partitioned);
        }
        self.0.changed.notify_waiters();
    }

    /// How many connections there are between two endpoints.
    pub fn connections(&self, a: &str, b: &str) -> usize {
        self.0.state().pair(a, b).live().len()
    }

    pub(crate) fn bind(&self, name: &str) -> io::Result<MemoryListener> {
        let mut state = self.0.state();
        if state
            .listeners
            .get(name)
            .is_some_and(|old| !old.is_closed())
        {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // Unbounded, as connection attempts are few; each holds two empty pipes.
        let (sender, incoming) = mpsc::unbounded_channel();
        state.listeners.insert(name.to_owned(), sender);
        state.crashed.remove(name);
        Ok(MemoryListener { incoming })
    }

    pub(crate) async fn connect(
        &self,
        from: &str,
        to: &str,
    ) -> io::Result<(PipeReader, PipeWriter)> {
        loop {
            let changed = self.0.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(done) = self.try_connect(from, to) {
                return done;
            }
            changed.await;
        }
    }

    /// None while the pair is partitioned.
    fn try_connect(&self, from: &str, to: &str) -> Option<io::Result<(PipeReader, PipeWriter)>> {
        let mut state = self.0.state();
        let capacity = state.capacity.unwrap_or(CAPACITY);
        let pair = state.pair(from, to);
        if pair.partitioned {
            return None;
        }
        let duplex = Duplex::new(capacity, pair.latency);
        let index = usize::from(from > to);
        let sent = !state.crashed.contains(from)
            && state
                .listeners
                .get(to)
                .is_some_and(|listener| listener.send(duplex.end(1 - index)).is_ok());
        if !sent {
            return Some(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        state
            .pair(from, to)
            .connections
            .push(Arc::downgrade(&duplex));
        Some(Ok(duplex.end(index)))
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, NetworkState> {
        lock(&self.state)
    }
}

impl NetworkState {
    fn pair(&mut self, a: &str, b: &str) -> &mut Pair {
        let (first, second) = if a < b { (a, b) } else { (b, a) };
        self.pairs
            .entry((first.to_owned(), second.to_owned()))
            .or_default()
    }
}

/// Where connections to a name arrive.
#[derive(Debug)]
pub(crate) struct MemoryListener {
    incoming: mpsc::UnboundedReceiver<(PipeReader, PipeWriter)>,
}

impl MemoryListener {
    /// The next connection; never one after the endpoint has crashed.
    pub(crate) async fn accept(&mut self) -> (PipeReader, PipeWriter) {
        match self.incoming.recv().await {
            Some(stream) => stream,
            None => std::future::pending().await,
        }
    }
}
