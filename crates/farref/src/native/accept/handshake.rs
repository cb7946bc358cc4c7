//! The acceptor's end of a handshake, up to the point where the link takes the stream over.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::Acceptor;
use super::pending::Ticket;
use crate::native::handshake::{
    Claim, Conversation, Greeting, HandshakeFailure, Observation, Purpose, Refusal, Reply, Salute,
    VERSION, Verdict, connection_id, fresh_nonce,
};
use crate::native::inquiry::show;
use crate::native::link::{Link, LinkTable, Opening};
use crate::native::transport::Stream;

/// Receives whoever has connected.
pub(super) async fn accept(
    acceptor: &Acceptor,
    mut stream: Stream,
    ticket: Ticket,
) -> Result<(), HandshakeFailure> {
    let endpoint = &acceptor.links.endpoint;
    let mut talk = Conversation::new(&mut stream, &endpoint.key);
    let greeting: Greeting = match talk.hear_opening().await {
        Err(failure @ HandshakeFailure::Version { .. }) => {
            let refusal = Refusal::Version { ours: VERSION };
            talk.open(&Reply::Refused(refusal)).await?;
            return Err(failure);
        }
        other => other?,
    };
    let here = endpoint.node();
    let refusal = match greeting {
        Greeting::Worker { group, .. } if group != endpoint.identity.group => Some(Refusal::Group),
        Greeting::Worker { to, .. } | Greeting::Successor { of: to, .. } if to != here => {
            Some(Refusal::WrongLife { here })
        }
        Greeting::Worker { .. } | Greeting::Observer { .. } | Greeting::Successor { .. } => None,
    };
    if let Some(refusal) = refusal {
        talk.open(&Reply::Refused(refusal)).await?;
        return Err(HandshakeFailure::Refusing(refusal));
    }
    let nonce = fresh_nonce()?;
    talk.open(&Reply::Challenge(nonce)).await?;
    if let Greeting::Observer { .. } = greeting {
        let Observation = hear_proof(&mut talk).await?;
        drop(ticket);
        let Ok(permit) = Arc::clone(&acceptor.observers).try_acquire_owned() else {
            let refusal = Refusal::Crowded;
            talk.judge(&Verdict::Refused(refusal)).await?;
            return Err(HandshakeFailure::Refusing(refusal));
        };
        talk.judge(&Verdict::Observed).await?;
        let contacts = Arc::clone(&endpoint.contacts);
        endpoint.spawn_io(show(permit, contacts, stream));
        return Ok(());
    }
    if let Greeting::Successor { .. } = greeting {
        let Observation = hear_proof(&mut talk).await?;
        drop(ticket);
        if endpoint.is_closing() || !endpoint.contacts.is_here() {
            // Its place is free, or about to be.
            return talk.judge(&Verdict::Refused(Refusal::Closing)).await;
        }
        return talk.judge(&Verdict::Present).await;
    }
    let claim: Claim = hear_proof(&mut talk).await?;
    // No stranger any more.
    drop(ticket);

    match take(&acceptor.links, &claim) {
        Err(refusal) => {
            talk.judge(&Verdict::Refused(refusal)).await?;
            Err(match refusal {
                Refusal::Gone if endpoint.has_left(claim.card.node) => HandshakeFailure::HasLeft,
                _ => HandshakeFailure::Refusing(refusal),
            })
        }
        Ok(Taken::Bulk(link, id)) => {
            talk.judge(&Verdict::Bulk).await?;
            let stream = stream.move_to(&endpoint.handle)?;
            link.attach_bulk(id, stream)
                .map_err(|_| HandshakeFailure::Superseded)
        }
        Ok(Taken::Main(opening, salute)) => {
            talk.judge(&Verdict::Main {
                card: Box::new(endpoint.identity.card.clone()),
                max_calls: endpoint.identity.max_calls,
                salute,
            })
            .await?;
            // Before any message of the peer can be handed in.
            endpoint.contacts.met(&claim.card, claim.max_calls);
            let stream = stream.move_to(&endpoint.handle)?;
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
fn take(links: &LinkTable, claim: &Claim) -> Result<Taken, Refusal> {
    if let Purpose::Main(salute) = &claim.purpose
        && (salute.hello.from, salute.hello.to) != (claim.card.node, links.endpoint.node())
    {
        // Not worth the connection that it would replace.
        return Err(Refusal::Session);
    }
    let link = links.link_for_dialer(claim.card.node)?;
    match &claim.purpose {
        Purpose::Bulk(id) if link.awaits_bulk(*id) => Ok(Taken::Bulk(link, *id)),
        Purpose::Bulk(_) => Err(Refusal::Stale),
        Purpose::Main(salute) => {
            let (opening, ours) = Opening::accept(&link, claim.card.clone(), salute)?;
            Ok(Taken::Main(opening, ours))
        }
    }
}
