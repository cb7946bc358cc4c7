//! How values become bytes and come back, with references and large buffers beside them.
//!
//! A [`Codec`] is a property of the wire. Another agent may bring its own through [`ValueCodec`]. Farref's
//! own has three forms, and the first two bytes of a body say which one it has:
//!
//! - the compact one, which is postcard: no names, no types, only values. The two bytes are a hash by
//!   which the reader notices a type that does not write all the fields it reads ([`count`]). A value that
//!   takes no bytes has no bytes before it either.
//! - the [`described`] one, for whatever else serde can write;
//! - the [`foreign`] one, for workers whose functions are written in another language. Who asks in it is answered in it.
//!
//! Which of the first two it is decides the sender: described is what reads whatever comes, or may do so (known from the
//! tracing of its type, [`fingerprint`](crate::fingerprint)), and what turns out not to be compact while it is
//! written.
//! Large vectors of numbers are taken out of the value before either form is written, where they can be [found](vectors).
//! References ([`RRef`](crate::RRef)) and large buffers
//! ([`Blob`](crate::Blob), [`Buffer`](crate::Buffer)) do not go through the codec: while a value is being
//! written or read, a [`scope`] collects or provides them, and the codec sees their index only.

mod blob;
mod bounded;
mod buffer;
mod compact;
mod count;
mod depth;
mod described;
mod elements;
mod error;
mod fault;
mod foreign;
mod forms;
pub(crate) mod items;
#[cfg(test)]
mod limits_tests;
mod part;
mod payload;
mod reader;
pub(crate) mod scope;
#[cfg(test)]
mod serde_tests;
mod shared;
mod value_codec;
pub(crate) mod vectors;
#[cfg(test)]
mod vectors_tests;
mod writer;

pub use blob::Blob;
pub use buffer::Buffer;
pub(crate) use elements::Elements;
pub use elements::Width;
pub use error::{CodecError, CodecErrorKind};
pub(crate) use foreign::is_foreign;
pub use foreign::{ForeignCodec, OwnValues};
pub use forms::Codec;
pub(crate) use part::{BadSource, BufferRecycler, Owned, PartBytes};
pub use part::{Part, Source};
pub use payload::Payload;
#[cfg(target_os = "linux")]
pub(crate) use shared::ReceivedRegion;
pub(crate) use shared::SharedBytes;
pub use value_codec::ValueCodec;
