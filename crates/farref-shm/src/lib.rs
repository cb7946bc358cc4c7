//! Large values between processes of one host, without sending them through a socket.
//!
//! There are two ways, for two kinds of values:
//!
//! - A value that is **kept** and asked for again and again is put into a [`Region`] once: memory of a
//!   file without a name, sealed so that nobody can ever change or shrink it. What travels over the Unix
//!   socket is its descriptor ([`send`], [`receive`]); whoever receives it [maps](MappedRegions) it once
//!   and reads it where it is. Nothing is copied.
//! - A value that is **sent** once is copied once: the receiver reads it straight [out of the sender's
//!   memory](PeerMemory), where it stays until the message is acknowledged, into memory that was used
//!   before.
//!
//! Neither needs a message that releases anything. The system counts who has a region, and takes
//! back what a process had that dies; and memory that is read belongs to the sender all the time.
//!
//! Why not one way for both: a seal cannot be taken off, so sealed memory cannot be written again, and fresh
//! memory for every value costs more than the copy that it saves. Memory that is not sealed can be used again, but
//! somebody can still write to it, so that it has to be copied before anything is believed of it: that makes two
//! copies, and a socket makes two as well.
//!
//! ```
//! # #[cfg(target_os = "linux")]
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use std::io::{IoSlice, Write};
//! use std::os::unix::net::UnixStream;
//!
//! use farref_shm::{DescriptorQueue, MappedRegions, Quota, RegionWriter, receive, send};
//!
//! let (here, there) = UnixStream::pair()?;
//!
//! // One process keeps a value, and sends its descriptor beside a few bytes.
//! let mut writer = RegionWriter::create(11, &Quota::new(64, 1 << 30))?;
//! writer.write_all(b"hello world")?;
//! let kept = writer.seal()?;
//! send(&here, &[IoSlice::new(b"11")], &[kept.descriptor()])?;
//!
//! // Another one reads it where it is.
//! let mut queue = DescriptorQueue::new(16);
//! let mut bytes = [0; 2];
//! receive(&there, &mut bytes, &mut queue)?;
//! let mapped = MappedRegions::new(Quota::new(64, 1 << 30));
//! let region = mapped.map(queue.next().expect("it was sent"), 11)?;
//! let bytes = bytes::Bytes::from_owner(region);
//! assert_eq!(bytes, "hello world");
//! # Ok(())
//! # }
//! # #[cfg(not(target_os = "linux"))]
//! # fn main() {}
//! ```
//!
//! | part | job |
//! | --- | --- |
//! | [`Region`], [`RegionWriter`] | sealed memory, and how it is filled |
//! | [`SealedFile`] | a descriptor that was received and found to be a region; can be copied without being mapped |
//! | [`MappedRegions`] | maps each region once, however often it is received |
//! | [`Quota`] | how many regions, and of how many bytes, there may be |
//! | [`send`], [`receive`] | bytes with descriptors over a Unix socket |
//! | [`PartialVec`] | a vector of numbers that is filled with bytes as they come |
//! | [`read`] | bytes into memory that nothing was written to yet |
//! | [`prefer_huge_pages`] | makes fresh memory cheaper |
//! | [`PeerMemory`], [`Beacon`] | reads the memory of the process at the other end of a Unix socket |
//! | [`ProcessMemory`] | the same of a process that is known by its number, for other wires |
//!
//! # Invariants
//!
//! - **SH-1** Memory that is shown as `&[u8]` can be changed by nobody and does not go away: its file is
//!   sealed against writing and changing its length, has no holes, and the system keeps it for the mapping.
//! - **SH-2** No descriptor that a peer sends is asked anything that a peer can make slow before the system has said
//!   that it is memory, and none is left open.
//! - **SH-3** Memory is read only of the process that the socket was connected to, only if it is the same user's, and
//!   what was read counts only if that process still had the connection afterwards. A [`ProcessMemory`] is one process's
//!   for good; which one is its user's to know.
//! - **SH-4** Everything that is kept open or mapped is counted against a quota, and given back when it is dropped.
//!
//! All this is for Linux. Elsewhere [`SUPPORTED`] is false, and there is nothing but [`PartialVec`] and [`THRESHOLD`].

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod descriptors;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod mapped;
#[cfg(target_os = "linux")]
mod peer_memory;
#[cfg(target_os = "linux")]
mod process_memory;
#[cfg(target_os = "linux")]
mod quota;
#[cfg(target_os = "linux")]
mod region;
#[cfg(target_os = "linux")]
mod sealed;
// All unsafe code of the crate.
#[allow(unsafe_code)]
mod sys;

#[cfg(target_os = "linux")]
pub use descriptors::{DescriptorQueue, MAX_DESCRIPTORS, receive, send};
#[cfg(target_os = "linux")]
pub use error::{PeerError, QuotaExceeded, ReceiveError, RefusedDescriptor, RegionError};
#[cfg(target_os = "linux")]
pub use mapped::{MappedRegions, SharedRegion};
#[cfg(target_os = "linux")]
pub use peer_memory::{BEACON, Beacon, PeerMemory, permit_same_user};
#[cfg(target_os = "linux")]
pub use process_memory::{ProcessMemory, is_connected, is_readable};
#[cfg(target_os = "linux")]
pub use quota::Quota;
#[cfg(target_os = "linux")]
pub use region::{Region, RegionWriter};
#[cfg(target_os = "linux")]
pub use sealed::SealedFile;
pub use sys::{Number, PartialVec};
#[cfg(target_os = "linux")]
pub use sys::{prefer_huge_pages, read};

/// There are none to ask for.
#[cfg(not(target_os = "linux"))]
pub fn prefer_huge_pages<T>(_: &mut [std::mem::MaybeUninit<T>]) {}

/// Whether this system can do what this crate is for.
pub const SUPPORTED: bool = cfg!(target_os = "linux");

/// From this size on a value is worth more than the socket.
///
/// Measured: from 128 KiB on reading the peer's memory takes 0.55 to 0.85 of the time that a Unix socket takes, and half
/// of its work. Below, what is saved is less than a wake-up.
pub const THRESHOLD: usize = 128 << 10;
