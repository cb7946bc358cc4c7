//! Tests on the stand-in machine, with real sockets.

mod after_work;
mod copies;
mod exchange;
mod failures;
mod lingering;
mod once;
mod order;
mod sharing;
mod waits;

use std::sync::Arc;

use crate::testing::{Machine, Process};
use crate::{DeviceMemory, Exported, ImportedPool, PoolOptions, SharedPool, StreamHandle};

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// Two processes, a pool of the first, and that pool as the second has it.
struct Pair {
    here: Process,
    there: Process,
    pool: Arc<SharedPool>,
    opened: Arc<ImportedPool>,
}

impl Pair {
    fn of(machine: &Machine) -> Self {
        let (here, there) = (machine.process(), machine.process());
        let pool = pool(&here);
        let opened = open(&there, &pool);
        Self {
            here,
            there,
            pool,
            opened,
        }
    }

    /// Four bytes of the first process, exported.
    fn export(&self) -> Exported {
        export(&self.pool, &self.here)
    }
}

/// Four bytes of a process, exported by its pool, and kept as long as they are out.
fn export(pool: &Arc<SharedPool>, process: &Process) -> Exported {
    let memory = allocate(process, 4);
    let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
    exported.keep(memory)
}

fn pool(process: &Process) -> Arc<SharedPool> {
    SharedPool::create(process.cuda(), 0, PoolOptions::default()).unwrap()
}

fn open(process: &Process, pool: &SharedPool) -> Arc<ImportedPool> {
    ImportedPool::open(process.cuda(), &pool.ticket()).unwrap()
}

fn allocate(process: &Process, bytes: u64) -> DeviceMemory {
    process.cuda().allocate(0, bytes, STREAM).unwrap()
}

/// Waits for an event of another thread. The line that the panic names says which.
#[track_caller]
pub(crate) fn until(mut condition: impl FnMut() -> bool) {
    farref_testkit::eventually_blocking("this line's condition", || Ok(condition())).unwrap();
}
