//! How a link gets and loses its connections.
//!
//! # Invariants
//!
//! - **CO-1** Of two connections that both ends make at once, the one that the lower node made stays:
//!   the lower node refuses the other's while it is busy with its own, the higher node takes the
//!   lower's and gives up its own.
//! - **CO-2** Whatever an end has greeted on and does not stand in the end is given up: an
//!   [`Opening`] that is dropped loses the connection.
//! - **CO-3** A connection that a peer made replaces an older one, unless the peer has greeted or given
//!   up later than that: then it is a leftover that arrived late.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use farref_proto::HandshakeError;
use tokio::task::AbortHandle;
use tracing::{debug, error, warn};

use super::channel::{BULK, Channel, MAIN};
use super::dial;
use super::handshake::{Refusal, Salute};
use super::link::{Fate, Link, Outdated, Stage, State};
use super::reader::Reader;
use super::stream::{ReadHalf, Stream};
use crate::rendezvous::{Address, Card};

/// An attempt of ours that has lasted longer than this does not keep a peer from making the
/// connection: ours may be one that can never succeed.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// A connection that stands. Dropping it closes its streams.
#[derive(Debug)]
pub(super) struct Connection {
    /// How both ends call it.
    pub(super) id: u64,
    pub(super) main: Arc<Channel>,
    pub(super) bulk: Option<Arc<Channel>>,
    /// The receiving halves of both.
    pub(super) readers: Vec<(Arc<Channel>, Arc<Reader>)>,
    /// Whether the second stream has been asked for.
    bulk_asked: bool,
    /// Where this end connected to, if it did.
    pub(super) dialed: Option<Address>,
    pub(super) transport: &'static str,
    tasks: Vec<AbortHandle>,
}

impl Connection {
    /// Whether the second stream is missing and nobody sees to it.
    pub(super) fn lacks_bulk(&self) -> bool {
        self.bulk.is_none() && !self.bulk_asked
    }

    /// Notes that somebody sees to the second stream.
    pub(super) fn note_bulk_asked(&mut self) {
        self.bulk_asked = true;
    }

    /// Begins to read from one stream, and to write to it where callers cannot.
    fn start(&mut self, link: &Arc<Link>, channel: &Arc<Channel>, read: ReadHalf) {
        let reader = Reader::new(link, read);
        self.readers
            .push((Arc::clone(channel), Arc::clone(&reader)));
        let shared = &link.shared;
        self.adopt(shared.spawn(reader.run(Arc::clone(link), Arc::clone(channel))));
        self.adopt(shared.spawn(Arc::clone(channel).run(Arc::clone(link))));
    }

