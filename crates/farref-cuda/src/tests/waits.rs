//! Streams that wait for the work of another process, whatever becomes of that one.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::{Pair, STREAM, pool, until};
use crate::CudaError;
use crate::progress::Progress;
use crate::testing::Machine;

const WRITE: &str = "cuStreamWriteValue32_v2";
const WAIT: &str = "cuStreamWaitValue32_v2";
const LOOK: &str = "cuEventQuery";

fn is_gone<T>(result: crate::Result<T>) -> bool {
    matches!(result, Err(CudaError::ExporterGone))
}

/// PW-2, PW-3
#[test]
fn a_stream_that_waits_for_the_work_of_one_that_was_killed_goes_on_and_it_is_known() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            opened,
            ..
        } = &pair;
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        assert_eq!(reading.get(), None);
        here.kill();
        work.complete();
        assert_eq!(reading.get(), None);
        opened.work().exporter().end();
        until(|| reading.get().is_some());
        // What comes of it is used by nobody who does not know.
        assert!(is_gone(opened.check()) && is_gone(opened.wait(STREAM)));
        drop(imported);
        // And the device works on.
        there.cuda().synchronize(0, STREAM).unwrap();
        drop(exported);
    });
}

/// PG-2
#[test]
fn what_one_that_dies_still_writes_stops_nobody_who_was_let_go_on() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            opened,
            ..
        } = &pair;
        let first = here.hold(0, STREAM);
        let one = pair.export();
        let second = here.hold(0, STREAM);
        let other = pair.export();
        // One stream is before the wait, and another has it behind work of its own.
        let (quick, slow) = (there.stream(0), there.stream(0));
        let own = there.hold(0, slow);
        let memory = opened.import(&one.message(), slow).unwrap();
        opened.wait(quick).unwrap();
        let [early, late] = [quick, slow].map(|on| there.read_later(0, on, memory.pointer(), 4));
        opened.work().exporter().begin_to_end();
        until(|| early.get().is_some());
        // It gets as far as its first number: less than what was written for it.
        first.complete();
        own.complete();
        until(|| late.get().is_some());
        opened.work().exporter().end();
        drop((second, memory, one, other));
        there.destroy_stream(0, quick);
        there.destroy_stream(0, slow);
    });
}

#[test]
fn those_who_wait_for_more_go_on_also_if_others_who_waited_for_less_look_later() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        let third = machine.process();
        let also = super::open(&third, pool);
        let work = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        opened.wait(STREAM).unwrap();
        let exported = pair.export();
        let own = third.hold(0, STREAM);
        let imported = also.import(&exported.message(), STREAM).unwrap();
        let reading = third.read_later(0, STREAM, imported.pointer(), 4);
        here.kill();
        opened.work().exporter().begin_to_end();
        also.work().exporter().end();
        // Its stream can go on, and has not got there yet, when the other one writes what it waits for, which is less.
        until(|| !also.work().is_watched());
        let looks = there.cuda().waits().looks();
        until(|| there.cuda().waits().looks() > looks + 1);
        own.complete();
        until(|| reading.get().is_some());
        opened.work().exporter().end();
        drop((work, imported, exported));
    });
}

/// PW-1
#[test]
fn a_stream_waits_once_for_the_same_work_whatever_comes_of_it() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            opened,
            ..
        } = &pair;
        let work = here.hold(0, STREAM);
        let exported: Vec<_> = (0..8).map(|_| pair.export()).collect();
        let (one, other) = (there.stream(0), there.stream(0));
        let import = |stream| {
            let import = |exported: &crate::Exported| opened.import(&exported.message(), stream);
            let imported: crate::Result<Vec<_>> = exported.iter().map(import).collect();
            imported.unwrap()
        };
        let imported = import(one);
        assert_eq!(there.calls(WAIT), 1);
        // Another stream does not wait by that.
        opened.wait(other).unwrap();
        assert_eq!(there.calls(WAIT), 2);
        // More work is waited for, too.
        let more = here.hold(0, STREAM);
        let last = pair.export();
        opened.wait(one).unwrap();
        assert_eq!(there.calls(WAIT), 3);
        let reading = there.read_later(0, one, imported[0].pointer(), 4);
        work.complete();
        assert_eq!(reading.get(), None);
        more.complete();
        assert!(reading.get().is_some());
        drop((imported, exported, last));
        until(|| !opened.is_behind());
        there.destroy_stream(0, one);
        there.destroy_stream(0, other);
    });
}

