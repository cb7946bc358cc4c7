//! Making connections: to whom, where to, and how often.
//!
//! A link that needs a connection has one task that tries until there is one, whoever made it, or
//! none is needed any more.
//!
//! # Invariants
//!
//! - **DI-1** While a link is open, has no connection, and has had one, has something to send or is watched, its
//!   task is at work: it ends only in one step with seeing that it is not needed.
//! - **DI-2** A peer counts as refusing only if every address at which it may listen refused. Where it listens by TCP, too, a
//!   Unix socket alone proves nothing: it may be out of reach in another network namespace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::connecting::PendingConnection;
use super::connection::Connection;
use super::disconnecting::Offence;
use super::{ConnectionState, Lifecycle, Link, LinkState};
use crate::native::endpoint::{Endpoint, NativeConfig};
use crate::native::handshake::{
    Claim, Conversation, Greeting, HandshakeFailure, Purpose, Refusal, Rejection, Reply, Verdict,
    connection_id, fresh_nonce,
};
use crate::native::transport::{Stream, reachable};
use crate::rendezvous::{Address, Card};

impl Link {
    /// Sees to it that somebody tries to connect, if that is needed.
    pub(super) fn ensure_dialing(self: &Arc<Self>, state: &mut LinkState) {
        if state.dialer.is_none() && is_needed(self, state) {
            state.dialer = self.endpoint.spawn_io(run(Arc::clone(self)));
        }
    }

    /// Sees to it that there is a connection, though nothing is queued. Once there was one, it is made anew whenever it
    /// breaks (DI-1), so that the peer is missed as soon as it is gone. False if the link was forgotten, and another is to be kept.
    pub(in crate::native) fn keep_connected(self: &Arc<Self>) -> bool {
        let mut state = self.state();
        state.watched = true;
        self.ensure_dialing(&mut state);
        !state.forgotten
    }

    /// Sees to a connection's stream for bulk data. True if the peer is to be asked for it, because it
    /// made the connection.
    pub(super) fn ask_for_bulk(self: &Arc<Self>, connection: &mut Connection) -> bool {
        if !connection.lacks_bulk() {
            return false;
        }
        connection.bulk_asked = true;
        let Some(address) = connection.dialed.clone() else {
            return true;
        };
        let epoch = connection.main.send.epoch;
        let task = add_bulk(Arc::clone(self), epoch, connection.id, address);
        connection.tasks.extend(self.endpoint.spawn_io(task));
        false
    }
}

fn is_needed(link: &Link, state: &LinkState) -> bool {
    matches!(state.connection, ConnectionState::Disconnected)
        && state.lifecycle == Lifecycle::Open
        && !(link.endpoint.is_closing() && state.session.unacked() == 0)
}

/// What an attempt led to.
enum AttemptOutcome {
    Connected,
    /// Another connection came first, or the attempt is pointless for another reason.
    Abandoned,
    /// Nothing listens there.
    Refused,
    /// The peer counts this worker as gone.
    Gone,
    /// No later attempt can succeed.
    Fatal(Offence),
    Failed,
}

async fn run(link: Arc<Link>) {
    loop {
        // Asked without the lock (LI-1). Once it is so, it stays so.
        let done = link.endpoint.is_done_with(link.peer);
        let pause = {
            let mut state = link.state();
            let pointless = done && state.session.unacked() == 0;
            if pointless || !is_needed(&link, &state) {
                state.dialer = None;
                return;
            }
            backoff(&link.endpoint.config, state.failures)
        };
        if !pause.is_zero() {
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = link.abandon.notified() => continue,
            }
        }
        link.state().attempt = Some(link.endpoint.now());
        let outcome = tokio::select! {
            biased;
            outcome = attempt(&link) => outcome,
            () = link.abandon.notified() => AttemptOutcome::Abandoned,
        };
        {
            let mut state = link.state();
            state.attempt = None;
            if !matches!(outcome, AttemptOutcome::Connected) {
                state.failures = state.failures.saturating_add(1);
            }
        }
        handle_outcome(&link, outcome);
    }
}

/// The pause before the next attempt: none before the first two, one of which follows a connection
/// that was lost.
fn backoff(config: &NativeConfig, failures: u32) -> Duration {
    match failures.checked_sub(2) {
        None => Duration::ZERO,
        Some(doublings) => config
            .backoff_min
            .saturating_mul(1 << doublings.min(16))
            .min(config.backoff_max),
    }
}

