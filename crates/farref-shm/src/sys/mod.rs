//! All unsafe code of the crate: mapping sealed memory, and reading the memory of another process.
//!
//! What these functions offer is safe: each one checks itself what its unsafe part relies on.

mod mapping;
mod process;

pub(crate) use mapping::{Mapping, check};
pub(crate) use process::{peer_credentials, read_process};
