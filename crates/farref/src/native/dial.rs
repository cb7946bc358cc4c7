//! Making connections: to whom, where to, and how often.
//!
//! A link that needs a connection has one task that tries until there is one, whoever made it, or
//! none is needed any more.
//!
//! # Invariants
//!
//! - **DI-1** While a link lives, has no connection, and has had one or has something to send, its
//!   task is at work: it ends only in one step with seeing that it is not needed.
//! - **DI-2** A peer counts as refusing only if every address at which it may listen refused. A Unix
//!   socket alone proves nothing: it may be out of reach in another network namespace.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::config::NativeConfig;
use super::connection::Connection;
use super::greet;
use super::handshake::{HandshakeFailure, Refusal};
use super::link::{Fate, Link, Stage, State};
use super::shared::Shared;
use super::stream::Stream;
use crate::rendezvous::{Address, Card};

/// Sees to it that somebody tries to connect, if that is needed.
pub(super) fn ensure(link: &Arc<Link>, state: &mut State) {
    if state.dialer.is_none() && is_needed(link, state) {
        state.dialer = link.shared.spawn_io(run(Arc::clone(link)));
    }
}

fn is_needed(link: &Link, state: &State) -> bool {
    matches!(state.stage, Stage::Apart)
        && state.fate == Fate::Lives
        && !(link.shared.is_closing() && state.session.unacked() == 0)
}

/// What an attempt led to.
enum Outcome {
    Connected,
    /// Another connection came first, or the attempt is pointless for another reason.
    Abandoned,
    /// Nothing listens there.
    Refused,
    /// The peer counts this worker as gone.
    Gone,
    /// No later attempt can succeed.
    Hopeless(String),
    Failed,
}

async fn run(link: Arc<Link>) {
    loop {
        // Asked without the lock (LI-1). Once it is so, it stays so.
        let done = link.shared.is_done_with(link.peer);
        let pause = {
            let mut state = link.state();
            let pointless = done && state.session.unacked() == 0;
            if pointless || !is_needed(&link, &state) {
                state.dialer = None;
                return;
            }
            backoff(&link.shared.config, state.failures)
        };
        if !pause.is_zero() {
            tokio::select! {
                () = sleep(pause) => {}
                () = link.abandon.notified() => continue,
            }
        }
        link.state().attempt = Some(link.shared.now());
        let outcome = tokio::select! {
            outcome = attempt(&link) => outcome,
            () = link.abandon.notified() => Outcome::Abandoned,
        };
        {
            let mut state = link.state();
            state.attempt = None;
            if !matches!(outcome, Outcome::Connected) {
                state.failures = state.failures.saturating_add(1);
            }
        }
        conclude(&link, outcome);
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

fn conclude(link: &Arc<Link>, outcome: Outcome) {
    match outcome {
        Outcome::Connected | Outcome::Abandoned | Outcome::Failed => {}
        Outcome::Refused => {
            debug!(peer = %link.peer, "connection refused");
            let (epoch, events) = {
                let mut state = link.state();
                state.session.connection_refused(link.shared.now());
                if link.shared.is_closing() && matches!(state.stage, Stage::Apart) {
                    // There is nobody left to deliver to.
                    state.fate = Fate::Over;
                }
                (state.epoch, state.events())
            };
            link.act(epoch, events);
            link.progress.notify_waiters();
        }
        Outcome::Gone => {
            link.state().fate = Fate::Over;
            link.progress.notify_waiters();
            if let Some(inbound) = link.shared.inbound() {
                inbound.refused(link.peer);
            }
        }
        Outcome::Hopeless(reason) => link.condemn(reason),
    }
}

/// Tries each address of the peer once.
async fn attempt(link: &Arc<Link>) -> Outcome {
    let shared = &link.shared;
    let Some(card) = card(link).await else {
        return Outcome::Failed;
    };
    let addresses = candidates(shared, &card);
    let mut refused = !addresses.is_empty();
    for address in addresses {
        let stream = match connect(shared, address).await {
            Ok(stream) => stream,
            Err(error) => {
                debug!(peer = %link.peer, ?address, %error, "cannot connect");
                refused &= is_refusal(&error);
                continue;
            }
        };
        let greeting = greet::dial_main(link, stream, address);
        let failure = match timeout(shared.config.handshake_timeout, greeting).await {
            Ok(Ok(())) => return Outcome::Connected,
            Ok(Err(failure)) => failure,
            Err(_) => HandshakeFailure::Timeout,
        };
        match &failure {
            HandshakeFailure::Superseded | HandshakeFailure::Refused(Refusal::Busy) => {
                return Outcome::Abandoned;
            }
            HandshakeFailure::Refused(Refusal::Gone) => return Outcome::Gone,
            // Both ends are: there is nobody left to deliver to.
            HandshakeFailure::Refused(Refusal::Closing) if shared.is_closing() => {}
            HandshakeFailure::Session(error) if error.ends_session() => {
                return Outcome::Hopeless(error.to_string());
            }
            // Somebody else lives there now.
            HandshakeFailure::Refused(Refusal::WrongLife { .. }) => {}
            _ => refused = false,
        }
        report(link, address, &failure);
        if let Some(rejection) = failure.rejection() {
            shared.contacts.turned_away(link.peer, rejection);
        }
    }
    if refused {
        Outcome::Refused
    } else {
        Outcome::Failed
    }
}

/// Tells the operator what only the operator can mend, without repeating it for ever.
fn report(link: &Link, address: &Address, failure: &HandshakeFailure) {
    let peer = link.peer;
    if failure.needs_operator() && link.state().failures <= 2 {
        warn!(%peer, ?address, %failure, "handshake failed");
    } else {
        debug!(%peer, ?address, %failure, "handshake failed");
    }
}

/// How to reach the peer.
async fn card(link: &Arc<Link>) -> Option<Card> {
    if let Some(card) = link.state().card.clone() {
        return Some(card);
    }
    match link.shared.contacts.lookup(link.peer).await {
        Ok(card) if card.node == link.peer => Some(card),
        Ok(card) => {
            debug!(peer = %link.peer, listed = %card.node, "another life is listed");
            None
        }
        Err(error) => {
            debug!(peer = %link.peer, error, "not listed");
            None
        }
    }
}

/// Where to try, the best first.
fn candidates<'a>(shared: &Shared, card: &'a Card) -> Vec<&'a Address> {
    reachable(card, &shared.identity.card.host, shared.network.is_some())
}

