//! Device memory between processes of one host: what is needed of the CUDA driver.
//!
//! A process makes a [`SharedPool`] for a device before it computes on it. From then on whatever is allocated there, by candle or
//! torch, can be exported: [`SharedPool::export`] gives a message of some eighty bytes. Another process of the same host
//! and user opens the pool once, by its [`Ticket`] ([`ImportedPool::open`]), and imports what messages say
//! ([`ImportedPool::import`]): it reads and writes the same memory. Nothing is copied, so it does not matter how large it is.
//!
//! For values that go further, [`PinnedPool`] copies between device and host at the rate of the bus.
//!
//! The driver, `libcuda.so.1`, is looked for when [`Cuda::open`] is called. So programs with this crate are built, and run, where there
//! is neither a GPU nor a toolkit.
//!
//! | part | job |
//! | --- | --- |
//! | [`Cuda`] | the driver of this process; its devices |
//! | [`SharedPool`], [`Exported`] | memory of this process that others may use |
//! | [`Ticket`], [`ExportMessage`] | what is said about it: once, and for each allocation |
//! | [`ImportedPool`], [`ImportedMemory`], [`Held`] | memory of another process, and what says that this one may still use it |
//! | [`AfterWork`] | calls back when a stream has done what it was given, so that memory can be released |
//! | [`PinnedPool`], [`PinnedBuffer`], [`Download`] | page-locked memory, and copies with it |
//! | [`testing`] | a machine with GPUs that there is not, for tests |
//!
//! # Invariants
//!
//! - **CU-1** Memory that was exported is kept until the exporter drops the [`Exported`], which it does when the last importer has
//!   released it, and after that as long as a process that lives may use it ([`Held`]). What an importer gives back goes after the work that
//!   its stream was given before.
//! - **CU-2** What an importer's stream is given after an import is done after all that the exporter's stream was given before the
//!   export, whatever is exported in the meantime, and on whichever streams.
//!   Of an exporter that has died nothing counts as done that was not seen to be while it lived; a stream that waits for it goes on.
//! - **CU-3** A job of [`AfterWork`] is run once, after the work that its stream was given before, and nobody waits for it.
//! - **CU-4** No peer's word is believed: a message cannot give more bytes than its allocation has, nor memory of another pool; a ticket
//!   of another host or GPU is refused before anybody is asked. What others write can neither harm the exporter nor keep its streams waiting. But those
//!   who import of one pool trust each other: each of them can write the number that streams of the others wait for.
//! - **CU-5** A pool's descriptor is given only to processes of the same user that know the ticket's secret, and taken only from such a
//!   process. Whoever says anything else, or nothing, is hung up on without a word, and keeps nobody else waiting.
//! - **CU-6** No more bytes are out than the pool's limit, and no more are locked than the [`PinnedPool`]'s.
//! - **CU-7** Everything that the driver gave is given back, also if something fails halfway: pools, memory, events, streams, locked
//!   memory, the socket and its thread.
//! - **CU-8** Memory of the host that a copy reads or writes is neither shown, nor written to, nor freed before the copy is done.
//! - **CU-9** Imported memory has one owner in a process, or is shared by counting: nobody's is taken away because somebody else gives the same
//!   memory back, however often its pool was opened. And it is told from other memory that is at the same address later.
//!
//! All this is for Linux. Elsewhere [`SUPPORTED`] is false, and there is nothing else.

#![deny(unsafe_op_in_unsafe_fn)]
#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
mod after_work;
#[cfg(target_os = "linux")]
mod copies;
#[cfg(target_os = "linux")]
mod cuda;
#[cfg(target_os = "linux")]
mod device_memory;
#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod exchange;
#[cfg(target_os = "linux")]
mod exporters_work;
#[cfg(target_os = "linux")]
mod facts;
#[cfg(target_os = "linux")]
mod fence;
#[cfg(target_os = "linux")]
mod here;
#[cfg(target_os = "linux")]
mod imported_pool;
#[cfg(target_os = "linux")]
mod leaving_pools;
#[cfg(target_os = "linux")]
mod ledger;
#[cfg(target_os = "linux")]
mod open_pools;
#[cfg(target_os = "linux")]
mod opening;
#[cfg(target_os = "linux")]
mod other_process;
#[cfg(target_os = "linux")]
mod owned;
#[cfg(target_os = "linux")]
mod pinned;
#[cfg(target_os = "linux")]
mod progress;
#[cfg(target_os = "linux")]
mod shared_pool;
// All unsafe code of the crate.
#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod sys;
#[cfg(target_os = "linux")]
pub mod testing;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(target_os = "linux")]
mod ticket;
#[cfg(target_os = "linux")]
mod watch;

#[cfg(target_os = "linux")]
pub use after_work::AfterWork;
#[cfg(target_os = "linux")]
pub use copies::Download;
#[cfg(target_os = "linux")]
pub use cuda::Cuda;
#[cfg(target_os = "linux")]
pub use device_memory::DeviceMemory;
#[cfg(target_os = "linux")]
pub use error::{CudaError, DriverError, Result};
#[cfg(target_os = "linux")]
pub use facts::{DeviceUuid, MemoryInfo};
#[cfg(target_os = "linux")]
pub use imported_pool::{ImportedMemory, ImportedPool};
#[cfg(target_os = "linux")]
pub use ledger::Held;
#[cfg(target_os = "linux")]
pub use pinned::{PinnedBuffer, PinnedOptions, PinnedPool};
#[cfg(target_os = "linux")]
pub use shared_pool::{Exported, PoolOptions, SharedPool};
#[cfg(target_os = "linux")]
pub use sys::StreamHandle;
#[cfg(target_os = "linux")]
pub use ticket::{ExportMessage, Ticket};

/// Whether this system can do what this crate is for. Whether there is a driver says `Cuda::open`.
pub const SUPPORTED: bool = cfg!(target_os = "linux");
