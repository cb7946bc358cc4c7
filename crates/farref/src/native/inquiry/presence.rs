//! Asking whether an earlier life of a worker is still there, before its next one takes its place.
//!
//! # Invariants
//!
//! - **PS-1** A life counts as present only if it has proved that it knows the token: whoever has come to
//!   listen at its address since keeps nobody from returning (F3).
//! - **PS-2** A refusal is not proved either. It is the life's own only if its card says the same, that it
//!   has another token, another wire, or a certificate that does not go with this worker's; or if whoever refuses has shown the
//!   life's certificate.

use std::pin::Pin;
use std::time::Duration;

use ring::hmac;
use tokio::time::timeout;
use tracing::debug;

use crate::native::handshake::{
    Conversation, Greeting, HandshakeFailure, Rejection, VERSION, Verdict, fresh_nonce,
};
use crate::native::transport::{Reach, Stream, Tls, reachable};
use crate::rendezvous::{
    Address, Card, CertificateTag, Liveness, LivenessProbe, RendezvousError, TokenTag,
};

/// Finds earlier lives of a worker.
#[derive(Debug)]
pub(crate) struct Predecessors {
    name: String,
    host: String,
    /// Where this worker listens itself: whoever listened there before does not any more.
    own: Vec<Address>,
    key: hmac::Key,
    /// What cards say of the token.
    tag: Option<TokenTag>,
    reach: Reach,
    tls: Option<Tls>,
}

impl Predecessors {
    pub(crate) fn new(
        name: &str,
        host: &str,
        own: Vec<Address>,
        token: Option<&str>,
        reach: Reach,
        tls: Option<Tls>,
    ) -> Self {
        let tag = token.map(TokenTag::of);
        let token = token.unwrap_or_default().as_bytes();
        Self {
            name: name.to_owned(),
            host: host.to_owned(),
            own,
            key: hmac::Key::new(hmac::HMAC_SHA256, token),
            tag,
            reach,
            tls,
        }
    }

    async fn find(&self, card: &Card, limit: Duration) -> Result<Liveness, RendezvousError> {
        let addresses = reachable(card, &self.host, &self.reach);
        for address in addresses {
            if self.own.contains(address) {
                continue;
            }
            let connecting = Stream::connect(address, self.reach.network.as_ref());
            let Ok(Ok(stream)) = timeout(limit, connecting).await else {
                continue;
            };
            let Unanswered {
                failure,
                is_its_own,
            } = match timeout(limit, self.ask_at(card, stream)).await {
                Ok(Ok(())) => return Ok(Liveness::Alive),
                Ok(Err(unanswered)) => unanswered,
                // Nor would it say more elsewhere.
                Err(_) => return Ok(Liveness::Silent),
            };
            debug!(node = %card.node, %address, %failure, "an earlier life is not there");
            match failure.rejection() {
                Some(Rejection::Token) if card.token != self.tag => {
                    return Err(RendezvousError::WrongToken {
                        name: self.name.clone(),
                        by: card.name.clone(),
                    });
                }
                Some(Rejection::Version(theirs)) if card.wire == theirs => {
                    return Err(RendezvousError::WireVersion {
                        worker: card.name.clone(),
                        theirs,
                        ours: VERSION,
                    });
                }
                // Somebody else lives there now.
                _ if matches!(failure, HandshakeFailure::OtherName { .. }) => {}
                Some(Rejection::Certificate(reason)) if is_its_own || self.conflicts(card) => {
                    return Err(RendezvousError::Certificate {
                        name: self.name.clone(),
                        by: card.name.clone(),
                        reason,
                    });
                }
                // PS-2
                Some(_) | None => {}
            }
        }
        Ok(Liveness::Gone)
    }

    /// Whether a life's certificate, by its card, does not go with this worker's.
    fn conflicts(&self, card: &Card) -> bool {
        let own = self.tls.as_ref().map(Tls::tag);
        CertificateTag::conflict(card.certificate.as_ref(), own.as_ref()).is_some()
    }

    async fn ask_at(&self, card: &Card, mut stream: Stream) -> Result<(), Unanswered> {
        if let Some(tls) = &self.tls {
            let secured = stream.begin_tls(tls).await;
            stream = secured.map_err(HandshakeFailure::from)?;
        }
        if let Some(bearer) = &stream.bearer
            && !bearer.may_be(&card.name)
        {
            return Err(Unanswered::from(HandshakeFailure::OtherName {
                bearer: bearer.clone(),
                expected: card.name.clone(),
            }));
        }
        let is_its_own = stream.bearer.is_some();
        let mut conversation = Conversation::new(&mut stream, &self.key);
        let greeting = Greeting::Successor {
            of: card.node,
            nonce: fresh_nonce()?,
        };
        let failure = match conversation.ask(&greeting).await {
            Ok(Verdict::Present) => return Ok(()),
            Ok(_) => HandshakeFailure::Contradiction,
            Err(failure) => failure,
        };
        Err(Unanswered {
            failure,
            is_its_own,
        })
    }
}

/// Why a life does not say that it is there.
struct Unanswered {
    failure: HandshakeFailure,
    /// Whether that is said by one who has shown the life's certificate.
    is_its_own: bool,
}

impl From<HandshakeFailure> for Unanswered {
    fn from(failure: HandshakeFailure) -> Self {
        Self {
            failure,
            is_its_own: false,
        }
    }
}

impl LivenessProbe for Predecessors {
    fn probe<'a>(
        &'a self,
        card: &'a Card,
        limit: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>> {
        Box::pin(self.find(card, limit))
    }
}
