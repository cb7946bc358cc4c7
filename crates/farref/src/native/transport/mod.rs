//! Streams of bytes between workers: TCP, Unix sockets, pipes within the process, and what listens for them.

mod listener;
mod memory;
mod pipe;
mod stream;

pub(crate) use listener::{BindOptions, Bound, Listener};
pub use memory::MemoryNetwork;
#[cfg(test)]
pub(crate) use pipe::{PipeReader, PipeWriter};
pub(crate) use stream::{ReadHalf, Stream, WriteHalf, reachable};
