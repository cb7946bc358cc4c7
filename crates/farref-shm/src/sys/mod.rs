//! All unsafe code of the crate: mapping sealed memory, reading the memory of another process, advising about one's own.
//!
//! What these functions offer is safe: each one checks itself what its unsafe part relies on.

mod huge_pages;
mod mapping;
mod process;

pub use huge_pages::prefer_huge_pages;
pub(crate) use mapping::{Mapping, check};
pub(crate) use process::{peer_credentials, read_process};
