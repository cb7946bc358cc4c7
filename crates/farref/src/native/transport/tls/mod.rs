//! TLS on TCP streams: both ends have a certificate of the group's authority, in which the worker's name stands.
//!
//! rustls does all of it: TLS 1.3, whose handshake comes before farref's own, and the records after it.
//!
//! | module | job |
//! | --- | --- |
//! | [`bearer`] | whom a certificate names |
//! | [`authorities`] | which authorities stand behind one |
//! | [`ending`] | until when one counts |
//! | [`settings`] | the three files, and reading them again when they have changed |
//! | [`verifiers`] | who looks at the other end's |
//! | [`handshake`], [`failure`] | either end's handshake, and why it came to nothing |
//! | [`halves`] | the stream after it |
//!
//! # Invariants
//!
//! - **TL-1** Nothing that is farref's is said to, nor believed from, an end whose certificate the authority has not signed,
//!   that is not valid now, or that names neither a worker nor an observer.
//! - **TL-2** What a write has taken is encrypted at once and never again. At most [`AT_ONCE`](halves::AT_ONCE) bytes of it wait
//!   for the socket; nothing more is taken before it has those. A write of nothing says whether all is gone.
//! - **TL-3** Of what has come and was not handed on there is a bounded amount. Where it is left behind by one who reads in place
//!   of the stream's task, that task is woken: the socket has nothing more to wake it for.
//! - **TL-4** Files that have changed count from the next handshake on; as long as they make no sense, are not
//!   for this worker or cannot be looked at, those before them do.

mod authorities;
mod bearer;
mod ending;
mod failure;
mod halves;
mod handshake;
mod settings;
#[cfg(test)]
mod tests;
mod verifiers;

pub(crate) use bearer::Bearer;
pub(crate) use failure::TlsFailure;
pub(super) use halves::{TlsReader, TlsWriter, move_halves};
pub use settings::Tls;
