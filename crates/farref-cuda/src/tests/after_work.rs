//! Jobs that run after a stream's work (CU-3).

use std::sync::mpsc::{Receiver, channel};

use farref_testkit::TEST_TIMEOUT;

use super::{STREAM, until};
use crate::testing::Machine;
use crate::{AfterWork, CudaError, StreamHandle};

/// A job that says when it is run.
fn ask(after: &AfterWork, stream: StreamHandle) -> Receiver<()> {
    let (tell, told) = channel();
    let job = move || tell.send(()).unwrap();
    after.run(0, stream, Box::new(job)).unwrap();
    told
}

#[test]
fn a_job_is_run_after_the_work_and_nobody_waits_for_it() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let (slow, quick) = (here.stream(0), here.stream(0));
        let work = here.hold(0, slow);
        let held = ask(&after, slow);
        // Another stream's is not held up by it; when it has run, this one has been looked at, too.
        ask(&after, quick).recv_timeout(TEST_TIMEOUT).unwrap();
        ask(&after, quick).recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(held.try_recv().is_err());
        assert_eq!(after.open(), 1);
        work.complete();
        held.recv_timeout(TEST_TIMEOUT).unwrap();
        here.destroy_stream(0, slow);
        here.destroy_stream(0, quick);
    });
}

#[test]
fn a_job_that_panics_takes_no_other_one_with_it() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let panics = || panic!("on purpose");
        after.run(0, STREAM, Box::new(panics)).unwrap();
        ask(&after, STREAM).recv_timeout(TEST_TIMEOUT).unwrap();
        ask(&after, STREAM).recv_timeout(TEST_TIMEOUT).unwrap();
    });
}

#[test]
fn jobs_are_run_also_if_the_driver_fails() {
    for call in ["cuEventCreate", "cuEventRecord", "cuEventQuery"] {
        Machine::run(1, |machine| {
            let here = machine.process();
            let after = AfterWork::new(here.cuda());
            // A stream that has nothing to do is given nothing.
            let work = here.hold(0, STREAM);
            here.fail_next(call, 999);
            let asked = ask(&after, STREAM);
            until(|| here.calls(call) > 0);
            work.complete();
            asked.recv_timeout(TEST_TIMEOUT).unwrap();
        });
    }
}

#[test]
fn a_stream_that_has_nothing_to_do_is_given_nothing() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        for _ in 0..16 {
            ask(&after, STREAM).recv_timeout(TEST_TIMEOUT).unwrap();
        }
        let given = ["cuEventCreate", "cuEventRecord"].map(|call| here.calls(call));
        assert_eq!(given, [0, 0]);
    });
}

#[test]
fn an_event_that_cannot_be_recorded_is_recorded_later() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let work = here.hold(0, STREAM);
        for _ in 0..3 {
            here.fail_next("cuEventRecord", 999);
        }
        let held = ask(&after, STREAM);
        until(|| here.calls("cuEventRecord") > 3);
        let looks = here.calls("cuEventQuery");
        until(|| here.calls("cuEventQuery") > looks + 1);
        assert!(held.try_recv().is_err());
        work.complete();
        held.recv_timeout(TEST_TIMEOUT).unwrap();
    });
}

#[test]
fn an_error_that_says_nothing_of_the_work_does_not_end_it() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let work = here.hold(0, STREAM);
        // Not permitted while something is captured; an event of a capture; not initialized; unknown.
        for code in [900, 907, 3, 999] {
            here.fail_next("cuEventQuery", code);
        }
        let held = ask(&after, STREAM);
        until(|| here.calls("cuEventQuery") > 5);
        assert!(held.try_recv().is_err());
        work.complete();
        held.recv_timeout(TEST_TIMEOUT).unwrap();
    });
}

#[test]
fn a_job_is_run_if_the_device_has_failed() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let work = here.hold(0, STREAM);
        here.fail_next("cuEventQuery", 700);
        here.fail_next("cuMemGetInfo_v2", 700);
        ask(&after, STREAM).recv_timeout(TEST_TIMEOUT).unwrap();
        work.complete();
    });
}

#[test]
fn captures_are_neither_spoiled_nor_waited_for_in_vain() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let (captured, other) = (here.stream(0), here.stream(0));
        let before = ask(&after, other);
        before.recv_timeout(TEST_TIMEOUT).unwrap();
        here.begin_capture(0, captured);
        let recorded = here.calls("cuEventRecord");
        let held = ask(&after, captured);
        assert_eq!(here.calls("cuEventRecord"), recorded, "into the capture");
        // Of other streams jobs are run meanwhile.
        ask(&after, other).recv_timeout(TEST_TIMEOUT).unwrap();
        ask(&after, other).recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(held.try_recv().is_err());
        here.end_capture(0, captured);
        held.recv_timeout(TEST_TIMEOUT).unwrap();
        here.destroy_stream(0, captured);
        here.destroy_stream(0, other);
    });
}

#[test]
fn jobs_of_a_process_that_was_killed_are_run() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let work = here.hold(0, STREAM);
        let held = ask(&after, STREAM);
        here.kill();
        held.recv_timeout(TEST_TIMEOUT).unwrap();
        drop(work);
    });
}

#[test]
fn a_device_that_does_not_exist_is_an_error() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        let refused = after.run(1, STREAM, Box::new(|| ()));
        assert!(
            matches!(refused, Err(CudaError::NoDevice { .. })),
            "{refused:?}"
        );
        assert_eq!(after.open(), 0);
    });
}

#[test]
fn the_thread_ends_and_is_started_again() {
    Machine::run(1, |machine| {
        let here = machine.process();
        let after = AfterWork::new(here.cuda());
        for _ in 0..2 {
            let work = here.hold(0, STREAM);
            let asked = ask(&after, STREAM);
            work.complete();
            asked.recv_timeout(TEST_TIMEOUT).unwrap();
            // Its events go with it.
            until(|| machine.counts().events == 0);
        }
    });
}
