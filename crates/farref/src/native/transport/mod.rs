//! Streams of bytes between workers: TCP, with TLS or without, Unix sockets, pipes within the process, and what listens for them.

#[cfg(target_os = "linux")]
mod descriptor_reader;
mod descriptors;
mod listener;
mod memory;
mod peer_memory;
mod pipe;
mod stream;
mod tls;
#[cfg(unix)]
mod unix_socket;

pub(crate) use descriptors::{
    Descriptors, MOST_PASSED, PassedRegion, RegionFault, SealedRegion, descriptor_fault,
};
pub(crate) use listener::{BindOptions, Bound, Listener};
pub use memory::MemoryNetwork;
pub(crate) use peer_memory::{MemoryClaim, MemoryError, OwnMemory, PeerMemory};
#[cfg(test)]
pub(crate) use pipe::{PipeReader, PipeWriter};
pub(crate) use stream::{Reach, ReadHalf, Stream, WriteHalf, reachable};
pub use tls::Tls;
pub(crate) use tls::{Bearer, TlsFailure};
