//! How a link gets its connections.
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

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::connection::Connection;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, MAIN, SendStream};
use super::{Fate, Link, Outdated, Stage};
use crate::native::handshake::{HandshakeFailure, Refusal, Salute};
use crate::native::transport::{ReadHalf, Stream};
use crate::rendezvous::{Address, Card};

/// An attempt of ours that has lasted longer than this does not keep a peer from making the
/// connection: ours may be one that can never succeed.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// A connection on which this end has greeted, and which does not stand yet.
#[derive(Debug)]
pub(crate) struct Opening {
    link: Arc<Link>,
    epoch: u64,
}

impl Opening {
    /// As the end that makes the connection: what to say first. None if there is no need any more.
    pub(super) fn greet(link: &Arc<Link>) -> Option<(Self, Salute)> {
        let now = link.endpoint.now();
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
        link.wake_by(timeout);
        let link = Arc::clone(link);
        Some((Self { link, epoch }, Salute { epoch, hello }))
    }

    /// As the end that made the connection: the peer's greeting has come.
    pub(super) fn hear(&self, theirs: &Salute) -> Result<(), HandshakeFailure> {
        let mut acknowledged = Vec::new();
        let mut state = self.link.state();
        if state.epoch != self.epoch {
            return Err(HandshakeFailure::Superseded);
        }
        state.peer_epoch = state.peer_epoch.max(theirs.epoch);
        let now = self.link.endpoint.now();
        let heard = state
            .session
            .handle_hello_with(now, &theirs.hello, |packet| acknowledged.push(packet));
        drop(state);
        self.link.endpoint.let_go(acknowledged);
        heard.map_err(HandshakeFailure::Session)
    }

    /// As the end that is connected to: takes the connection in place of any other, and returns the
    /// answer to the greeting.
    pub(crate) fn accept(
        link: &Arc<Link>,
        card: Card,
        theirs: &Salute,
    ) -> Result<(Self, Salute), Refusal> {
        let now = link.endpoint.now();
        let mut acknowledged = Vec::new();
        let mut state = link.state();
        if state.fate == Fate::Over {
            return Err(Refusal::Gone);
        }
        let busy = state
            .attempt
            .is_some_and(|since| now.since(since) < BUSY_FOR);
        if busy && link.endpoint.node() < link.peer {
            // CO-1
            return Err(Refusal::Busy);
        }
        // CO-3
        if theirs.epoch <= state.peer_epoch {
            return Err(Refusal::Stale);
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
        link.endpoint.let_go(acknowledged);
        link.abandon.notify_waiters();
        if let Err(error) = heard {
            drop(opening);
            if error.ends_session() {
                link.condemn(error.to_string());
            }
            return Err(Refusal::Session);
        }
        Ok((opening, Salute { epoch, hello }))
    }

    /// Both ends have greeted: frames flow.
    pub(crate) fn stand(
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
        let main = SendStream::new(self.epoch, MAIN, stream.write, &link.endpoint.user_code);
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
        link.start(&mut connection, &main, stream.read);
        state.stage = Stage::Standing(connection);
        let connections = state.session.counters().connections;
        let timeout = state.session.poll_timeout();
        drop(state);

        link.wake_by(timeout);
        link.endpoint.meters.connections.increment(1);
        if connections > 1 {
            link.endpoint.meters.reconnects.increment(1);
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

impl Link {
    /// Begins to read from one stream of a connection, and to write to it where callers cannot.
    fn start(
        self: &Arc<Self>,
        connection: &mut Connection,
        channel: &Arc<SendStream>,
        read: ReadHalf,
    ) {
        let endpoint = &self.endpoint;
        let reader = RecvStream::new(endpoint, read);
        let reading = Arc::clone(&reader).run(Arc::clone(self), Arc::clone(channel));
        let writing = Arc::clone(channel).run(Arc::clone(self));
        connection.readers.push((Arc::clone(channel), reader));
        connection.adopt(endpoint.spawn(reading));
        connection.adopt(endpoint.spawn(writing));
    }

    /// The second stream of a connection stands.
    pub(crate) fn attach_bulk(self: &Arc<Self>, id: u64, stream: Stream) -> Result<(), Outdated> {
        let channel = {
            let mut state = self.state();
            let epoch = state.epoch;
            let Stage::Standing(connection) = &mut state.stage else {
                return Err(Outdated);
            };
            if connection.id != id || connection.bulk.is_some() {
                return Err(Outdated);
            }
            let channel = SendStream::new(epoch, BULK, stream.write, &self.endpoint.user_code);
            self.start(connection, &channel, stream.read);
            connection.bulk = Some(Arc::clone(&channel));
            channel
        };
        channel.pump(self);
        Ok(())
    }

    /// Whether a second stream for the connection with this id is welcome.
    pub(crate) fn awaits_bulk(&self, id: u64) -> bool {
        matches!(&self.state().stage,
            Stage::Standing(connection) if connection.id == id && connection.bulk.is_none())
    }
}
