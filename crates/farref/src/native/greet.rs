//! Handshakes from both ends, up to the point where the link takes the stream over.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::connection::{Opening, OpeningError};
use super::handshake::{
    Claim, Conversation, Greeting, HandshakeFailure, Observation, Purpose, Refusal, Reply, Salute,
    VERSION, Verdict, connection_id,
};
use super::link::Link;
use super::listen::Ticket;
use super::observe;
use super::shared::Shared;
use super::stream::Stream;
use crate::rendezvous::Address;

/// Makes a connection on a fresh stream to a peer.
pub(super) async fn dial_main(
    link: &Arc<Link>,
    mut stream: Stream,
    address: &Address,
) -> Result<(), HandshakeFailure> {
    let shared = &link.shared;
    let mut talk = Conversation::new(&mut stream, &shared.key);
    let id = introduce(&mut talk, link).await?;
    let (opening, salute) = Opening::greet(link).ok_or(HandshakeFailure::Superseded)?;
    talk.claim(&claim(shared, Purpose::Main(salute))).await?;
    let Verdict::Main {
        card,
        max_calls,
        salute,
    } = hear_welcome(&mut talk).await?
    else {
        return Err(HandshakeFailure::Contradiction);
    };
    if card.node != link.peer {
        return Err(HandshakeFailure::Contradiction);
    }
    opening.hear(&salute)?;
    // Before any message of the peer can be handed in.
    shared.contacts.met(&card, max_calls);
    link.state().card = Some(*card);
    let stream = stream.move_to(&shared.handle)?;
    opening
        .stand(stream, id, Some(address.clone()))
        .map_err(|_| HandshakeFailure::Superseded)
}

/// Adds a stream for bulk data to the connection with this id.
pub(super) async fn dial_bulk(
    link: &Arc<Link>,
    mut stream: Stream,
    id: u64,
) -> Result<(), HandshakeFailure> {
    let mut talk = Conversation::new(&mut stream, &link.shared.key);
    introduce(&mut talk, link).await?;
    talk.claim(&claim(&link.shared, Purpose::Bulk(id))).await?;
    let Verdict::Bulk = hear_welcome(&mut talk).await? else {
        return Err(HandshakeFailure::Contradiction);
    };
    let stream = stream.move_to(&link.shared.handle)?;
    link.attach_bulk(id, stream)
        .map_err(|_| HandshakeFailure::Superseded)
}

fn claim(shared: &Shared, purpose: Purpose) -> Claim {
    Claim {
        card: shared.identity.card.clone(),
        max_calls: shared.identity.max_calls,
        purpose,
    }
}

/// The first exchange, from the dialer's end. Returns the id of a connection made by it.
async fn introduce(talk: &mut Conversation<'_>, link: &Arc<Link>) -> Result<u64, HandshakeFailure> {
    let shared = &link.shared;
    talk.open(&Greeting::Worker {
        group: shared.identity.group,
        to: link.peer,
        nonce: shared.nonce().ok_or(HandshakeFailure::NoRandomness)?,
    })
    .await?;
    match talk.hear_opening().await? {
        Reply::Challenge(nonce) => Ok(connection_id(&nonce)),
        Reply::Refused(
            refusal @ (Refusal::Version { .. } | Refusal::Group | Refusal::WrongLife { .. }),
        ) => Err(HandshakeFailure::Refused(refusal)),
        // All else is said only with a proof (HS-3).
        Reply::Refused(_) => Err(HandshakeFailure::Contradiction),
    }
}

pub(super) async fn hear_welcome(talk: &mut Conversation<'_>) -> Result<Verdict, HandshakeFailure> {
    match talk.hear_verdict().await? {
        // An acceptor that does not believe us does not prove itself either.
        (Verdict::Refused(Refusal::Token), _) => Err(HandshakeFailure::Refused(Refusal::Token)),
        (_, false) => Err(HandshakeFailure::BadProof),
        (Verdict::Refused(refusal), true) => Err(HandshakeFailure::Refused(refusal)),
        (verdict, true) => Ok(verdict),
    }
}

