//! What is exported and imported, what is refused, and how much.

use super::{Pair, STREAM, allocate, open, pool};
use crate::testing::{Counts, Machine};
use crate::{
    CudaError, DeviceMemory, DriverError, ExportMessage, ImportedPool, PoolOptions, SharedPool,
    Ticket,
};

/// As it goes over a wire.
fn travelled<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    postcard::from_bytes(&postcard::to_allocvec(value).unwrap()).unwrap()
}

#[test]
fn both_processes_have_the_same_memory_whatever_they_call_the_device() {
    Machine::run(2, |machine| {
        let here = machine.process_that_sees(&[0, 1]);
        let there = machine.process_that_sees(&[1, 0]);
        let pool = SharedPool::create(here.cuda(), 1, PoolOptions::default()).unwrap();
        let memory = here.cuda().allocate(1, 4, STREAM).unwrap();
        here.write(memory.pointer(), b"sent");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let ticket: Ticket = travelled(&pool.ticket());
        let message: ExportMessage = travelled(&exported.message());
        assert_eq!((message, message.bytes()), (exported.message(), 4));
        assert_eq!((ticket.uuid(), pool.ordinal()), (pool.uuid(), 1));
        assert!(ticket.is_of_this_host());

        let opened = ImportedPool::open(there.cuda(), &ticket).unwrap();
        let imported = opened.import(&message, STREAM).unwrap();
        assert_eq!((opened.ordinal(), imported.ordinal()), (0, 0));
        assert_eq!((opened.uuid(), imported.bytes()), (pool.uuid(), 4));
        assert_eq!(there.read(imported.pointer(), 4), b"sent");
        there.write(imported.pointer(), b"back");
        assert_eq!(here.read(memory.pointer(), 4), b"back");
    });
}

#[test]
fn exported_memory_stays_until_the_exporter_lets_go_of_it() {
    // CU-1
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let pointer = memory.pointer();
        here.write(pointer, b"kept");
        let exported = pool.export(pointer, 4, STREAM).unwrap().keep(memory);
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        // The pool, too, is there as long as something is out.
        drop(pool);
        assert_eq!(there.read(imported.pointer(), 4), b"kept");
        drop(imported);
        assert_eq!(machine.counts().allocations, 1);
        drop(exported);
        assert_eq!(machine.counts().allocations, 0);
    });
}

#[test]
fn the_stand_in_notes_memory_that_is_freed_while_others_have_it() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        drop(memory);
        assert_eq!(machine.take_faults().len(), 1);
        drop(imported);
        here.free(0, 0x5000, STREAM);
        there.read(0x5000, 1);
        there.write(0x5000, b"!");
        assert_eq!(machine.take_faults().len(), 3);
    });
}

#[test]
fn memory_is_imported_once_until_it_is_given_back_whoever_does_that() {
    // CU-9
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"once");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let import = || opened.import(&exported.message(), STREAM);
        let first = import().unwrap();
        let again = import();
        assert!(
            matches!(again, Err(CudaError::AlreadyImported)),
            "{again:?}"
        );
        // Neither a second one nor one that is wrong has taken it away.
        let longer = ExportMessage {
            bytes: 5,
            ..exported.message()
        };
        assert!(opened.import(&longer, STREAM).is_err());
        assert_eq!(there.read(first.pointer(), 4), b"once");
        let (taken, held) = first.into_raw();
        let again = import();
        assert!(
            matches!(again, Err(CudaError::AlreadyImported)),
            "{again:?}"
        );
        assert_eq!(there.read(taken, 4), b"once");
        there.free(0, taken, STREAM);
        drop(held);
        assert_eq!(machine.counts().imports, 0);
        let anew = import().unwrap();
        assert_eq!(there.read(anew.pointer(), 4), b"once");
        drop(anew);
        drop(import().unwrap());
    });
}

#[test]
fn imported_memory_can_be_shared_and_goes_with_the_last_who_has_it() {
    // CU-9
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let import = || opened.import_shared(&exported.message(), STREAM);
        let (first, second) = (import().unwrap(), import().unwrap());
        assert_eq!(first.pointer(), second.pointer());
        assert_eq!(there.calls("cuMemPoolImportPointer"), 1);
        let longer = ExportMessage {
            bytes: 5,
            ..exported.message()
        };
        let refused = opened.import_shared(&longer, STREAM).unwrap_err();
        assert!(refused.is_peers_fault(), "{refused:?}");
        drop(first);
        assert_eq!(machine.counts().imports, 1);
        drop(second);
        assert_eq!(machine.counts().imports, 0);
        // What was taken cannot be.
        let taken = opened.import(&exported.message(), STREAM).unwrap();
        let (taken, _held) = taken.into_raw();
        let refused = import();
        assert!(
            matches!(refused, Err(CudaError::AlreadyImported)),
            "{refused:?}"
        );
        there.free(0, taken, STREAM);
    });
}

