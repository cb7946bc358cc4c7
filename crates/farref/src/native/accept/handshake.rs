//! The acceptor's end of a handshake, up to the point where the link takes the stream over.

use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::Acceptor;
use super::handshake_limit::HandshakeSlot;
use crate::native::handshake::{
    Claim, Conversation, Greeting, HandshakeFailure, Observation, Purpose, Refusal, Reply,
    SessionHello, VERSION, Verdict, connection_id, fresh_nonce,
};
use crate::native::inquiry::show;
use crate::native::link::{Link, LinkTable, PendingConnection};
use crate::native::transport::{Bearer, ReadHalf, Stream};
use crate::rendezvous::Card;

/// How long the store may take to say what somebody is called who is not known yet. One that is gone takes longer.
const LISTED_WITHIN: Duration = Duration::from_secs(1);

impl Acceptor {
    /// Takes a stream that was accepted through its handshake.
    pub(super) async fn handshake(
        &self,
        mut stream: Stream,
        slot: HandshakeSlot,
    ) -> Result<(), HandshakeFailure> {
        let endpoint = &self.links.endpoint;
        let mut needs_tls = false;
        if let (Some(tls), ReadHalf::Tcp(_)) = (&endpoint.identity.tls, &stream.read) {
            needs_tls = stream.is_plain().await?;
            if !needs_tls {
                stream = stream.accept_tls(tls).await?;
            }
        }
        let bearer = stream.bearer.clone();
        let mut conversation = Conversation::new(&mut stream, &endpoint.key);
        let greeting: Greeting = match conversation.receive_opening().await {
            Err(failure @ HandshakeFailure::Version { .. }) => {
                let refusal = Refusal::Version { ours: VERSION };
                conversation.send_opening(&Reply::Refused(refusal)).await?;
                return Err(failure);
            }
            Err(failure @ HandshakeFailure::SpeaksTls) => {
                let refusal = Reply::Refused(Refusal::NoTls);
                conversation.send_opening(&refusal).await?;
                conversation.hear_out().await;
                return Err(failure);
            }
            other => other?,
        };
        // HS-5
        if let Err(failure) = conversation.check_user() {
            let refusal = Reply::Refused(Refusal::User);
            conversation.send_opening(&refusal).await?;
            return Err(failure);
        }
        let here = endpoint.node();
        let refusal = match greeting {
            _ if needs_tls => Some(Refusal::NeedsTls),
            Greeting::Worker { group, .. } if group != endpoint.identity.group => {
                Some(Refusal::Group)
            }
            Greeting::Worker { to, .. } | Greeting::Successor { of: to, .. } if to != here => {
                Some(Refusal::WrongLife { here })
            }
            Greeting::Worker { .. } | Greeting::Observer { .. } | Greeting::Successor { .. } => {
                None
            }
        };
        if let Some(refusal) = refusal {
            conversation.send_opening(&Reply::Refused(refusal)).await?;
            return Err(HandshakeFailure::Refusing(refusal));
        }
        let nonce = fresh_nonce()?;
        conversation.send_opening(&Reply::Challenge(nonce)).await?;
        if let Greeting::Observer { .. } = greeting {
            let Observation = receive_proved_claim(&mut conversation).await?;
            drop(slot);
            let Ok(permit) = Arc::clone(&self.observers).try_acquire_owned() else {
                let refusal = Refusal::Crowded;
                conversation
                    .send_verdict(&Verdict::Refused(refusal))
                    .await?;
                return Err(HandshakeFailure::Refusing(refusal));
            };
            conversation.send_verdict(&Verdict::Observed).await?;
            let callbacks = Arc::clone(&endpoint.callbacks);
            endpoint.spawn_io(show(permit, callbacks, stream));
            return Ok(());
        }
        if let Greeting::Successor { .. } = greeting {
            let Observation = receive_proved_claim(&mut conversation).await?;
            drop(slot);
            if endpoint.is_closing() || !endpoint.callbacks.is_here() {
                // Its place is free, or about to be.
                return conversation
                    .send_verdict(&Verdict::Refused(Refusal::Closing))
                    .await;
            }
            return conversation.send_verdict(&Verdict::Present).await;
        }
        let claim: Claim = receive_proved_claim(&mut conversation).await?;
        // The dialer has proved itself.
        drop(slot);

        let decision = match bearer {
            Some(bearer) if !self.is_its_own(&bearer, &claim.card).await => Err(Refusal::Name),
            Some(_) => decide(&self.links, &claim),
            // Where there is no TLS because all are on one host, whoever is started without its certificate is to hear of it.
            None => match (&endpoint.identity.tls, &claim.card.certificate) {
                (Some(_), None) => Err(Refusal::NeedsTls),
                (None, Some(_)) => Err(Refusal::NoTls),
                _ => decide(&self.links, &claim),
            },
        };
        match decision {
            Err(refusal) => {
                conversation
                    .send_verdict(&Verdict::Refused(refusal))
                    .await?;
                Err(match refusal {
                    Refusal::Gone if endpoint.has_left(claim.card.node) => {
                        HandshakeFailure::HasLeft
                    }
                    _ => HandshakeFailure::Refusing(refusal),
                })
            }
            Ok(Accepted::Bulk(link, id)) => {
                conversation.send_verdict(&Verdict::Bulk).await?;
                let stream = stream.move_to(&endpoint.runtime)?;
                link.attach_bulk(id, stream)
            }
            Ok(Accepted::Main(pending, hello)) => {
                conversation
                    .send_verdict(&Verdict::Main {
                        card: Box::new(endpoint.identity.card.clone()),
                        max_calls: endpoint.identity.max_calls,
                        hello,
                    })
                    .await?;
                // Before any message of the peer can be delivered.
                endpoint.callbacks.met(&claim.card, claim.max_calls);
                let stream = stream.move_to(&endpoint.runtime)?;
                let established = pending.establish(stream, connection_id(&nonce), None);
                if established.is_err() {
                    self.links.unmeet_if_forgotten(claim.card.node);
                }
                established
            }
        }
    }

