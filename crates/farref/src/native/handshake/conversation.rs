//! One end of a handshake: its messages as bytes, and the proofs in them (HS-1, HS-4).

use ring::hmac;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::failure::HandshakeFailure;
use super::messages::{Greeting, Nonce, Observation, Refusal, Reply, VERSION, Verdict};
use crate::native::transport::{ReadHalf, Stream, WriteHalf};
use crate::rendezvous::random;

const MAGIC: &[u8; 6] = b"farref";
const OPENING: usize = MAGIC.len() + 2 + 4;
const PROOF: usize = 32;
/// What a handshake of TLS begins with.
const TLS: u8 = 22;
/// The longest first message of either end.
pub(super) const MAX_GREETING: usize = 512;
/// The longest second message of either end.
pub(super) const MAX_CLAIM: usize = 16 << 10;

/// A number that nobody can foresee.
pub(crate) fn fresh_nonce() -> Result<Nonce, HandshakeFailure> {
    let mut nonce = Nonce::default();
    random::fill(&mut nonce).map_err(|_| HandshakeFailure::NoRandomness)?;
    Ok(nonce)
}

/// One end of a handshake: the stream, and all that was said on it so far.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    pub(crate) read: &'a mut ReadHalf,
    pub(crate) write: &'a WriteHalf,
    key: &'a hmac::Key,
    transcript: Vec<u8>,
    stranger: Option<u32>,
}

/// Who speaks, as it goes into a proof (HS-1).
const DIALER: &[u8] = b"farref dialer";
const ACCEPTOR: &[u8] = b"farref acceptor";

impl<'a> Conversation<'a> {
    pub(crate) fn new(stream: &'a mut Stream, key: &'a hmac::Key) -> Self {
        Self {
            read: &mut stream.read,
            write: &stream.write,
            key,
            transcript: Vec::new(),
            stranger: stream.stranger,
        }
    }

    /// An error if the other end is a process that this one does not talk to (HS-5).
    pub(crate) fn check_user(&self) -> Result<(), HandshakeFailure> {
        match self.stranger {
            Some(uid) => Err(HandshakeFailure::OtherUser { uid }),
            None => Ok(()),
        }
    }

    /// Sends the first message of either end.
    pub(crate) async fn send_opening(
        &mut self,
        message: &impl Serialize,
    ) -> Result<(), HandshakeFailure> {
        let body = encode(message)?;
        let mut bytes = Vec::with_capacity(OPENING + body.len());
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        self.transcript.extend_from_slice(&bytes);
        Ok(self.write.write_all(&bytes).await?)
    }

