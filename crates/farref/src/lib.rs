//! Far references: programs that span processes and machines.
//!
//! Call a function on another worker; its value comes back, or it stays there and you hold an
//! [`RRef<T>`](RRef), a far reference that can be used, handed to a third worker and dropped. The value
//! lives exactly as long as somebody holds it, through crashes and broken connections.
//!
//! ```
//! use farref::{RRef, Worker};
//! # use std::time::Duration;
//!
//! #[farref::remote]
//! async fn add(a: i64, b: i64) -> i64 {
//!     a + b // still callable as a plain function
//! }
//!
//! pub struct Table {
//!     rows: Vec<f32>,
//! }
//!
//! #[farref::remote]
//! impl Table {
//!     pub fn new(n: usize) -> Self {
//!         Table { rows: vec![0.0; n] }
//!     }
//!
//!     pub fn get(&self, i: usize) -> Option<f32> {
//!         self.rows.get(i).copied()
//!     }
//!
//!     pub async fn push(&mut self, i: usize, g: f32) {
//!         self.rows[i] += g;
//!     }
//! }
//!
//! async fn train(me: &Worker) -> farref::Result<()> {
//!     let ps = me.peer("ps")?; // a handle to another worker, or to oneself
//!
//!     let three = add::on(&ps, 1, 2).await?; // the value comes back
//!     let pending = add::on(&ps, 1, 2).start(); // runs now, is awaited later
//!     assert_eq!(pending.await?, three);
//!
//!     let table: RRef<Table> = Table::new_on(&ps, 1024).remote(); // the value stays there
//!     table.push(3, 0.5).await?; // methods on the far value, typed
//!     let row = table.get(3).timeout(Duration::from_secs(5)).await?;
//!     let there = table.get(3).remote(); // the result stays with the owner: RRef<Option<f32>>
//!     assert_eq!(there.to_here().await?, row); // copied over
//!     drop(table); // the last holder is gone: freed on `ps`
//!     Ok(())
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> farref::Result<()> {
//! # let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
//! # train(cluster.worker(0)).await?;
//! # cluster.shutdown().await
//! # }
//! ```
//!
//! One idea: **a call is built, then awaited, started, or left there.** `X::on(..)` builds a [`Call`],
//! which sends nothing; awaiting it brings the value, [`start`](Call::start) begins it now,
//! [`remote`](Call::remote) leaves the value with the callee and returns a reference at once.
//!
//! # Where to go from here
//!
//! | to | see |
//! | --- | --- |
//! | make functions and methods callable | [`macro@remote`] |
//! | join a group, from a launcher's environment or by hand | [`Worker`], [`WorkerBuilder`] |
//! | know what can go wrong, and whose fault it is | [`enum@Error`] |
//! | get a function's own error | [`Call::result`], [`Error::downcast`], [`Error::downcast_ref`] |
//! | know what arguments and results can be | whatever serde can write and read, see [`macro@remote`] |
//! | send large buffers without copies | [`Blob`], and [`Buffer`] for numbers |
//! | send many values, one after the other, no faster than they are read | [`Streaming`], or return `impl Stream` |
//! | have a type travel in another form, depending on where it goes | [`Transfer`] |
//! | publish a reference under a name, and find it | [`Worker::publish`], [`Peer::lookup`], [`Worker::lookup`] |
//! | learn who joins, leaves and dies | [`Worker::watch_members`], [`Peer::gone`], [`RRef::owner_gone`] |
//! | say who may call what | [`WorkerBuilder::authorize`] |
//! | test a distributed program in one process, with faults | [`testing`] |
//! | look into a running worker | [`Worker::snapshot`], [`Peer::snapshot`], from outside: [`observe`] |
//! | bring another wire | [`agent`] |
//!
//! # What is measured and traced
//!
//! Every remote function runs in a `tracing` span `farref.serve` (level DEBUG) that carries the caller's
//! trace. Counters, gauges and histograms go to the `metrics` facade, labelled `worker` with its name:
//! calls (`farref_calls_total`, `farref_calls_failed_total`, `farref_calls_cancelled_total`,
//! `farref_call_seconds`; one that ran out of time has failed, one that was dropped is cancelled, none is
//! both), calls of others (`farref_served_total`, `farref_served_failed_total`, `farref_served_refused_total`,
//! `farref_serve_seconds`), references (`farref_references`, `farref_references_created_total`,
//! `farref_references_shared_total`, `farref_values_freed_total`), contexts (`farref_contexts`), queues (`farref_open_calls`,
//! `farref_queued_bytes`, `farref_blocking_queue`), and the wire (`farref_bytes_sent_total`,
//! `farref_bytes_received_total`, `farref_connections_total`, `farref_reconnects_total`,
//! `farref_refused_connections_total`, `farref_misbehaved_total`), when its certificate ends
//! (`farref_certificate_end_timestamp_seconds`), and how often the program kept its
//! runtime from running for seconds (`farref_starvations_total`). Install the recorder before the first
//! worker is made: a worker registers its instruments once, when it joins, and with the recorder that there
//! is then.

#![cfg_attr(
    feature = "simulation",
    allow(
        clippy::useless_conversion,
        reason = "the clock is the runtime's there, and the system's elsewhere"
    )
)]