fn handle_outcome(link: &Arc<Link>, outcome: AttemptOutcome) {
    match outcome {
        AttemptOutcome::Connected | AttemptOutcome::Abandoned | AttemptOutcome::Failed => {}
        AttemptOutcome::Refused => {
            debug!(peer = %link.peer, "connection refused");
            let (epoch, events) = {
                let mut state = link.state();
                state.session.connection_refused(link.endpoint.now());
                if link.endpoint.is_closing()
                    && matches!(state.connection, ConnectionState::Disconnected)
                {
                    // There is nobody left to deliver to.
                    state.lifecycle = Lifecycle::Closed;
                }
                (state.epoch, state.events())
            };
            link.handle_events(epoch, events);
            link.progress.notify_waiters();
        }
        AttemptOutcome::Gone => {
            link.state().lifecycle = Lifecycle::Closed;
            link.progress.notify_waiters();
            if let Some(inbound) = link.endpoint.inbound() {
                inbound.refused(link.peer);
            }
        }
        AttemptOutcome::Fatal(offence) => link.cut_off(offence),
    }
}

/// Tries each address of the peer once.
async fn attempt(link: &Arc<Link>) -> AttemptOutcome {
    let endpoint = &link.endpoint;
    let Some(card) = card(link).await else {
        return AttemptOutcome::Failed;
    };
    let host = &endpoint.identity.card.host;
    let addresses = reachable(&card, host, &endpoint.reach);
    let mut refused = !addresses.is_empty();
    let mut rejection = None;
    if addresses.is_empty() && !card.addresses.is_empty() && !endpoint.reach.tcp {
        // It is to be reached by TCP alone, which takes a token.
        rejection = Some(Rejection::Token);
    }
    for address in addresses {
        let stream = match connect(endpoint, address).await {
            Ok(stream) => stream,
            Err(error) => {
                debug!(peer = %link.peer, ?address, %error, "cannot connect");
                refused &= is_refusal(&error);
                continue;
            }
        };
        let handshake = dial_main(link, stream, address, &card.name);
        let handshake = timeout(endpoint.config.handshake_timeout, handshake);
        let Err(failure) = handshake.await.unwrap_or(Err(HandshakeFailure::Timeout)) else {
            return AttemptOutcome::Connected;
        };
        match &failure {
            HandshakeFailure::Superseded | HandshakeFailure::Refused(Refusal::Busy) => {
                return AttemptOutcome::Abandoned;
            }
            HandshakeFailure::Refused(Refusal::Gone) => return AttemptOutcome::Gone,
            // Both ends are: there is nobody left to deliver to.
            HandshakeFailure::Refused(Refusal::Closing) if endpoint.is_closing() => {}
            HandshakeFailure::Session(error) if error.ends_session() => {
                return AttemptOutcome::Fatal(Offence::new("session", error.to_string()));
            }
            // Somebody else lives there now.
            HandshakeFailure::Refused(Refusal::WrongLife { .. })
            | HandshakeFailure::OtherName { .. } => {}
            _ => refused = false,
        }
        report(link, address, &failure);
        rejection = rejection.or_else(|| failure.rejection());
    }
    // Only now: whom it does not take over a Unix socket it may take over TCP.
    if let Some(rejection) = rejection {
        endpoint.callbacks.rejected(link.peer, rejection);
    }
    if refused {
        AttemptOutcome::Refused
    } else {
        AttemptOutcome::Failed
    }
}

/// Tells the operator what only the operator can mend, without repeating it for ever.
fn report(link: &Link, address: &Address, failure: &HandshakeFailure) {
    let peer = link.peer;
    let name = link.endpoint.callbacks.name(peer);
    let name = name.as_deref().unwrap_or_default();
    if failure.needs_operator() && link.state().failures <= 2 {
        warn!(%peer, name, %address, %failure, "handshake failed");
    } else {
        debug!(%peer, name, %address, %failure, "handshake failed");
    }
}

/// How to reach the peer.
async fn card(link: &Arc<Link>) -> Option<Card> {
    if let Some(card) = link.state().card.clone() {
        return Some(card);
    }
    match link.endpoint.callbacks.lookup(link.peer).await {
        Ok(card) if card.node == link.peer && is_called(link, &card.name) => Some(card),
        Ok(card) => {
            debug!(peer = %link.peer, listed = %card.node, name = %card.name, "another is listed");
            None
        }
        Err(error) => {
            debug!(peer = %link.peer, error, "not listed");
            None
        }
    }
}

/// Whether nothing is known that speaks against the peer's being called so: the store may lie (HS-6).
fn is_called(link: &Link, name: &str) -> bool {
    let known = link.endpoint.callbacks.name(link.peer);
    known.is_none_or(|known| *known == *name)
}

async fn connect(endpoint: &Endpoint, address: &Address) -> io::Result<Stream> {
    let connecting = Stream::connect(address, endpoint.reach.network.as_ref());
    timeout(endpoint.config.connect_timeout, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Whether nothing listens: refused, or a Unix socket whose path is gone.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
    )
}

