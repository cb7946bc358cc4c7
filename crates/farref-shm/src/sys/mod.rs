//! All unsafe code of the crate: mapping sealed memory, reading the memory of another process, advising about one's own
//! and filling it.
//!
//! What these functions offer is safe: each one checks itself what its unsafe part relies on.

#[cfg(target_os = "linux")]
mod by_two;
#[cfg(target_os = "linux")]
mod huge_pages;
#[cfg(target_os = "linux")]
mod mapping;
mod partial_vec;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod read;

#[cfg(target_os = "linux")]
pub(crate) use by_two::fill_by_two;
#[cfg(target_os = "linux")]
pub use huge_pages::prefer_huge_pages;
#[cfg(target_os = "linux")]
pub(crate) use mapping::{Mapping, check, check_holes};
pub use partial_vec::{Number, PartialVec};
#[cfg(target_os = "linux")]
pub(crate) use process::{peer_credentials, read_process};
#[cfg(target_os = "linux")]
pub use read::read;
