//! What two workers say first on each stream, before either believes the other: who they are, whom
//! they mean, and a proof that they know the group's token.
//!
//! | from | bytes |
//! | --- | --- |
//! | dialer | `farref`, version (2), length (4), [`Greeting`] |
//! | acceptor | `farref`, version (2), length (4), [`Reply`] |
//! | dialer | length (4), [`Claim`], proof (32) |
//! | acceptor | length (4), [`Verdict`], proof (32) |
//!
//! Who only wants to look on greets as an observer, claims an [`Observation`] and is heard in the same
//! way; [`observe`](super::inquiry) says what follows. Who wants to know whether an earlier life of its
//! own is still there greets as a successor, claims the same, and is told in the verdict
//! ([`presence`](super::inquiry)).
//!
//! Numbers are little endian, the rest is postcard. A proof is an HMAC-SHA256, under the token, of a
//! word for the speaker's role and of all that was said before it, the speaker's own message
//! included. Both ends contribute a fresh nonce.
//!
//! # Invariants
//!
//! - **HS-1** The token never travels, and no message of one handshake proves anything in another or
//!   in the other direction.
//! - **HS-2** The acceptor proves itself only to a dialer that has, so a stranger cannot collect
//!   material for guessing the token.
//! - **HS-3** Whether this worker counts as gone is believed only from a peer that has proved itself.
//! - **HS-4** What a dialer that has proved nothing can make an acceptor store is bounded in size
//!   ([`MAX_GREETING`](conversation::MAX_GREETING), [`MAX_CLAIM`](conversation::MAX_CLAIM)), time and
//!   number.
//! - **HS-5** Over a Unix socket nothing is said to, nor believed from, a process of another user than this one's and the
//!   superuser; whoever asks is told so.
//! - **HS-6** A worker that has a certificate talks over TCP only to those that have one of the same authority (TL-1), with the name
//!   of the worker that is meant or claimed. A life is the worker's whose name it was known under first, or is listed under.

mod conversation;
mod failure;
mod messages;

pub(crate) use conversation::{Conversation, fresh_nonce};
pub(crate) use failure::{HandshakeFailure, Rejection};
pub(crate) use messages::{
    Claim, Greeting, Observation, Purpose, Refusal, Reply, SessionHello, VERSION, Verdict,
    connection_id,
};