    /// Remembers a task that ends with the connection.
    pub(super) fn adopt(&mut self, task: Option<AbortHandle>) {
        self.tasks.extend(task);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A connection on which this end has greeted, and which does not stand yet.
#[derive(Debug)]
pub(super) struct Opening {
    link: Arc<Link>,
    epoch: u64,
}

impl Opening {
    /// As the end that makes the connection: what to say first. None if there is no need any more.
    pub(super) fn greet(link: &Arc<Link>) -> Option<(Self, Salute)> {
        let now = link.shared.now();
        let mut state = link.state();
        if !matches!(state.stage, Stage::Apart) || state.fate != Fate::Lives {
            return None;
        }
        state.epoch += 1;
        state.stage = Stage::Greeting;
        let hello = state.session.connection_opened(now);
        let timeout = state.session.poll_timeout();
        let epoch = state.epoch;
        drop(state);
        link.shared.timer.arm(link, timeout);
        let link = Arc::clone(link);
        Some((Self { link, epoch }, Salute { epoch, hello }))
    }

    /// As the end that made the connection: the peer's greeting has come.
    pub(super) fn hear(&self, theirs: &Salute) -> Result<(), OpeningError> {
        let mut acknowledged = Vec::new();
        let mut state = self.link.state();
        if state.epoch != self.epoch {
            return Err(OpeningError::Outdated);
        }
        state.peer_epoch = state.peer_epoch.max(theirs.epoch);
        let now = self.link.shared.now();
        let heard = state
            .session
            .handle_hello_with(now, &theirs.hello, |packet| acknowledged.push(packet));
        drop(state);
        self.link.shared.let_go(acknowledged);
        heard.map_err(OpeningError::Session)
    }

    /// As the end that is connected to: takes the connection in place of any other, and returns the
    /// answer to the greeting.
    pub(super) fn accept(
        link: &Arc<Link>,
        card: Card,
        theirs: &Salute,
    ) -> Result<(Self, Salute), OpeningError> {
        let now = link.shared.now();
        let mut acknowledged = Vec::new();
        let mut state = link.state();
        if state.fate == Fate::Over {
            return Err(OpeningError::Refused(Refusal::Gone));
        }
        let busy = state
            .attempt
            .is_some_and(|since| now.since(since) < BUSY_FOR);
        if busy && link.shared.node() < link.peer {
            // CO-1
            return Err(OpeningError::Refused(Refusal::Busy));
        }
        // CO-3
        if theirs.epoch <= state.peer_epoch {
            return Err(OpeningError::Refused(Refusal::Stale));
        }
        let old = state.take_connection();
        state.epoch += 1;
        state.stage = Stage::Greeting;
        state.card = Some(card);
        let hello = state.session.connection_opened(now);
        let epoch = state.epoch;
        let opening = Self {
            link: Arc::clone(link),
            epoch,
        };
        let heard = state
            .session
            .handle_hello_with(now, &theirs.hello, |packet| acknowledged.push(packet));
        if heard.is_ok() {
            state.peer_epoch = theirs.epoch;
        }
        drop(state);
        drop(old);
        link.shared.let_go(acknowledged);
        link.abandon.notify_waiters();
        heard.map_err(OpeningError::Session)?;
        Ok((opening, Salute { epoch, hello }))
    }

    /// Both ends have greeted: frames flow.
    pub(super) fn stand(
        self,
        stream: Stream,
        id: u64,
        dialed: Option<Address>,
    ) -> Result<(), Outdated> {
        let link = &self.link;
        let mut state = link.state();
        if state.epoch != self.epoch || !matches!(state.stage, Stage::Greeting) {
            return Err(Outdated);
        }
        let main = Channel::new(self.epoch, MAIN, stream.write, &link.shared.user_code);
        let mut connection = Connection {
            id,
            main: Arc::clone(&main),
            bulk: None,
            readers: Vec::with_capacity(2),
            bulk_asked: false,
            dialed,
            transport: stream.transport,
            tasks: Vec::with_capacity(4),
        };
        connection.start(link, &main, stream.read);
        state.stage = Stage::Standing(connection);
        let connections = state.session.counters().connections;
        let timeout = state.session.poll_timeout();
        drop(state);

        link.shared.timer.arm(link, timeout);
        link.shared.meters.connections.increment(1);
        if connections > 1 {
            link.shared.meters.reconnects.increment(1);
        }
        debug!(peer = %link.peer, transport = stream.transport, connections, "connected");
        link.abandon.notify_waiters();
        link.flush();
        Ok(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // CO-2; a connection that stands is left alone.
        let mut state = self.link.state();
        if state.epoch == self.epoch && matches!(state.stage, Stage::Greeting) {
            let lost = self.link.part(&mut state, true);
            drop(state);
            self.link.finish_parting(lost);
        }
    }
}

/// Why a greeting led to nothing.
#[derive(Debug)]
pub(super) enum OpeningError {
    /// Another connection or the end of the link came first.
    Outdated,
    Refused(Refusal),
    /// The peer's greeting is wrong.
    Session(HandshakeError),
}

/// What is to be done outside the lock after a connection was lost.
struct Parted {
    connection: Option<Connection>,
    epoch: u64,
    events: Vec<farref_proto::SessionEvent>,
}

impl Link {
    /// The connection with this epoch is of no use any more: it is closed, and another is made.
    pub(super) fn lose(self: &Arc<Self>, epoch: u64, why: &dyn fmt::Display) {
        let mut state = self.state();
        if state.epoch != epoch || matches!(state.stage, Stage::Apart) {
            return;
        }
        debug!(peer = %self.peer, %why, "connection lost");
        let greeting = matches!(state.stage, Stage::Greeting);
        let parted = self.part(&mut state, true);
        drop(state);
        if greeting {
            self.abandon.notify_waiters();
        }
        self.finish_parting(parted);
    }

    /// The peer broke the rules on the connection with this epoch: it is cut off.
    pub(super) fn cut_off(self: &Arc<Self>, epoch: u64, reason: String) {
        let state = self.state();
        if state.epoch == epoch {
            self.condemn_locked(state, reason);
        }
    }

    /// The peer broke the rules: it is cut off, whatever connection there is.
    pub(super) fn condemn(self: &Arc<Self>, reason: String) {
        self.condemn_locked(self.state(), reason);
    }

    fn condemn_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>, reason: String) {
        if state.fate == Fate::Over {
            return;
        }
        state.fate = Fate::Over;
        let parted = self.part(&mut state, false);
        drop(state);
        self.finish_parting(parted);
        warn!(peer = %self.peer, reason, "peer misbehaved and is cut off");
        if let Some(inbound) = self.shared.inbound() {
            inbound.misbehaved(self.peer, reason);
        }
    }

    /// What the peer said on the connection with this epoch could not be handed in, for a fault of ours.
    /// The message is lost, so nothing that comes after it can be relied on: the link is over.
    pub(super) fn give_up(self: &Arc<Self>, epoch: u64, fault: &str) {
        let mut state = self.state();
        if state.epoch != epoch || state.fate == Fate::Over {
            return;
        }
        state.fate = Fate::Over;
        let parted = self.part(&mut state, false);
        drop(state);
        error!(peer = %self.peer, fault, "a message could not be handed in: this is a bug of farref's, \
            and the peer is given up");
        self.finish_parting(parted);
        if let Some(inbound) = self.shared.inbound() {
            inbound.suspect(self.peer, Duration::ZERO);
        }
    }

    fn part(self: &Arc<Self>, state: &mut State, redial: bool) -> Parted {
        let connection = state.take_connection();
        state.epoch += 1;
        state.failures = state.failures.saturating_add(1);
        state.session.connection_lost(self.shared.now());
        if redial {
            dial::ensure(self, state);
        }
        Parted {
            connection,
            epoch: state.epoch,
            events: state.events(),
        }
    }

    fn finish_parting(self: &Arc<Self>, parted: Parted) {
        drop(parted.connection);
        self.act(parted.epoch, parted.events);
        self.progress.notify_waiters();
    }

    /// The second stream of a connection stands.
    pub(super) fn attach_bulk(self: &Arc<Self>, id: u64, stream: Stream) -> Result<(), Outdated> {
        let channel = {
            let mut state = self.state();
            let epoch = state.epoch;
            let Stage::Standing(connection) = &mut state.stage else {
                return Err(Outdated);
            };
            if connection.id != id || connection.bulk.is_some() {
                return Err(Outdated);
            }
            let channel = Channel::new(epoch, BULK, stream.write, &self.shared.user_code);
            connection.start(self, &channel, stream.read);
            connection.bulk = Some(Arc::clone(&channel));
            channel
        };
        channel.pump(self);
        Ok(())
    }

    /// Whether a second stream for the connection with this id is welcome.
    pub(super) fn awaits_bulk(&self, id: u64) -> bool {
        matches!(&self.state().stage,
            Stage::Standing(connection) if connection.id == id && connection.bulk.is_none())
    }
}
