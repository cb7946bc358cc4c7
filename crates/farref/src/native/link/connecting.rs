//! How a link gets its connections.
//!
//! # Invariants
//!
//! - **CO-1** Of two connections that both ends make at once, the one that the lower node made stays:
//!   the lower node refuses the other's while it is busy with its own, the higher node takes the
//!   lower's and gives up its own.
//! - **CO-2** A connection on which an end has sent its hello and that is not established in the end is given
//!   up: a [`PendingConnection`] that is dropped loses the connection.
//! - **CO-3** A connection that a peer made replaces an older one, unless the peer has begun or given up
//!   one later than that: then it is a leftover that arrived late.

use std::sync::Arc;
use std::time::Duration;

use farref_proto::Lane;
use tokio::task::AbortHandle;
use tracing::debug;

use super::connection::{Connection, StreamHalves};
use super::disconnecting::Offence;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, MAIN, SendStream};
use super::{ConnectionState, Lifecycle, Link};
use crate::native::handshake::{HandshakeFailure, Refusal, SessionHello};
use crate::native::transport::Stream;
use crate::rendezvous::{Address, Card};

/// An attempt of ours that has lasted longer than this does not keep a peer from making the
/// connection: ours may be one that can never succeed.
const BUSY_FOR: Duration = Duration::from_secs(1);

/// A connection on which this end has sent its hello, and which is not established yet.
#[derive(Debug)]
pub(crate) struct PendingConnection {
    link: Arc<Link>,
    epoch: u64,
}

impl PendingConnection {
    /// As the end that makes the connection: what to say first. None if there is no need any more.
    pub(super) fn initiate(link: &Arc<Link>) -> Option<(Self, SessionHello)> {
        let now = link.endpoint.now();
        let mut state = link.state();
        if !matches!(state.connection, ConnectionState::Disconnected)
            || state.lifecycle != Lifecycle::Open
        {
            return None;
        }
        state.epoch += 1;
        state.connection = ConnectionState::Handshaking;
        let session = state.session.connection_opened(now);
        let timeout = state.session.poll_timeout();
        let epoch = state.epoch;
        drop(state);
        link.wake_by(timeout);
        let link = Arc::clone(link);
        Some((Self { link, epoch }, SessionHello { epoch, session }))
    }

    /// As the end that made the connection: the peer's hello has come.
    pub(super) fn handle_hello(&self, theirs: &SessionHello) -> Result<(), HandshakeFailure> {
        let mut acknowledged = Vec::new();
        let mut state = self.link.state();
        if state.epoch != self.epoch {
            return Err(HandshakeFailure::Superseded);
        }
        state.peer_epoch = state.peer_epoch.max(theirs.epoch);
        let now = self.link.endpoint.now();
        let heard = state
            .session
            .handle_hello_with(now, &theirs.session, |packet| acknowledged.push(packet));
        drop(state);
        self.link.endpoint.drop_packets(&mut acknowledged);
        heard.map_err(HandshakeFailure::Session)
    }