#[test]
fn imported_memory_can_be_copied_whether_it_is_here_or_not() {
    // CU-9
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let work = here.write_later(0, STREAM, memory.pointer(), b"copy");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let stream = there.stream(0);
        let copy = || opened.copy(&exported.message(), stream).unwrap();
        // It waits for the exporter's work, and nothing is imported when it is done.
        let first = copy();
        work.complete();
        assert_eq!(there.read(first.pointer(), 4), b"copy");
        assert_eq!(machine.counts().imports, 0);
        let work = here.write_later(0, STREAM, memory.pointer(), b"next");
        let again = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let taken = opened.import(&again.message(), STREAM).unwrap();
        let (taken, _held) = taken.into_raw();
        let second = copy();
        work.complete();
        assert_eq!(there.read(second.pointer(), 4), b"next");
        let longer = ExportMessage {
            bytes: 5,
            ..exported.message()
        };
        let refused = opened.copy(&longer, stream).unwrap_err();
        assert!(refused.is_peers_fault(), "{refused:?}");
        there.free(0, taken, STREAM);
        let raw = copy().into_raw();
        assert_eq!(there.read(raw, 4), b"next");
        there.free(0, raw, stream);
        drop((first, second));
        there.destroy_stream(0, stream);
    });
}

#[test]
fn memory_that_the_driver_does_not_know_any_more_is_imported_again_to_be_copied() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"anew");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let import = || opened.import(&exported.message(), STREAM);
        // Given back by whoever took it, which shows only when it is copied.
        drop(import().unwrap().into_raw());
        there.fail_next("cuMemcpyDtoDAsync_v2", DriverError::INVALID_VALUE);
        let copy = opened.copy(&exported.message(), STREAM).unwrap();
        assert_eq!(there.read(copy.pointer(), 4), b"anew");
        assert_eq!(machine.counts().imports, 0);
        // With other failures it is not taken away from anybody.
        let (taken, _held) = import().unwrap().into_raw();
        for _ in 0..2 {
            there.fail_next("cuMemcpyDtoDAsync_v2", 999);
        }
        assert!(opened.copy(&exported.message(), STREAM).is_err());
        assert_eq!(there.read(taken, 4), b"anew");
        there.free(0, taken, STREAM);
    });
}

#[test]
fn what_others_gave_back_is_forgotten() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        for round in 0..300 {
            // At one place, and at many.
            let memory = allocate(&here, if round < 150 { 4 } else { round * 1024 });
            let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
            let imported = opened.import(&exported.message(), STREAM).unwrap();
            let (taken, held) = imported.into_raw();
            there.free(0, taken, STREAM);
            drop(held);
            drop(exported);
            assert!(opened.known() <= 66, "{round}: {}", opened.known());
        }
    });
}

#[test]
fn only_whole_allocations_of_the_pool_are_exported() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let before = allocate(&here, 64);
        let pool = pool(&here);
        let memory = allocate(&here, 64);
        let export = |pointer, bytes| pool.export(pointer, bytes, STREAM).map(drop);
        let ours = memory.pointer();
        for (pointer, bytes) in [(before.pointer(), 64), (0, 1), (u64::MAX, 1)] {
            let refused = export(pointer, bytes);
            assert!(
                matches!(refused, Err(CudaError::NotOurs { .. })),
                "{refused:?}"
            );
        }
        for (pointer, bytes) in [(ours + 1, 8), (ours, 0), (ours, 65), (ours, u64::MAX)] {
            let refused = export(pointer, bytes);
            assert!(
                matches!(refused, Err(CudaError::NotAnAllocation { .. })),
                "{refused:?}"
            );
        }
        let exported = pool.export(ours, 63, STREAM).unwrap();
        // Also of what is out already.
        let refused = export(ours, 65);
        assert!(
            matches!(refused, Err(CudaError::NotAnAllocation { .. })),
            "{refused:?}"
        );
        assert_eq!(pool.exported_bytes(), 63);
        drop(exported);
        assert_eq!(pool.exported_bytes(), 0);
    });
}

#[test]
fn no_more_is_out_than_the_limit() {
    // CU-6
    Machine::run(1, |machine| {
        let here = machine.process();
        let options = PoolOptions {
            limit: 100,
            ..PoolOptions::default()
        };
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        let [one, other] = [allocate(&here, 60), allocate(&here, 60)];
        let export = |memory: &DeviceMemory, bytes| pool.export(memory.pointer(), bytes, STREAM);
        let first = export(&one, 60).unwrap();
        let refused = export(&other, 41);
        assert!(
            matches!(
                refused,
                Err(CudaError::LimitReached {
                    asked: 41,
                    used: 60,
                    limit: 100
                })
            ),
            "{refused:?}"
        );
        for memory in [&one, &other] {
            assert!(matches!(
                export(memory, u64::MAX),
                Err(CudaError::LimitReached { .. })
            ));
        }
        let second = export(&other, 40).unwrap();
        assert_eq!(pool.exported_bytes(), 100);
        drop(first);
        assert_eq!(pool.exported_bytes(), 40);
        drop((second, export(&one, 60).unwrap()));
        assert_eq!(pool.exported_bytes(), 0);
    });
}