/// Receives whoever has connected.
pub(super) async fn accept(
    shared: &Arc<Shared>,
    mut stream: Stream,
    ticket: Ticket,
) -> Result<(), HandshakeFailure> {
    let mut talk = Conversation::new(&mut stream, &shared.key);
    let greeting: Greeting = match talk.hear_opening().await {
        Err(failure @ HandshakeFailure::Version { .. }) => {
            let refusal = Refusal::Version { ours: VERSION };
            talk.open(&Reply::Refused(refusal)).await?;
            return Err(failure);
        }
        other => other?,
    };
    let here = shared.node();
    let refusal = match greeting {
        Greeting::Worker { group, .. } if group != shared.identity.group => Some(Refusal::Group),
        Greeting::Worker { to, .. } | Greeting::Successor { of: to, .. } if to != here => {
            Some(Refusal::WrongLife { here })
        }
        Greeting::Worker { .. } | Greeting::Observer { .. } | Greeting::Successor { .. } => None,
    };
    if let Some(refusal) = refusal {
        talk.open(&Reply::Refused(refusal)).await?;
        return Err(HandshakeFailure::Refusing(refusal));
    }
    let nonce = shared.nonce().ok_or(HandshakeFailure::NoRandomness)?;
    talk.open(&Reply::Challenge(nonce)).await?;
    if let Greeting::Observer { .. } = greeting {
        let Observation = hear_proof(&mut talk).await?;
        drop(ticket);
        let Some(seat) = observe::Seat::take(shared) else {
            let refusal = Refusal::Crowded;
            talk.judge(&Verdict::Refused(refusal)).await?;
            return Err(HandshakeFailure::Refusing(refusal));
        };
        talk.judge(&Verdict::Observed).await?;
        shared.spawn_io(observe::show(seat, stream));
        return Ok(());
    }
    if let Greeting::Successor { .. } = greeting {
        let Observation = hear_proof(&mut talk).await?;
        drop(ticket);
        if shared.is_closing() || !shared.contacts.is_here() {
            // Its place is free, or about to be.
            return talk.judge(&Verdict::Refused(Refusal::Closing)).await;
        }
        return talk.judge(&Verdict::Present).await;
    }
    let claim: Claim = hear_proof(&mut talk).await?;
    // No stranger any more.
    drop(ticket);

    match take(shared, &claim) {
        Err(refusal) => {
            talk.judge(&Verdict::Refused(refusal)).await?;
            Err(match refusal {
                Refusal::Gone if shared.has_left(claim.card.node) => HandshakeFailure::HasLeft,
                _ => HandshakeFailure::Refusing(refusal),
            })
        }
        Ok(Taken::Bulk(link, id)) => {
            talk.judge(&Verdict::Bulk).await?;
            let stream = stream.move_to(&shared.handle)?;
            link.attach_bulk(id, stream)
                .map_err(|_| HandshakeFailure::Superseded)
        }
        Ok(Taken::Main(opening, salute)) => {
            talk.judge(&Verdict::Main {
                card: Box::new(shared.identity.card.clone()),
                max_calls: shared.identity.max_calls,
                salute,
            })
            .await?;
            // Before any message of the peer can be handed in.
            shared.contacts.met(&claim.card, claim.max_calls);
            let stream = stream.move_to(&shared.handle)?;
            opening
                .stand(stream, connection_id(&nonce), None)
                .map_err(|_| HandshakeFailure::Superseded)
        }
    }
}

/// Hears what the dialer claims, and tells it if it has not proved that.
async fn hear_proof<T: DeserializeOwned>(
    talk: &mut Conversation<'_>,
) -> Result<T, HandshakeFailure> {
    let (claim, proved) = talk.hear_claim().await?;
    if !proved {
        talk.turn_away().await?;
        return Err(HandshakeFailure::BadProof);
    }
    Ok(claim)
}

/// What an accepted stream becomes.
enum Taken {
    Main(Opening, Salute),
    Bulk(Arc<Link>, u64),
}

/// Decides about a stream whose dialer has proved itself.
fn take(shared: &Arc<Shared>, claim: &Claim) -> Result<Taken, Refusal> {
    if let Purpose::Main(salute) = &claim.purpose
        && (salute.hello.from, salute.hello.to) != (claim.card.node, shared.node())
    {
        // Not worth the connection that it would replace.
        return Err(Refusal::Session);
    }
    let link = shared.link_for_dialer(claim.card.node)?;
    match &claim.purpose {
        Purpose::Bulk(id) if link.awaits_bulk(*id) => Ok(Taken::Bulk(link, *id)),
        Purpose::Bulk(_) => Err(Refusal::Stale),
        Purpose::Main(hello) => match Opening::accept(&link, claim.card.clone(), hello) {
            Ok((opening, hello)) => Ok(Taken::Main(opening, hello)),
            Err(OpeningError::Refused(refusal)) => Err(refusal),
            Err(OpeningError::Outdated) => Err(Refusal::Stale),
            Err(OpeningError::Session(error)) => {
                if error.ends_session() {
                    link.condemn(error.to_string());
                }
                Err(Refusal::Session)
            }
        },
    }
}

impl From<OpeningError> for HandshakeFailure {
    fn from(error: OpeningError) -> Self {
        match error {
            OpeningError::Outdated => Self::Superseded,
            OpeningError::Refused(refusal) => Self::Refusing(refusal),
            OpeningError::Session(error) => Self::Session(error),
        }
    }
}