    /// Receives the first message of the other end.
    pub(crate) async fn receive_opening<T: DeserializeOwned>(
        &mut self,
    ) -> Result<T, HandshakeFailure> {
        let mut bytes = Vec::new();
        self.read.read_until(&mut bytes, OPENING).await?;
        let (magic, rest) = bytes.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(match magic {
                [TLS, ..] => HandshakeFailure::SpeaksTls,
                _ => HandshakeFailure::Garbage,
            });
        }
        let (version, length) = rest.split_at(2);
        let theirs = version.try_into().map_or(0, u16::from_le_bytes);
        if theirs != VERSION {
            return Err(HandshakeFailure::Version { theirs });
        }
        let length = checked_length(length, MAX_GREETING)?;
        self.read.read_until(&mut bytes, OPENING + length).await?;
        self.transcript.extend_from_slice(&bytes);
        decode(bytes.get(OPENING..).unwrap_or_default())
    }

    /// Waits until the other end has hung up, whatever it says: whoever closes a socket with something unread in it takes back
    /// what was said last.
    pub(crate) async fn hear_out(&mut self) {
        let mut nowhere = Vec::with_capacity(512);
        while matches!(self.read.read_buf(&mut nowhere).await, Ok(1..)) {
            nowhere.clear();
        }
    }

    /// Sends the dialer's second message, and proves it.
    pub(crate) async fn send_claim(
        &mut self,
        claim: &impl Serialize,
    ) -> Result<(), HandshakeFailure> {
        self.send_proved(DIALER, claim).await
    }

    /// Sends the acceptor's second message, and proves it.
    pub(crate) async fn send_verdict(&mut self, verdict: &Verdict) -> Result<(), HandshakeFailure> {
        self.send_proved(ACCEPTOR, verdict).await
    }

    /// Tells a dialer that has not proved itself so. Without a proof of our own (HS-2).
    pub(crate) async fn refuse_unproved(&self) -> Result<(), HandshakeFailure> {
        let mut bytes = encode(&Verdict::Refused(Refusal::Token))?;
        bytes.extend_from_slice(&[0; PROOF]);
        self.send_framed(&bytes).await
    }

    async fn send_proved(
        &mut self,
        role: &[u8],
        message: &impl Serialize,
    ) -> Result<(), HandshakeFailure> {
        let mut bytes = encode(message)?;
        self.append(&bytes);
        let proof = hmac::sign(self.key, &self.proved(role));
        bytes.extend_from_slice(proof.as_ref());
        self.transcript.extend_from_slice(proof.as_ref());
        self.send_framed(&bytes).await
    }

    async fn send_framed(&self, bytes: &[u8]) -> Result<(), HandshakeFailure> {
        let length = (bytes.len() as u32).to_le_bytes();
        Ok(self.write.write_all(&[&length, bytes].concat()).await?)
    }

    /// Receives the dialer's second message. The flag says whether it is proved.
    pub(crate) async fn receive_claim<T: DeserializeOwned>(
        &mut self,
    ) -> Result<(T, bool), HandshakeFailure> {
        self.receive_proved(DIALER).await
    }

    /// Receives the acceptor's second message. The flag says whether it is proved.
    pub(crate) async fn receive_verdict(&mut self) -> Result<(Verdict, bool), HandshakeFailure> {
        self.receive_proved(ACCEPTOR).await
    }

    /// Receives whether the acceptor takes the stream, and for what.
    pub(crate) async fn receive_acceptance(&mut self) -> Result<Verdict, HandshakeFailure> {
        match self.receive_verdict().await? {
            // An acceptor that does not believe us does not prove itself either.
            (Verdict::Refused(Refusal::Token), _) => Err(HandshakeFailure::Refused(Refusal::Token)),
            (_, false) => Err(HandshakeFailure::BadProof),
            (Verdict::Refused(refusal), true) => Err(HandshakeFailure::Refused(refusal)),
            (verdict, true) => Ok(verdict),
        }
    }

    /// All of the handshake, for a dialer that only has something to ask.
    pub(crate) async fn ask(&mut self, greeting: &Greeting) -> Result<Verdict, HandshakeFailure> {
        self.check_user()?;
        self.send_opening(greeting).await?;
        match self.receive_opening().await? {
            Reply::Challenge(_) => {}
            Reply::Refused(refusal) => return Err(HandshakeFailure::Refused(refusal)),
        }
        self.send_claim(&Observation).await?;
        self.receive_acceptance().await
    }

    async fn receive_proved<T: DeserializeOwned>(
        &mut self,
        role: &[u8],
    ) -> Result<(T, bool), HandshakeFailure> {
        let mut length = Vec::new();
        self.read.read_until(&mut length, 4).await?;
        let length = checked_length(&length, MAX_CLAIM)?;
        let mut bytes = Vec::new();
        self.read.read_until(&mut bytes, length).await?;
        let Some((body, proof)) = bytes.split_last_chunk::<PROOF>() else {
            return Err(HandshakeFailure::Garbage);
        };
        self.append(body);
        let proved = hmac::verify(self.key, &self.proved(role), proof).is_ok();
        self.transcript.extend_from_slice(proof);
        Ok((decode(body)?, proved))
    }

    /// Adds a message that is about to be proved, with its length, so that no other cut of the same
    /// bytes is proved along.
    fn append(&mut self, body: &[u8]) {
        self.transcript
            .extend_from_slice(&(body.len() as u32).to_le_bytes());
        self.transcript.extend_from_slice(body);
    }

    /// What a proof by this role covers now.
    fn proved(&self, role: &[u8]) -> Vec<u8> {
        [role, &self.transcript].concat()
    }
}

fn checked_length(bytes: &[u8], most: usize) -> Result<usize, HandshakeFailure> {
    let length = bytes.try_into().map_or(u32::MAX, u32::from_le_bytes) as usize;
    if length > most {
        return Err(HandshakeFailure::TooLarge(length));
    }
    Ok(length)
}

fn encode(message: &impl Serialize) -> Result<Vec<u8>, HandshakeFailure> {
    postcard::to_allocvec(message).map_err(HandshakeFailure::Malformed)
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, HandshakeFailure> {
    postcard::from_bytes(bytes).map_err(HandshakeFailure::Malformed)
}