#[test]
fn memory_that_is_out_several_times_counts_once() {
    // CU-6
    Machine::run(1, |machine| {
        let here = machine.process();
        let options = PoolOptions {
            limit: 100,
            ..PoolOptions::default()
        };
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        let memory = allocate(&here, 100);
        let export = |bytes| pool.export(memory.pointer(), bytes, STREAM);
        let part = export(40).unwrap();
        assert_eq!(pool.exported_bytes(), 40);
        // The longest one counts, for as long as any of them is there.
        let all: Vec<_> = (0..3).map(|_| export(100).unwrap()).collect();
        assert_eq!(pool.exported_bytes(), 100);
        drop(all);
        assert_eq!(pool.exported_bytes(), 100);
        drop(part);
        assert_eq!(pool.exported_bytes(), 0);
        drop(export(40).unwrap());
        assert_eq!(pool.exported_bytes(), 0);
    });
}

#[test]
fn what_a_peer_says_is_checked() {
    // CU-4
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        // Memory is of the pool that was made last.
        let first = pool(&here);
        let firsts = allocate(&here, 64);
        let of_first = first.export(firsts.pointer(), 64, STREAM).unwrap();
        let other = pool(&here);
        let memory = allocate(&here, 64);
        let exported = other.export(memory.pointer(), 64, STREAM).unwrap();
        let opened = open(&there, &other);
        let right = exported.message();
        for wrong in [
            ExportMessage { bytes: 0, ..right },
            ExportMessage { bytes: 65, ..right },
            ExportMessage {
                bytes: u64::MAX,
                ..right
            },
            ExportMessage {
                pool: right.pool + 1,
                ..right
            },
        ] {
            let refused = opened.import(&wrong, STREAM).unwrap_err();
            assert!(refused.is_peers_fault(), "{refused:?}");
        }
        let unknown = ExportMessage {
            token: [7; 64].into(),
            ..right
        };
        let refused = opened.import(&unknown, STREAM);
        assert!(matches!(refused, Err(CudaError::Driver(_))), "{refused:?}");
        // Memory of another pool of the same process.
        let wrong_pool = open(&there, &first);
        let wrong = ExportMessage {
            token: right.token,
            ..of_first.message()
        };
        let refused = wrong_pool.import(&wrong, STREAM);
        assert!(matches!(refused, Err(CudaError::Driver(_))), "{refused:?}");
        assert_eq!(machine.counts().imports, 0);
        assert!(opened.import(&right, STREAM).is_ok());
    });
}

#[test]
fn tickets_of_other_hosts_and_gpus_are_refused_before_anybody_is_asked() {
    // CU-4
    Machine::run(2, |machine| {
        let (here, there) = (machine.process(), machine.process_that_sees(&[1]));
        let pool = pool(&here);
        // Nobody can be asked here.
        let nowhere = Ticket {
            socket: "farref-cuda-nowhere".to_owned(),
            ..pool.ticket()
        };
        let other_host = Ticket {
            host: nowhere.host.another(),
            ..nowhere.clone()
        };
        assert!(!other_host.is_of_this_host());
        let refused = ImportedPool::open(there.cuda(), &other_host);
        assert!(matches!(refused, Err(CudaError::OtherHost)), "{refused:?}");
        let refused = ImportedPool::open(there.cuda(), &nowhere);
        assert!(
            matches!(&refused, Err(CudaError::OtherDevice { uuid }) if *uuid == pool.uuid()),
            "{refused:?}"
        );
        let anchors = vec![crate::ticket::Token::from([7; 64]); 17];
        let anchored = Ticket { anchors, ..nowhere };
        let refused = ImportedPool::open(here.cuda(), &anchored);
        assert!(
            matches!(refused, Err(CudaError::BadTicket(_))),
            "{refused:?}"
        );
    });
}