/// CU-2
#[test]
fn numbers_go_round() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        pool.start_from(u32::MAX - 2);
        for round in 0..6 {
            let work = here.hold(0, STREAM);
            let exported = pair.export();
            let imported = opened.import(&exported.message(), STREAM).unwrap();
            let reading = there.read_later(0, STREAM, imported.pointer(), 4);
            assert_eq!((round, reading.get()), (round, None));
            work.complete();
            assert!(reading.get().is_some(), "round {round}");
            assert!(opened.check().is_ok() && !opened.is_behind());
            drop((imported, exported));
        }
        assert_eq!(here.calls(WRITE), 6);
    });
}

/// A round trip of many, of which nobody's device has anything to do.
#[test]
fn what_has_nothing_to_wait_for_costs_the_devices_nothing() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool: pool_here,
            opened,
        } = &pair;
        let pool_there = pool(there);
        let opened_here = super::open(here, &pool_there);
        let given = || {
            let calls = [WRITE, WAIT, "cuEventRecord", "cuStreamWaitEvent"];
            calls.map(|call| here.calls(call) + there.calls(call))
        };
        let before = given();
        for _ in 0..64 {
            let exported = pair.export();
            let imported = opened.import(&exported.message(), STREAM).unwrap();
            assert!(!pool_there.record(STREAM).unwrap());
            opened_here.wait(STREAM).unwrap();
            drop((imported, exported));
        }
        until(|| pool_here.exported_bytes() == 0);
        assert_eq!(given(), before);
    });
}

#[test]
fn nothing_of_it_is_put_into_a_capture() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        let captured = there.stream(0);
        there.begin_capture(0, captured);
        let refused = opened.import(&exported.message(), captured);
        assert!(matches!(refused, Err(CudaError::Captured)), "{refused:?}");
        drop(refused);
        there.end_capture(0, captured);
        drop(opened.import(&exported.message(), captured).unwrap());
        work.complete();
        let memory = super::allocate(here, 4);
        here.begin_capture(0, STREAM);
        let refused = pool.export(memory.pointer(), 4, STREAM);
        assert!(matches!(refused, Err(CudaError::Captured)), "{refused:?}");
        drop(refused);
        here.end_capture(0, STREAM);
        drop(pool.export(memory.pointer(), 4, STREAM).unwrap());
        until(|| machine.counts().imports == 0);
        there.destroy_stream(0, captured);
    });
}

/// PG-3
#[test]
fn a_page_stays_until_no_stream_will_touch_it() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let (work, own) = (here.hold(0, STREAM), there.hold(0, STREAM));
        assert!(pool.record(STREAM).unwrap());
        opened.wait(STREAM).unwrap();
        drop((pool, opened));
        // What was given to streams is done now: there are faults if the pages are gone.
        work.complete();
        until(|| machine.counts().host_blocks == 1);
        own.complete();
        until(|| machine.counts().host_blocks == 0);
    });
}

#[test]
fn a_page_of_a_device_that_has_failed_is_given_back() {
    Machine::run(1, |machine| {
        let Pair {
            here, pool, opened, ..
        } = Pair::of(machine);
        let work = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        here.kill();
        drop((pool, opened));
        until(|| machine.counts().host_blocks == 0);
        work.complete();
    });
}

/// PG-3: whoever has the page can write to it.
#[test]
fn a_page_stays_until_no_stream_will_touch_it_whatever_others_write_there() {
    for by_default in [true, false] {
        Machine::run(1, |machine| {
            let Pair {
                here,
                there: _there,
                pool,
                opened,
            } = Pair::of(machine);
            let own = here.stream(0);
            let stream = if by_default { STREAM } else { own };
            let work = here.hold(0, stream);
            assert!(pool.record(stream).unwrap());
            opened.work().numbers().raise(1000);
            let looks = here.calls(LOOK);
            drop((pool, opened));
            // Somebody looks whether the stream has got there; there are faults if the page has gone before.
            until(|| here.calls(LOOK) > looks + 1);
            work.complete();
            until(|| machine.counts().host_blocks == 0);
            here.destroy_stream(0, own);
        });
    }
}

/// PG-1, also if somebody writes less than was reached.
#[test]
fn the_exporters_streams_wait_for_nothing_that_others_can_write() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        let first = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        // The second number is for another stream. It is reached after the first one.
        let other = here.stream(0);
        let second = here.hold(0, other);
        let memory = super::allocate(here, 4);
        let exported = pool
            .export(memory.pointer(), 4, other)
            .unwrap()
            .keep(memory);
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        second.complete();
        assert_eq!(reading.get(), None);
        first.complete();
        assert!(reading.get().is_some());
        assert_eq!(here.calls(WAIT), 0);
        drop((imported, exported));
        here.destroy_stream(0, other);
    });
}