/// Makes a connection's stream for bulk data, or gives the connection up.
async fn add_bulk(link: Arc<Link>, epoch: u64, id: u64, address: Address) {
    let adding = async {
        let stream = connect(&link.endpoint, &address).await?;
        let name = link.state().card.as_ref().map(|card| card.name.clone());
        let name = name.ok_or(HandshakeFailure::Contradiction)?;
        let stream = secured(&link.endpoint, stream, &name).await?;
        dial_bulk(&link, stream, id).await
    };
    let adding = timeout(link.endpoint.config.handshake_timeout, adding);
    if let Err(failure) = adding.await.unwrap_or(Err(HandshakeFailure::Timeout)) {
        report(&link, &address, &failure);
        link.lose_connection(epoch, &format_args!("no stream for bulk data: {failure}"));
    }
}

/// The same stream, whose other end is the worker of that name, if that is to be seen by a certificate (HS-6).
async fn secured(
    endpoint: &Endpoint,
    stream: Stream,
    name: &str,
) -> Result<Stream, HandshakeFailure> {
    let Some(tls) = &endpoint.identity.tls else {
        return Ok(stream);
    };
    let stream = stream.begin_tls(tls).await?;
    match &stream.bearer {
        Some(bearer) if !bearer.may_be(name) => Err(HandshakeFailure::OtherName {
            bearer: bearer.clone(),
            expected: name.to_owned(),
        }),
        _ => Ok(stream),
    }
}

/// Makes a connection on a fresh stream to a peer of that name.
async fn dial_main(
    link: &Arc<Link>,
    stream: Stream,
    address: &Address,
    name: &str,
) -> Result<(), HandshakeFailure> {
    let endpoint = &link.endpoint;
    let mut stream = secured(endpoint, stream, name).await?;
    let mut conversation = Conversation::new(&mut stream, &endpoint.key);
    let id = exchange_greetings(&mut conversation, link).await?;
    let (pending, hello) = PendingConnection::initiate(link).ok_or(HandshakeFailure::Superseded)?;
    conversation
        .send_claim(&claim(endpoint, Purpose::Main(hello)))
        .await?;
    let Verdict::Main {
        card,
        max_calls,
        hello,
    } = conversation.receive_acceptance().await?
    else {
        return Err(HandshakeFailure::Contradiction);
    };
    if card.node != link.peer || (stream.bearer.is_some() && card.name != name) {
        return Err(HandshakeFailure::Contradiction);
    }
    // Where to dial may be from a store that anybody writes into; what the peer says of itself it has proved.
    if !card.addresses.contains(address) {
        return Err(HandshakeFailure::OtherAddress);
    }
    pending.handle_hello(&hello)?;
    // Before any message of the peer can be delivered.
    endpoint.callbacks.met(&card, max_calls);
    link.state().card = Some(*card);
    let stream = stream.move_to(&endpoint.runtime)?;
    pending.establish(stream, id, Some(address.clone()))
}

/// Adds a stream for bulk data to the connection with this id.
async fn dial_bulk(link: &Arc<Link>, mut stream: Stream, id: u64) -> Result<(), HandshakeFailure> {
    let mut conversation = Conversation::new(&mut stream, &link.endpoint.key);
    exchange_greetings(&mut conversation, link).await?;
    conversation
        .send_claim(&claim(&link.endpoint, Purpose::Bulk(id)))
        .await?;
    let Verdict::Bulk = conversation.receive_acceptance().await? else {
        return Err(HandshakeFailure::Contradiction);
    };
    let stream = stream.move_to(&link.endpoint.runtime)?;
    link.attach_bulk(id, stream)
}

fn claim(endpoint: &Endpoint, purpose: Purpose) -> Claim {
    Claim {
        card: endpoint.identity.card.clone(),
        max_calls: endpoint.identity.max_calls,
        purpose,
    }
}

/// The first exchange, from the dialer's end. Returns the id of a connection made by it.
async fn exchange_greetings(
    conversation: &mut Conversation<'_>,
    link: &Arc<Link>,
) -> Result<u64, HandshakeFailure> {
    let endpoint = &link.endpoint;
    conversation.check_user()?;
    conversation
        .send_opening(&Greeting::Worker {
            group: endpoint.identity.group,
            to: link.peer,
            nonce: fresh_nonce()?,
        })
        .await?;
    match conversation.receive_opening().await? {
        Reply::Challenge(nonce) => Ok(connection_id(&nonce)),
        Reply::Refused(
            refusal @ (Refusal::Version { .. }
            | Refusal::Group
            | Refusal::WrongLife { .. }
            | Refusal::User
            | Refusal::NeedsTls
            | Refusal::NoTls),
        ) => Err(HandshakeFailure::Refused(refusal)),
        // All else is said only with a proof (HS-3).
        Reply::Refused(_) => Err(HandshakeFailure::Contradiction),
    }
}
