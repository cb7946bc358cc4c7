//! All unsafe code of the crate: the driver's functions, and memory that a device reads and writes by itself, and locks of the
//! kernel's.

mod address;
mod copies;
mod host;
pub(crate) mod locks;
mod peer;
mod real;
mod shared_page;
mod stream;
mod table;

pub(crate) use address::{HostAddress, HostPart, SharedNumber};
pub(crate) use host::HostBlock;
pub(crate) use peer::peer_of;
pub(crate) use real::Real;
pub(crate) use shared_page::{MappedPage, SHARED_PAGE, SharedPage};
pub use stream::StreamHandle;
