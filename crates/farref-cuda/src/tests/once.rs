//! Memory and pools are in a process once, and are told from what comes after them (CU-9).

use std::sync::Arc;

use super::{Pair, STREAM, allocate, open, pool};
use crate::testing::Machine;
use crate::{CudaError, ImportedPool, PoolOptions, SharedPool, Ticket};

/// Where nothing else is.
const PLACE: u64 = 7 << 50;

#[test]
fn a_pool_is_open_once_whoever_asks() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let pool = pool(&here);
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"once");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let (first, second) = (open(&there, &pool), open(&there, &pool));
        let one = first.import(&exported.message(), STREAM).unwrap();
        let again = second.import(&exported.message(), STREAM);
        assert!(
            matches!(again, Err(CudaError::AlreadyImported)),
            "{again:?}"
        );
        drop(again);
        assert_eq!(there.read(one.pointer(), 4), b"once");
        assert_eq!(machine.counts().imported_pools, 1);
    });
}

#[test]
fn a_pool_that_many_ask_for_at_once_is_opened_by_one_of_them() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let pool = pool(&here);
        let opened: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| open(&there, &pool)))
                .collect();
            let opened = threads.into_iter().map(|thread| thread.join().unwrap());
            opened.collect()
        });
        assert!(opened.iter().all(|other| Arc::ptr_eq(other, &opened[0])));
        assert_eq!(there.calls("cuMemPoolImportFromShareableHandle"), 1);
    });
}

#[test]
fn a_pool_that_is_being_closed_takes_nothing_away_from_the_one_that_is_opened_then() {
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let options = PoolOptions {
            reserve: 4096,
            ..PoolOptions::default()
        };
        let pool = SharedPool::create(here.cuda(), 0, options).unwrap();
        let mut opened = open(&there, &pool);
        for round in 0..200 {
            opened = std::thread::scope(|scope| {
                scope.spawn(move || drop(opened));
                open(&there, &pool)
            });
            assert_eq!(machine.counts().imports, 1, "round {round}: the anchor");
        }
    });
}

#[test]
fn a_pool_that_is_open_is_not_given_for_another_ticket() {
    // CU-4
    Machine::run(1, |machine| {
        let Pair {
            there,
            pool,
            opened,
            ..
        } = Pair::of(machine);
        let right = pool.ticket();
        let secret = crate::ticket::Secret([7; 32]);
        let wrong = Ticket { secret, ..right };
        let refused = ImportedPool::open(there.cuda(), &wrong);
        assert!(
            matches!(refused, Err(CudaError::BadTicket(_))),
            "{refused:?}"
        );
        drop(opened);
    });
}

#[test]
fn memory_is_known_also_when_its_pool_was_closed_and_opened_again() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"kept");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let taken = opened.import(&exported.message(), STREAM).unwrap();
        let (taken, _held) = taken.into_raw();
        drop(opened);
        let opened = open(&there, &pool);
        let again = opened.import(&exported.message(), STREAM);
        assert!(
            matches!(again, Err(CudaError::AlreadyImported)),
            "{again:?}"
        );
        drop(again);
        assert_eq!(there.read(taken, 4), b"kept");
        there.free(0, taken, STREAM);
        drop(opened);
        // The pool could not go before its memory.
        drop(open(&there, &pool));
    });
}

#[test]
fn other_memory_at_the_same_address_is_not_taken_for_what_was_there_before() {
    Machine::run(1, |machine| {
        let (here, third, there) = (machine.process(), machine.process(), machine.process());
        let pools = [pool(&here), pool(&third)];
        let opened = [open(&there, &pools[0]), open(&there, &pools[1])];
        let memory = [allocate(&here, 4), allocate(&third, 4)];
        here.write(memory[0].pointer(), b"this");
        third.write(memory[1].pointer(), b"that");
        let export = |at: usize| pools[at].export(memory[at].pointer(), 4, STREAM).unwrap();
        let exported = [export(0), export(1)];
        let import = |at: usize| opened[at].import(&exported[at].message(), STREAM);
        // It is here, goes, and other memory of the same length comes to be where it was.
        there.import_next_at(PLACE);
        let (first, _held) = import(0).unwrap().into_raw();
        there.free(0, first, STREAM);
        there.import_next_at(PLACE);
        let (second, _held) = import(1).unwrap().into_raw();
        assert_eq!(first, second, "the same place");
        let copy = opened[0].copy(&exported[0].message(), STREAM).unwrap();
        assert_eq!(there.read(copy.pointer(), 4), b"this");
        let again = import(0).unwrap();
        assert_eq!(there.read(again.pointer(), 4), b"this");
        assert_eq!(there.read(second, 4), b"that");
        there.free(0, second, STREAM);
    });
}

#[test]
fn the_same_address_has_another_id_when_other_memory_is_there() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let id = |pointer| here.cuda().allocation_id(0, pointer);
        let first = allocate(&here, 4);
        let (pointer, before) = (first.pointer(), id(first.pointer()).unwrap());
        drop(first);
        assert!(id(pointer).is_err());
        let second = allocate(&here, 4);
        assert_eq!(second.pointer(), pointer, "the same place");
        assert_ne!(id(pointer).unwrap(), before);
    });
}
