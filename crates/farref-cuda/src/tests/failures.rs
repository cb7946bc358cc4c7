//! Whatever fails, everything is given back (CU-7).

use super::{Pair, STREAM, allocate, open, pool};
use crate::testing::{Counts, Machine};
use crate::{CudaError, ImportedPool, PoolOptions, SharedPool};

/// What the driver says of a failure that a test wants.
const CODE: u32 = 999;

fn is_wanted(error: &CudaError, call: &str) -> bool {
    matches!(error, CudaError::Driver(error) if error.code == CODE && error.call == call)
}

#[test]
fn a_pool_that_cannot_be_made_leaves_nothing_behind() {
    for (call, which) in [
        ("cuDeviceGetCount", 0),
        ("cuDeviceGetAttribute", 0),
        ("cuMemGetInfo_v2", 0),
        ("cuDeviceGetUuid_v2", 0),
        ("cuMemPoolCreate", 0),
        ("cuStreamCreate", 0),
        ("cuStreamCreate", 1),
        ("cuEventCreate", 0),
        ("cuMemHostRegister_v2", 0),
        ("cuMemHostGetDevicePointer_v2", 0),
        ("cuMemPoolExportToShareableHandle", 0),
        ("cuMemAllocFromPoolAsync", 0),
        ("cuMemAllocFromPoolAsync", 1),
        ("cuStreamSynchronize", 0),
        ("cuStreamSynchronize", 1),
        ("cuDeviceSetMemPool", 0),
    ] {
        Machine::run(1, |machine| {
            let here = machine.process();
            here.fail_after(call, which, CODE);
            let options = PoolOptions {
                reserve: 4096,
                ..PoolOptions::default()
            };
            let refused = SharedPool::create(here.cuda(), 0, options).unwrap_err();
            assert!(is_wanted(&refused, call), "{call}: {refused:?}");
            assert_eq!(machine.counts(), Counts::default(), "{call}");
            // What is allocated is not of a pool that is gone.
            drop(allocate(&here, 8));
        });
    }
}

#[test]
fn a_pool_that_cannot_be_opened_leaves_nothing_behind() {
    for call in [
        "cuDeviceGetCount",
        "cuDeviceGetUuid_v2",
        "cuMemPoolImportFromShareableHandle",
        "cuMemHostRegister_v2",
        "cuMemHostGetDevicePointer_v2",
        "cuStreamCreate",
    ] {
        Machine::run(1, |machine| {
            let (here, there) = (machine.process(), machine.process());
            let pool = pool(&here);
            let before = machine.counts();
            there.fail_next(call, CODE);
            let refused = ImportedPool::open(there.cuda(), &pool.ticket()).unwrap_err();
            assert!(is_wanted(&refused, call), "{call}: {refused:?}");
            assert_eq!(machine.counts(), before, "{call}");
        });
    }
}

#[test]
fn an_export_that_fails_does_not_count() {
    for call in [
        "cuPointerGetAttribute",
        "cuMemGetAddressRange_v2",
        "cuMemPoolExportPointer",
        "cuStreamIsCapturing",
        "cuStreamWriteValue32_v2",
    ] {
        Machine::run(1, |machine| {
            let here = machine.process();
            let pool = pool(&here);
            let memory = allocate(&here, 8);
            // So that there is something to wait for.
            let work = here.hold(0, STREAM);
            here.fail_next(call, CODE);
            let refused = pool.export(memory.pointer(), 8, STREAM).unwrap_err();
            assert!(is_wanted(&refused, call), "{call}: {refused:?}");
            assert_eq!(pool.exported_bytes(), 0);
            assert!(pool.export(memory.pointer(), 8, STREAM).is_ok());
            work.complete();
        });
    }
}

#[test]
fn an_import_that_fails_leaves_nothing_behind() {
    for call in [
        "cuMemPoolImportPointer",
        "cuMemGetAddressRange_v2",
        "cuStreamIsCapturing",
        "cuStreamWaitValue32_v2",
    ] {
        Machine::run(1, |machine| {
            let Pair {
                here,
                there,
                pool,
                opened,
            } = Pair::of(machine);
            let memory = allocate(&here, 8);
            // So that there is something to wait for.
            let work = here.hold(0, STREAM);
            let exported = pool.export(memory.pointer(), 8, STREAM).unwrap();
            there.fail_next(call, CODE);
            let refused = opened.import(&exported.message(), STREAM).unwrap_err();
            assert!(is_wanted(&refused, call), "{call}: {refused:?}");
            assert_eq!(machine.counts().imports, 0);
            work.complete();
        });
    }
}

#[test]
fn an_anchor_that_cannot_be_imported_is_done_without() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let options = PoolOptions {
            reserve: 4096,
            ..PoolOptions::default()
        };
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        there.fail_next("cuMemPoolImportPointer", CODE);
        let opened = open(&there, &pool);
        assert_eq!(machine.counts().imports, 0);
        let memory = allocate(&here, 8);
        let exported = pool.export(memory.pointer(), 8, STREAM).unwrap();
        assert!(opened.import(&exported.message(), STREAM).is_ok());
    });
}

#[test]
fn without_a_driver_it_is_said_what_is_missing() {
    if let Err(error) = crate::Cuda::open() {
        let words = error.to_string();
        assert!(words.starts_with("no CUDA driver here: "), "{words}");
        assert!(
            words.contains("libcuda") || words.contains("cuInit"),
            "{words}"
        );
    }
}