/// PW-2: a stream that has too much to do keeps whoever gives it more waiting.
#[test]
fn a_stream_goes_on_also_while_somebody_waits_to_give_it_more() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        there.limit_streams(2);
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        assert!(pool.record(STREAM).unwrap());
        let given = there.calls(WAIT);
        std::thread::scope(|scope| {
            let blocked = scope.spawn(|| opened.wait(STREAM));
            until(|| there.calls(WAIT) > given);
            // Who only looks is not kept waiting either.
            assert!(opened.is_behind() && opened.check().is_ok());
            here.kill();
            opened.work().exporter().end();
            until(|| reading.get().is_some());
            blocked.join().unwrap().unwrap();
        });
        assert!(is_gone(opened.check()));
        drop((work, imported, exported));
    });
}

/// PW-3: the thread that lets streams go on has seen it, though the stream gets there later.
#[test]
fn what_was_seen_to_be_done_while_its_process_lived_is_done_also_if_streams_get_there_later() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            opened,
            ..
        } = &pair;
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        let own = there.hold(0, STREAM);
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        work.complete();
        until(|| !opened.work().is_watched());
        opened.work().exporter().end();
        assert!(opened.check().is_ok());
        own.complete();
        assert!(reading.get().is_some());
        drop((imported, exported));
        until(|| machine.counts().imports == 0);
        assert!(opened.check().is_ok() && !opened.is_behind());
    });
}

/// PG-2
#[test]
fn a_number_that_was_waited_for_long_ago_is_not_taken_for_a_later_one() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            pool,
            opened,
        } = &pair;
        let work = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        opened.wait(STREAM).unwrap();
        work.complete();
        until(|| !opened.work().is_watched());
        until(|| !opened.is_behind());
        let long_after = (1 << 31) + 10;
        pool.start_from(long_after);
        let work = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        opened.wait(STREAM).unwrap();
        work.complete();
        // Its number was reached, and not only one of long ago.
        until(|| !opened.work().is_watched());
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        here.kill();
        opened.work().exporter().end();
        until(|| reading.get().is_some());
        assert_eq!(opened.work().numbers().reached(), long_after + 2);
        drop((work, imported, exported));
    });
}

/// PW-2
#[test]
fn no_stream_waits_for_others_before_somebody_looks_whether_they_live() {
    Machine::run(1, |machine| {
        let pair = Pair::of(machine);
        let Pair {
            here,
            there,
            opened,
            ..
        } = &pair;
        let work = here.hold(0, STREAM);
        let exported = pair.export();
        there.cuda().waits().fail_next(1);
        let refused = opened.import(&exported.message(), STREAM);
        assert!(matches!(refused, Err(CudaError::System(_))), "{refused:?}");
        drop(refused);
        assert_eq!(there.calls(WAIT), 0);
        until(|| machine.counts().imports == 0);
        // The next one has a thread.
        let imported = opened.import(&exported.message(), STREAM).unwrap();
        let reading = there.read_later(0, STREAM, imported.pointer(), 4);
        here.kill();
        opened.work().exporter().end();
        until(|| reading.get().is_some());
        drop((work, imported, exported));
    });
}

/// PW-2: the stand-in notes calls of that thread as faults.
#[test]
fn a_pool_that_is_closed_while_a_stream_waits_for_it_leaves_nothing_to_the_thread_that_looks() {
    Machine::run(1, |machine| {
        let Pair {
            here,
            there,
            pool,
            opened,
        } = Pair::of(machine);
        let work = here.hold(0, STREAM);
        assert!(pool.record(STREAM).unwrap());
        opened.wait(STREAM).unwrap();
        let waits = std::sync::Arc::clone(there.cuda().waits());
        drop((pool, opened));
        work.complete();
        // Its stream has done its wait before it is looked again.
        there.cuda().synchronize(0, STREAM).unwrap();
        until(|| machine.counts().host_blocks == 0);
        until(|| waits.is_idle());
    });
}

/// CU-4
#[test]
fn a_file_that_can_become_shorter_or_be_sealed_is_not_mapped() {
    Machine::run(1, |machine| {
        let device = machine.process().cuda().device(0).unwrap();
        for seals in [
            SealFlags::empty(),
            SealFlags::SHRINK,
            SealFlags::SEAL,
            SealFlags::SHRINK | SealFlags::SEAL,
        ] {
            let file = memfd_create("shorter", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, 8 << 10).unwrap();
            fcntl_add_seals(&file, seals).unwrap();
            let opened = Progress::open(&device, std::os::fd::AsFd::as_fd(&file));
            match opened {
                Ok(_) => assert_eq!(seals, SealFlags::SHRINK | SealFlags::SEAL),
                Err(CudaError::BadTicket(_)) => {
                    assert_ne!(seals, SealFlags::SHRINK | SealFlags::SEAL);
                }
                Err(error) => panic!("{seals:?}: {error}"),
            }
        }
    });
}