// What `#[farref::remote]` generates says `::farref`, also in this crate.
extern crate self as farref;

pub mod agent;
mod api;
mod codec;
mod error;
mod fingerprint;
mod native;
pub mod observe;
mod rendezvous;
mod report;
mod runtime;
mod support;
mod tables;
pub mod testing;
mod values;
mod worker;

pub use agent::Departure;
pub use api::call::Call;
pub use api::functions;
pub use api::naming::{Lookup, NameVersion};
pub use api::outcome::{Outcome, ReturnedError};
pub use api::peer::Peer;
pub use api::pending::{Pending, Returned};
pub use api::rref::RRef;
pub use api::streaming::Streaming;
pub use api::watching::{Member, MemberEvent, Members};
pub use codec::{
    Blob, Buffer, Codec, CodecError, CodecErrorKind, Part, Payload, Source, ValueCodec, Width,
};
pub use error::{
    BindError, ConfigError, Error, FunctionName, MemberState, Misuse, ReferenceError, RemoteError,
    Result, TlsError,
};
/// What is marked can be called on any worker, and still be called as what it is:
///
/// ```
/// use farref::{Error, RRef};
///
/// #[farref::remote(timeout = "5s")]
/// async fn divide(a: i64, b: i64) -> Result<i64, String> {
///     a.checked_div(b).ok_or_else(|| "division by zero".to_owned())
/// }
///
/// pub struct Counter(u64);
///
/// #[farref::remote]
/// impl Counter {
///     pub fn new(start: u64) -> Self {
///         Counter(start)
///     }
///
///     pub fn add(&mut self, n: u64) -> u64 {
///         self.0 += n;
///         self.0
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// assert_eq!(divide(6, 3).await, Ok(2)); // here
/// assert_eq!(divide::on(&peer, 6, 3).await?, 2); // there
/// assert!(matches!(divide::on(&peer, 1, 0).await, Err(Error::Remote(_))));
///
/// let counter: RRef<Counter> = Counter::new_on(&peer, 40).remote();
/// assert_eq!(counter.add(2).await?, 42);
/// # drop(counter);
/// # cluster.shutdown().await
/// # }
/// ```
///
/// Here is all of it:
#[doc(inline)]
pub use farref_macros::remote;
pub use fingerprint::signature::Signature;
/// What a [`Streaming`] is made of, and is itself: the trait of all asynchronous streams, from `futures-core`.
pub use futures_core::Stream;
pub use native::{MemoryNetwork, Tls};
#[cfg(feature = "etcd")]
pub use rendezvous::EtcdStore;
pub use rendezvous::{
    BrokenGuarantee, EtcdPlace, FileStore, MemoryStore, ParseRendezvousError, Rendezvous,
    RendezvousError, Store, StoreDialect, StoreError, StoreFuture, StoreLimits, StorePresence,
    StoreServer, TcpStoreClient, check_store,
};
pub use report::calls::{CallTrace, ContextSnapshot, FinishedCall, FunctionTotals};
pub use report::leaks::{LeakReport, LeakedReference, ReceivedReference};
pub use report::snapshot::{
    NameSnapshot, PeerSnapshot, RunningCall, Snapshot, Totals, WaitingCall, WaitsFor,
};
pub use runtime::CallRequest;
pub use tables::watchers::WorkerEnd;
pub use values::{Ref, RefMut};
pub use worker::context;
pub use worker::{Transfer, WeakWorker, Worker, WorkerBuilder};

/// Groups that follow from a seed, for `farref-runtime-sim`. No part of the interface.
#[cfg(feature = "simulation")]
#[doc(hidden)]
pub mod simulation {
    pub use crate::support::simulation::{draw, spawn, with_seed};
}

/// Faults that can be switched on, for the provers. No part of the interface.
#[cfg(feature = "mutations")]
#[doc(hidden)]
pub mod mutations {
    pub use crate::support::mutation::{Mutated, Mutation, mutate};
}

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::testing::fuzzing::{frames, handshake, observing, runtime, session, values};
}

/// What the expansion of `#[farref::remote]` refers to. Nobody else should.
#[doc(hidden)]
pub mod __private {
    pub use crate::agent::Failure;
    pub use crate::api::generated::{call, call_method};
    pub use crate::codec::vectors::{ArgumentList, EachVector, Look, Numbers, Outgoing};
    pub use crate::fingerprint::ErrorType;
    pub use crate::runtime::function::*;
    pub use crate::runtime::registry::FunctionRegistration;
    pub use crate::values::{Access, Encode, Exclusive, NoReceiver, Shared, sealed};
    pub use inventory;
}