    /// As the end that is connected to: takes the connection in place of any other, and returns the
    /// answer to its hello.
    pub(crate) fn accept(
        link: &Arc<Link>,
        card: Card,
        theirs: &SessionHello,
    ) -> Result<(Self, SessionHello), Refusal> {
        let now = link.endpoint.now();
        let mut acknowledged = Vec::new();
        let mut state = link.state();
        if state.lifecycle == Lifecycle::Closed {
            // LT-2: it need only come again.
            let refusal = match state.forgotten {
                true => Refusal::Crowded,
                false => Refusal::Gone,
            };
            return Err(refusal);
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
        state.connection = ConnectionState::Handshaking;
        state.card = Some(card);
        let session = state.session.connection_opened(now);
        let epoch = state.epoch;
        let pending = Self {
            link: Arc::clone(link),
            epoch,
        };
        let heard = state
            .session
            .handle_hello_with(now, &theirs.session, |packet| acknowledged.push(packet));
        if heard.is_ok() {
            state.peer_epoch = theirs.epoch;
        }
        drop(state);
        drop(old);
        link.endpoint.drop_packets(&mut acknowledged);
        link.abandon.notify_waiters();
        if let Err(error) = heard {
            drop(pending);
            if error.ends_session() {
                link.cut_off(Offence::new("session", error.to_string()));
            }
            return Err(Refusal::Session);
        }
        Ok((pending, SessionHello { epoch, session }))
    }

    /// Both ends have said hello: frames flow.
    pub(crate) fn establish(
        self,
        stream: Stream,
        id: u64,
        dialed: Option<Address>,
    ) -> Result<(), HandshakeFailure> {
        let link = &self.link;
        let mut state = link.state();
        if state.epoch != self.epoch || !matches!(state.connection, ConnectionState::Handshaking) {
            return Err(HandshakeFailure::Superseded);
        }
        let transport = stream.transport;
        let mut tasks = Vec::with_capacity(4);
        let main = link.start(self.epoch, MAIN, stream, &mut tasks);
        state.connection = ConnectionState::Established(Connection {
            id,
            main,
            bulk: None,
            bulk_asked: false,
            dialed,
            transport,
            tasks,
        });
        let connections = state.session.counters().connections;
        let timeout = state.session.poll_timeout();
        drop(state);

        link.wake_by(timeout);
        link.endpoint.metrics.connections.increment(1);
        if connections > 1 {
            link.endpoint.metrics.reconnects.increment(1);
        }
        debug!(peer = %link.peer, transport, connections, "connected");
        link.abandon.notify_waiters();
        link.flush();
        Ok(())
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        // CO-2; an established connection is left alone.
        let mut state = self.link.state();
        if state.epoch == self.epoch && matches!(state.connection, ConnectionState::Handshaking) {
            let lost = self.link.disconnect(&mut state, true);
            drop(state);
            self.link.finish_disconnecting(lost);
        }
    }
}

impl Link {
    /// Begins to read from one stream of a connection, and to write to it where callers cannot.
    fn start(
        self: &Arc<Self>,
        epoch: u64,
        lanes: &'static [Lane],
        mut stream: Stream,
        tasks: &mut Vec<AbortHandle>,
    ) -> StreamHalves {
        let endpoint = &self.endpoint;
        let shares = lanes == BULK && stream.write.is_local() && endpoint.own_memory.is_some();
        let takes_regions = shares && self.peer_reads.takes_regions(endpoint.now()) && {
            let _runtime = endpoint.runtime.enter();
            stream.read.take_descriptors()
        };
        let send = SendStream::new(epoch, lanes, stream.write, &endpoint.user_code);
        let recv = RecvStream::new(epoch, lanes, stream.read, &send, endpoint);
        if shares {
            send.memory.offer();
            let at_most = endpoint.config.memory_answer;
            let await_answer = Arc::clone(&send).await_answer(Arc::downgrade(self), at_most);
            tasks.extend(endpoint.spawn_io(await_answer));
        }
        if takes_regions {
            send.memory.take_regions();
        }
        tasks.extend(endpoint.spawn(Arc::clone(&recv).run(Arc::clone(self))));
        tasks.extend(endpoint.spawn(Arc::clone(&send).run(Arc::clone(self))));
        StreamHalves { send, recv }
    }

    /// The second stream of a connection is through its handshake.
    pub(crate) fn attach_bulk(
        self: &Arc<Self>,
        id: u64,
        stream: Stream,
    ) -> Result<(), HandshakeFailure> {
        let send = {
            let mut state = self.state();
            let epoch = state.epoch;
            let ConnectionState::Established(connection) = &mut state.connection else {
                return Err(HandshakeFailure::Superseded);
            };
            if connection.id != id || connection.bulk.is_some() {
                return Err(HandshakeFailure::Superseded);
            }
            let bulk = self.start(epoch, BULK, stream, &mut connection.tasks);
            Arc::clone(&connection.bulk.insert(bulk).send)
        };
        send.write_pending(self);
        Ok(())
    }

    /// Whether a second stream for the connection with this id is welcome.
    pub(crate) fn awaits_bulk(&self, id: u64) -> bool {
        matches!(&self.state().connection,
            ConnectionState::Established(connection) if connection.id == id && connection.bulk.is_none())
    }
}
