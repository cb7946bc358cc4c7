//! Far references.

extern crate self as farref;

pub mod agent;
mod blocking;
mod call;
mod codec;
mod current;
mod error;
mod failure;
mod fingerprint;
mod function;
mod handle;
mod leaks;
mod names;
mod native;
mod peer;
mod protocol;
mod registry;
mod rendezvous;
mod rref;
mod serve;
mod settings;
mod signal;
mod snapshot;
mod telemetry;
pub mod testing;
mod value;
mod worker;

pub use call::{Call, Pending};
pub use codec::{Blob, Codec, CodecError, Payload, ValueCodec};
pub use error::{Error, FunctionName, RemoteError, Result};
pub use farref_macros::remote;
pub use leaks::{LeakReport, LeakedReference};
pub use native::{BindError, MemoryNetwork};
pub use peer::Peer;
pub use rendezvous::{
    FileStore, MemoryStore, ParseRendezvousError, Rendezvous, RendezvousError, Store, StoreError,
    StoreFuture, StoreLimits, StoreServer, TcpStoreClient,
};
pub use rref::RRef;
pub use snapshot::{PeerSnapshot, Snapshot};
pub use value::{Ref, RefMut};
pub use worker::{Worker, WorkerBuilder};

/// What the expansion of `#[farref::remote]` refers to. Nobody else should.
#[doc(hidden)]
pub mod __private {
    pub use crate::agent::Failure;
    pub use crate::function::*;
    pub use crate::value::Access;
}