/// The addresses of a card that can be tried from a host, perhaps from a network within this process.
pub(super) fn reachable<'a>(card: &'a Card, host: &str, in_memory: bool) -> Vec<&'a Address> {
    let same_host = card.host == host;
    let rank = |address: &&Address| match address {
        Address::Memory(_) => in_memory.then_some(0),
        Address::Unix(_) => (cfg!(unix) && same_host).then_some(1),
        Address::Tcp(_) => Some(2),
    };
    let mut addresses: Vec<_> = card
        .addresses
        .iter()
        .filter(|address| rank(address).is_some())
        .collect();
    addresses.sort_by_key(rank);
    addresses
}

async fn connect(shared: &Shared, address: &Address) -> io::Result<Stream> {
    let connecting = Stream::connect(address, shared.network.as_ref());
    timeout(shared.config.connect_timeout, connecting)
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

/// Sees to a connection's stream for bulk data. True if the peer is to be asked for it, because it
/// made the connection.
pub(super) fn ask_for_bulk(link: &Arc<Link>, connection: &mut Connection) -> bool {
    if !connection.lacks_bulk() {
        return false;
    }
    connection.note_bulk_asked();
    let Some(address) = connection.dialed.clone() else {
        return true;
    };
    let task = add_bulk(
        Arc::clone(link),
        connection.main.epoch,
        connection.id,
        address,
    );
    connection.adopt(link.shared.spawn_io(task));
    false
}

/// Makes a connection's stream for bulk data, or gives the connection up.
async fn add_bulk(link: Arc<Link>, epoch: u64, id: u64, address: Address) {
    let adding = async {
        let stream = connect(&link.shared, &address).await?;
        greet::dial_bulk(&link, stream, id).await
    };
    let failure = match timeout(link.shared.config.handshake_timeout, adding).await {
        Ok(Ok(())) => return,
        Ok(Err(failure)) => failure,
        Err(_) => HandshakeFailure::Timeout,
    };
    link.lose(epoch, &format_args!("no stream for bulk data: {failure}"));
}
