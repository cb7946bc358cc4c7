//! A machine with GPUs that there is not: for tests of programs that share device memory.
//!
//! A [`Machine`] has GPUs and, in this one process, several pretended [`Process`]es, each with a [`Cuda`](crate::Cuda) of its own.
//! Device memory is plain memory; a pool's descriptor is a real descriptor, so tickets are taken over real sockets. Work on streams
//! can be held up until the test lets it go on ([`Process::hold`], [`Process::write_later`]), so that it shows whether others wait
//! for it.
//!
//! What would be wrong on a real machine and goes unnoticed there is noted as a [fault](Machine::take_faults): memory that is read
//! before it was written, or freed while another process has it. [`Machine::run`] fails if there was any, or if anything was not
//! given back.
//!
//! ```
//! use farref_cuda::testing::Machine;
//! use farref_cuda::{ImportedPool, PoolOptions, SharedPool, StreamHandle};
//!
//! Machine::run(1, |machine| {
//!     let (here, there) = (machine.process(), machine.process());
//!     let pool = SharedPool::create(here.cuda(), 0, PoolOptions::default()).unwrap();
//!     let memory = here.cuda().allocate(0, 5, StreamHandle::DEFAULT).unwrap();
//!     here.write(memory.pointer(), b"hello");
//!     let exported = pool.export(memory.pointer(), 5, StreamHandle::DEFAULT).unwrap();
//!
//!     let opened = ImportedPool::open(there.cuda(), &pool.ticket()).unwrap();
//!     let imported = opened.import(&exported.message(), StreamHandle::DEFAULT).unwrap();
//!     assert_eq!(there.read(imported.pointer(), 5), b"hello");
//! });
//! ```

mod driver;
mod machine;
mod shared;
mod state;

pub use machine::{Machine, Process, Reading, Work};
pub use state::Counts;