#[test]
fn what_is_longer_than_the_driver_can_share_is_not_exported() {
    Machine::run(1, |machine| {
        machine.set_memory(0, 16 << 30);
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let most = 4 << 30;
        let (whole, longer) = (allocate(&here, most), allocate(&here, most + 1));
        for bytes in [longer.bytes(), 1] {
            let refused = pool.export(longer.pointer(), bytes, STREAM);
            assert!(
                matches!(refused, Err(CudaError::TooLarge { bytes, limit }) if bytes == most + 1 && limit == most),
                "{refused:?}"
            );
        }
        assert_eq!(pool.exported_bytes(), 0);
        let exported = pool.export(whole.pointer(), most, STREAM).unwrap();
        drop(opened.import(&exported.message(), STREAM).unwrap());
        // CU-4
        let too_long = ExportMessage {
            bytes: most + 1,
            ..exported.message()
        };
        let imports = || machine.counts().imports;
        let refused = opened.import(&too_long, STREAM);
        assert!(
            matches!(refused, Err(CudaError::BadMessage(why)) if why.contains("can be shared")),
            "{refused:?}"
        );
        assert_eq!(imports(), 0);
    });
}

#[test]
fn a_reserve_is_taken_once_and_importers_keep_its_anchor() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let before = here.cuda().memory(0).unwrap().free;
        let reserve = 1 << 20;
        let options = PoolOptions {
            reserve,
            ..PoolOptions::default()
        };
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        assert!(pool.is_anchored());
        assert_eq!(before - here.cuda().memory(0).unwrap().free, reserve);
        // What comes later is carved out of it.
        let memory = allocate(&here, reserve / 2);
        assert_eq!(before - here.cuda().memory(0).unwrap().free, reserve);
        let opened = open(&there, &pool);
        assert_eq!(machine.counts().imports, 1);
        let exported = pool.export(memory.pointer(), 8, STREAM).unwrap();
        drop(opened.import(&exported.message(), STREAM).unwrap());
        assert_eq!(machine.counts().imports, 1);
        drop(opened);
        assert_eq!(machine.counts().imports, 0);
    });
}

#[test]
fn a_pool_without_an_anchor_is_one_all_the_same() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let options = PoolOptions {
            reserve: 4096,
            ..PoolOptions::default()
        };
        here.fail_next("cuMemPoolExportPointer", 1);
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        assert!(!pool.is_anchored());
        let memory = allocate(&here, 8);
        let exported = pool.export(memory.pointer(), 8, STREAM).unwrap();
        let opened = open(&there, &pool);
        assert!(opened.import(&exported.message(), STREAM).is_ok());
    });
}

#[test]
fn no_more_is_reserved_than_is_free_and_only_on_devices_that_can_share() {
    Machine::run(2, |machine| {
        let here = machine.process();
        machine.set_memory(0, 1 << 20);
        machine.take_abilities_away(1);
        let create = |ordinal, reserve| {
            let options = PoolOptions {
                reserve,
                ..PoolOptions::default()
            };
            SharedPool::create(here.cuda(), ordinal, options).map(drop)
        };
        let refused = create(0, (1 << 20) + 1);
        assert!(
            matches!(refused, Err(CudaError::NotEnoughMemory { .. })),
            "{refused:?}"
        );
        let refused = create(1, 0);
        assert!(
            matches!(refused, Err(CudaError::Unsupported { ordinal: 1, .. })),
            "{refused:?}"
        );
        let refused = create(2, 0);
        assert!(
            matches!(
                refused,
                Err(CudaError::NoDevice {
                    ordinal: 2,
                    count: 2
                })
            ),
            "{refused:?}"
        );
        assert!(create(0, 1 << 20).is_ok());
        assert_eq!(machine.counts(), Counts::default());
    });
}

#[test]
fn the_driver_is_asked_once_about_memory_that_is_out_and_again_about_what_comes_after_it() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 8);
        let pointer = memory.pointer();
        let first = pool.export(pointer, 8, STREAM).unwrap();
        let second = pool.export(pointer, 4, STREAM).unwrap();
        assert_eq!(here.calls("cuMemPoolExportPointer"), 1);
        drop((first, second, memory));
        let memory = allocate(&here, 4);
        assert_eq!(memory.pointer(), pointer, "the same place");
        here.write(pointer, b"anew");
        let exported = pool.export(pointer, 4, STREAM).unwrap();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        assert_eq!(there.read(imported.pointer(), 4), b"anew");
    });
}

#[test]
fn many_threads_share_one_pool() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        std::thread::scope(|scope| {
            for thread in 0..4u8 {
                let (here, there, pool, opened) = (&here, &there, &pool, &opened);
                scope.spawn(move || {
                    for round in 0..50 {
                        let memory = allocate(here, 2);
                        here.write(memory.pointer(), &[thread, round]);
                        let exported = pool.export(memory.pointer(), 2, STREAM).unwrap();
                        let imported = opened.import(&exported.message(), STREAM).unwrap();
                        assert_eq!(there.read(imported.pointer(), 2), [thread, round]);
                        drop(imported);
                        // It may wait for other threads' exports; the exporter does not free it before.
                        there.cuda().synchronize(0, STREAM).unwrap();
                    }
                });
            }
        });
        assert_eq!(pool.exported_bytes(), 0);
    });
}
