//! What a worker publishes about itself: who it is and how to reach it.

use std::fmt;
use std::net::SocketAddr;

use farref_proto::NodeId;
use ring::hmac;
use serde::{Deserialize, Serialize};

use super::certificate_tag::CertificateTag;
use crate::identity::check_name;

/// The first byte of an encoded card, so that a later format can be told from this one.
const VERSION: u8 = 3;
/// The longest encoded card.
const MAX_CARD: usize = 4 << 10;
const MAX_ADDRESSES: usize = 8;
const MAX_TEXT: usize = 255;

/// One life of a worker, and how to reach it: what MPI's launchers call a business card.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Card {
    /// Which life of which worker.
    pub node: NodeId,
    /// The worker's name.
    pub name: String,
    /// Where it listens, the best first.
    pub addresses: Vec<Address>,
    /// Which host it runs on; equal for workers that share one.
    pub host: String,
    /// The version of the wire that it speaks.
    pub wire: u16,
    /// Of its token, if it has one, as much as it takes to notice that two are different.
    pub token: Option<TokenTag>,
    /// Of its certificate, if it has one, the same.
    pub certificate: Option<CertificateTag>,
}

/// A few bits of a digest of a token. Two workers whose tags differ have different tokens.
///
/// Cards are read by whoever reaches the store. So the tag is short and always the same for a token: it
/// spares a guesser 16 bits of guessing, once, however many tags it collects. In return one mistake in
/// 65,536 is noticed only when the workers connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TokenTag(u16);

impl TokenTag {
    /// The tag of this token.
    pub fn of(token: &str) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
        let digest = hmac::sign(&key, b"farref token tag");
        let tag = digest
            .as_ref()
            .first_chunk()
            .map_or(0, |bytes| u16::from_le_bytes(*bytes));
        Self(tag)
    }
}

/// A place where a worker listens.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// A Unix socket's path; with `@` in front, a name in Linux' abstract namespace.
    Unix(String),
    /// A name in the same process.
    Memory(String),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "tcp://{address}"),
            Self::Unix(name) => write!(f, "unix:{name}"),
            Self::Memory(name) => write!(f, "memory:{name}"),
        }
    }
}

/// Why bytes are not a card, or a card cannot become bytes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum CardError {
    #[error("{0} bytes are too many for a card")]
    TooLong(usize),
    #[error("it is of version {0}, this farref knows version {VERSION}")]
    Version(u8),
    #[error("it is empty")]
    Empty,
    #[error("{0}")]
    Encoding(postcard::Error),
    #[error("{0} bytes follow it")]
    Trailing(usize),
    #[error("{0} addresses are more than {MAX_ADDRESSES}")]
    Addresses(usize),
    #[error("an address or host of {0} bytes is too long")]
    Text(usize),
    #[error("its certificate names too many authorities")]
    Authorities,
    #[error("{0:?} is not a worker's name")]
    Name(String),
}

impl Card {
    /// The card as it stands in the store.
    pub(super) fn encode(&self) -> Result<Vec<u8>, CardError> {
        self.check()?;
        let bytes = postcard::to_extend(self, vec![VERSION]).map_err(CardError::Encoding)?;
        match bytes.len() {
            size if size > MAX_CARD => Err(CardError::TooLong(size)),
            _ => Ok(bytes),
        }
    }

    /// Reads what [`Card::encode`] wrote, perhaps in another process.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, CardError> {
        if bytes.len() > MAX_CARD {
            return Err(CardError::TooLong(bytes.len()));
        }
        let encoded = match bytes.split_first() {
            Some((&VERSION, encoded)) => encoded,
            Some((&other, _)) => return Err(CardError::Version(other)),
            None => return Err(CardError::Empty),
        };
        let (card, rest) =
            postcard::take_from_bytes::<Self>(encoded).map_err(CardError::Encoding)?;
        if !rest.is_empty() {
            return Err(CardError::Trailing(rest.len()));
        }
        card.check()?;
        Ok(card)
    }

    /// What holds for every card; also to be checked on cards that came inside something else.
    pub(super) fn check(&self) -> Result<(), CardError> {
        if check_name(&self.name).is_err() {
            return Err(CardError::Name(self.name.clone()));
        }
        if self.addresses.len() > MAX_ADDRESSES {
            return Err(CardError::Addresses(self.addresses.len()));
        }
        if !self.certificate.iter().all(CertificateTag::fits) {
            return Err(CardError::Authorities);
        }
        let texts = self.addresses.iter().filter_map(|address| match address {
            Address::Tcp(_) => None,
            Address::Unix(text) | Address::Memory(text) => Some(text),
        });
        match texts.chain([&self.host]).find(|text| text.len() > MAX_TEXT) {
            Some(text) => Err(CardError::Text(text.len())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn card() -> Card {
        Card {
            node: NodeId::new(3, 1_700_000_000),
            name: "ps-1".into(),
            addresses: vec![
                Address::Memory("inside".into()),
                Address::Unix("@farref/3".into()),
                Address::Tcp("[::1]:4000".parse().unwrap()),
            ],
            host: "b4f1".into(),
            wire: 4,
            token: Some(TokenTag::of("secret")),
            certificate: Some(CertificateTag::new(["ours"], ["ours", "theirs"])),
        }
    }

    #[test]
    fn a_card_survives_the_store() {
        assert_eq!(Card::decode(&card().encode().unwrap()), Ok(card()));
    }

    #[test]
    fn a_token_has_one_tag_and_another_token_another() {
        assert_eq!(TokenTag::of("secret"), TokenTag::of("secret"));
        assert_ne!(TokenTag::of("secret"), TokenTag::of("Secret"));
        assert_ne!(TokenTag::of(""), TokenTag::of("secret"));
    }

    #[test]
    fn no_part_of_a_card_passes_for_one() {
        let bytes = card().encode().unwrap();
        for size in 0..bytes.len() {
            assert!(Card::decode(&bytes[..size]).is_err());
        }
        let longer = [&bytes[..], b"x"].concat();
        assert_eq!(Card::decode(&longer), Err(CardError::Trailing(1)));
    }

    #[test]
    fn a_card_that_is_too_large_is_neither_made_nor_read() {
        let mut many = card();
        many.addresses = vec![Address::Memory(String::new()); 9];
        assert_eq!(many.encode(), Err(CardError::Addresses(9)));
        let mut unchecked = vec![VERSION];
        unchecked.extend(postcard::to_allocvec(&many).unwrap());
        assert_eq!(Card::decode(&unchecked), Err(CardError::Addresses(9)));
        let mut long = card();
        long.host = "h".repeat(256);
        assert_eq!(long.encode(), Err(CardError::Text(256)));
        assert_eq!(
            Card::decode(&[VERSION; 5000]),
            Err(CardError::TooLong(5000))
        );
        assert_eq!(Card::decode(&[9, 1]), Err(CardError::Version(9)));
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_more_than_a_card(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            if let Ok(card) = Card::decode(&[&[VERSION], &bytes[..]].concat()) {
                prop_assert!(card.check().is_ok());
            }
        }
    }
}
