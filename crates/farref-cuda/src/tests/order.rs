//! What waits for what (CU-1, CU-2).

use super::{Pair, STREAM, allocate, open, pool};
use crate::CudaError;
use crate::testing::Machine;

#[test]
fn an_importers_work_waits_for_the_exporters() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let work = here.write_later(0, STREAM, memory.pointer(), b"done");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let stream = there.stream(0);
        let imported = opened.import(&exported.message(), stream).unwrap();
        let reading = there.read_later(0, stream, imported.pointer(), 4);
        assert_eq!(reading.get(), None);
        // Whoever does not wait reads what is not there yet, and the stand-in says so.
        there.read(imported.pointer(), 4);
        assert_eq!(machine.take_faults().len(), 1);
        work.complete();
        assert_eq!(reading.get().unwrap(), b"done");
        drop(imported);
        there.destroy_stream(0, stream);
    });
}

#[test]
fn a_later_export_on_another_stream_does_not_mean_that_an_earlier_one_is_done() {
    for default_first in [true, false] {
        Machine::run(1, |machine| {
            let Pair {
                here,
                there,
                pool,
                opened,
            } = Pair::of(machine);
            let (slow, quick) = match default_first {
                true => (STREAM, here.stream(0)),
                false => (here.stream(0), STREAM),
            };
            let (first, second) = (allocate(&here, 4), allocate(&here, 4));
            let work = here.write_later(0, slow, first.pointer(), b"slow");
            let exported = pool.export(first.pointer(), 4, slow).unwrap();
            let quick_work = here.hold(0, quick);
            let later = pool.export(second.pointer(), 4, quick).unwrap();
            quick_work.complete();
            let stream = there.stream(0);
            let imported = opened.import(&exported.message(), stream).unwrap();
            let reading = there.read_later(0, stream, imported.pointer(), 4);
            assert_eq!(reading.get(), None);
            // The program's other stream was not held up by that.
            assert!(
                here.read_later(0, quick, second.pointer(), 4)
                    .get()
                    .is_some()
            );
            work.complete();
            assert_eq!(reading.get().unwrap(), b"slow");
            drop((imported, later));
            there.destroy_stream(0, stream);
            here.destroy_stream(0, if default_first { quick } else { slow });
        });
    }
}

#[test]
fn an_importer_gives_memory_back_after_its_own_work() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let stream = there.stream(0);
        let imported = opened.import(&exported.message(), stream).unwrap();
        let work = there.write_later(0, stream, imported.pointer(), b"mine");
        drop(imported);
        assert_eq!(machine.counts().imports, 1);
        // The pool cannot go before it, and goes when the next one does.
        drop(opened);
        assert_eq!(machine.counts().imported_pools, 1);
        work.complete();
        assert_eq!(machine.counts().imports, 0);
        assert_eq!(here.read(memory.pointer(), 4), b"mine");
        drop(open(&there, &pool));
        assert_eq!(machine.counts().imported_pools, 0);
        there.destroy_stream(0, stream);
    });
}

#[test]
fn an_importer_goes_on_with_the_memory_of_an_exporter_that_was_killed() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"left");
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        here.kill();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        assert_eq!(reading.get().unwrap(), b"left");
        assert!(pool.export(memory.pointer(), 4, STREAM).is_err());
        drop(imported);
        drop((exported, memory));
    });
}

#[test]
fn what_an_importer_had_that_was_killed_is_free_again() {
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
        there.kill();
        assert_eq!(machine.counts().imports, 0);
        drop((exported, memory));
        drop((imported, opened));
    });
}

#[test]
fn an_importer_gives_its_stream_nothing_to_wait_for_that_is_done() {
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
        opened.wait(STREAM).unwrap();
        assert_eq!(there.calls("cuStreamWaitValue32_v2"), 0);
        let work = here.hold(0, STREAM);
        let again = pool.export(memory.pointer(), 4, STREAM).unwrap();
        opened.wait(STREAM).unwrap();
        assert_eq!(there.calls("cuStreamWaitValue32_v2"), 1);
        work.complete();
        drop((imported, again));
    });
}

#[test]
fn who_gets_memory_back_waits_for_what_was_done_with_it() {
    // CU-2
    Machine::run(1, |machine| {
        let (here, there) = (machine.process(), machine.process());
        let (pool_here, pool_there) = (pool(&here), pool(&there));
        let (opened_there, opened_here) = (open(&there, &pool_here), open(&here, &pool_there));
        let memory = allocate(&here, 4);
        here.write(memory.pointer(), b"sent");
        let exported = pool_here.export(memory.pointer(), 4, STREAM).unwrap();
        let imported = opened_there.import(&exported.message(), STREAM).unwrap();
        let work = there.write_later(0, STREAM, imported.pointer(), b"back");
        assert!(pool_there.record(STREAM).unwrap());
        opened_here.wait(STREAM).unwrap();
        let reading = here.read_later(0, STREAM, memory.pointer(), 4);
        assert_eq!(reading.get(), None);
        work.complete();
        assert_eq!(reading.get().unwrap(), b"back");
        // Of a stream that has nothing to do there is nothing to wait for.
        assert!(!pool_there.record(STREAM).unwrap());
        drop(imported);
    });
}

#[test]
fn of_an_exporter_that_has_died_only_that_is_done_which_was_seen_to_be() {
    // CU-2
    Machine::run(1, |machine| {
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let (first, second) = (allocate(&here, 4), allocate(&here, 4));
        let work = here.hold(0, STREAM);
        let exported = pool.export(first.pointer(), 4, STREAM).unwrap();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        assert!(opened.is_behind() && opened.check().is_ok());
        work.complete();
        assert!(opened.check().is_ok() && !opened.is_behind());
        let work = here.hold(0, STREAM);
        let later = pool.export(second.pointer(), 4, STREAM).unwrap();
        let unfinished = opened.import(&later.message(), STREAM).unwrap();
        assert!(opened.check().is_ok() && opened.is_behind());
        opened.work().exporter().end();
        // Whether it is done after that or not.
        work.complete();
        for refused in [opened.check(), opened.wait(STREAM)] {
            assert!(
                matches!(refused, Err(CudaError::ExporterGone)),
                "{refused:?}"
            );
        }
        drop((imported, unfinished));
    });
}

#[test]
fn nothing_is_wrong_with_memory_of_one_that_died_after_its_work_was_seen_to_be_done() {
    Machine::run(1, |machine| {
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let memory = allocate(&here, 4);
        let exported = pool.export(memory.pointer(), 4, STREAM).unwrap();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        opened.work().exporter().end();
        assert!(opened.check().is_ok());
        drop(imported);
        // But what comes now may not be whole.
        let refused = opened.import(&exported.message(), STREAM);
        assert!(
            matches!(refused, Err(CudaError::ExporterGone)),
            "{refused:?}"
        );
    });
}