    /// Whether a certificate is that of the worker whose card is shown, and that card the worker's own (HS-6).
    async fn is_its_own(&self, bearer: &Bearer, card: &Card) -> bool {
        if !bearer.may_be(&card.name) {
            return false;
        }
        let callbacks = &self.links.endpoint.callbacks;
        if let Some(known) = callbacks.name(card.node) {
            return *known == *card.name;
        }
        let asking = async {
            // So many at a time: who has a certificate can connect as often as it likes.
            let _turn = self.lookups.acquire().await.ok()?;
            callbacks.lookup(card.node).await.ok()
        };
        match timeout(LISTED_WITHIN, asking).await {
            Ok(Some(listed)) => listed.name == card.name,
            // The store may be gone, and the group goes on without it.
            Ok(None) | Err(_) => true,
        }
    }
}

/// Receives what the dialer claims, and tells it if it has not proved that.
async fn receive_proved_claim<T: DeserializeOwned>(
    conversation: &mut Conversation<'_>,
) -> Result<T, HandshakeFailure> {
    let (claim, proved) = conversation.receive_claim().await?;
    if !proved {
        conversation.refuse_unproved().await?;
        return Err(HandshakeFailure::BadProof);
    }
    Ok(claim)
}

/// What an accepted stream becomes.
enum Accepted {
    Main(PendingConnection, SessionHello),
    Bulk(Arc<Link>, u64),
}

/// Decides about a stream whose dialer has proved itself.
fn decide(links: &LinkTable, claim: &Claim) -> Result<Accepted, Refusal> {
    if let Purpose::Main(hello) = &claim.purpose
        && (hello.session.from, hello.session.to) != (claim.card.node, links.endpoint.node())
    {
        // Not worth the connection that it would replace.
        return Err(Refusal::Session);
    }
    let link = links.link_for_dialer(claim.card.node)?;
    match &claim.purpose {
        Purpose::Bulk(id) if link.awaits_bulk(*id) => Ok(Accepted::Bulk(link, *id)),
        Purpose::Bulk(_) => Err(Refusal::Stale),
        Purpose::Main(hello) => {
            let (pending, ours) = PendingConnection::accept(&link, claim.card.clone(), hello)?;
            Ok(Accepted::Main(pending, ours))
        }
    }
}
