//! All unsafe code of the crate: the driver's functions, and memory that a device reads and writes by itself.

mod copies;
mod host;
mod real;
mod stream;
mod table;

pub(crate) use host::{HostAddress, HostBlock, HostPart, PlainMemory};
pub(crate) use real::Real;
pub use stream::StreamHandle;
