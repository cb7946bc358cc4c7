//! What the checker says of calls.

use super::super::testing::Run;
use super::*;
use crate::history::{DRIVER, Sample, hop, number};

fn end(run: &mut Run, ms: u64, call: u64, outcome: Outcome) {
    run.note(ms, 1, Event::Ended { call, outcome });
}

fn failed(kind: Kind, worker: &str) -> Outcome {
    Outcome::Failed(Trouble {
        kind,
        worker: Some(worker.to_owned()),
        text: "for a test".to_owned(),
    })
}

/// A call of life 1 at 100 ms that ends at 200 ms, and runs in between or not.
fn call(runs: bool, expects: Expected, outcome: Outcome) -> Run {
    let mut run = Run::new();
    run.begin(100, 7, expects);
    if runs {
        run.ran(150, 2, 7);
    }
    end(&mut run, 200, 7, outcome);
    run
}

#[test]
fn a_call_that_runs_once_and_brings_what_it_is_to_bring_is_right() {
    let right = call(true, Expected::Value(3), Outcome::Value(3));
    assert!(right.broken().is_empty());
    let refused = call(true, Expected::Refusal(3), Outcome::Refusal(3));
    assert!(refused.broken().is_empty());
    let dropped = call(false, Expected::Nothing, Outcome::Dropped);
    assert!(dropped.broken().is_empty());
}

#[test]
fn ck_1_a_function_that_runs_twice_is_found() {
    let mut run = call(true, Expected::Value(3), Outcome::Value(3));
    run.ran(160, 2, 7);
    assert_eq!(run.broken(), ["CK-1"]);
    // Also of a call that was made in turn.
    let mut run = call(true, Expected::Value(3), Outcome::Value(3));
    run.ran(155, 1, hop(7));
    run.ran(165, 1, hop(7));
    assert_eq!(run.broken(), ["CK-1"]);
}

#[test]
fn ck_1_a_function_that_runs_for_no_call_is_found() {
    let mut run = Run::new();
    run.ran(150, 2, 7);
    assert_eq!(run.broken(), ["CK-1"]);
    let mut run = Run::new();
    run.ran(150, 2, hop(7));
    assert_eq!(run.broken(), ["CK-1"]);
}

#[test]
fn ck_2_a_wrong_value_is_found() {
    for (expects, outcome) in [
        (Expected::Value(3), Outcome::Value(4)),
        (Expected::Value(3), Outcome::Refusal(3)),
        (Expected::Refusal(3), Outcome::Refusal(4)),
        (Expected::Refusal(3), Outcome::Value(3)),
        (Expected::Timeout, Outcome::Value(3)),
        (Expected::Value(3), Outcome::Dropped),
    ] {
        assert_eq!(call(true, expects, outcome).broken(), ["CK-2"]);
    }
}

#[test]
fn ck_2_a_value_of_a_function_that_never_ran_or_ran_elsewhere_is_found() {
    let never = call(false, Expected::Value(3), Outcome::Value(3));
    assert_eq!(never.broken(), ["CK-2"]);
    let mut elsewhere = call(false, Expected::Value(3), Outcome::Value(3));
    elsewhere.ran(150, 1, 7);
    assert_eq!(elsewhere.broken(), ["CK-2"]);
}

#[test]
fn ck_3_a_loss_is_allowed_for_a_worker_that_is_lost_and_for_no_other() {
    for kind in [Kind::PeerLost, Kind::ContextLost, Kind::Cancelled] {
        let lost = || call(false, Expected::Value(3), failed(kind, "worker1"));
        assert_eq!(lost().broken(), ["CK-3"]);
        let mut killed = lost();
        killed.killed(180, 1, 2, "worker1");
        assert!(killed.broken().is_empty());
        // Too late to be why.
        let mut killed = lost();
        killed.killed(300, 1, 2, "worker1");
        assert_eq!(killed.broken(), ["CK-3"]);
        // A fault that is over before anybody would be lost by it.
        let mut touched = lost();
        touched.fault(120, 1, 2, "worker1", false);
        assert_eq!(touched.broken(), ["CK-3"]);
        // The caller itself.
        let mut caller = lost();
        caller.fault(120, 1, 1, "worker0", true);
        assert!(caller.broken().is_empty());
    }
}

#[test]
fn ck_3_a_lost_owner_is_the_life_that_made_the_value() {
    let lost = |made: bool| {
        let mut run = Run::new();
        if made {
            run.note(10, 2, Event::Made { value: 9 });
        }
        run.begin_on(20_000, 7, &[9], Expected::Value(3));
        end(&mut run, 20_100, 7, failed(Kind::OwnerLost, "worker1"));
        run
    };
    assert_eq!(lost(true).broken(), ["CK-3"]);
    assert_eq!(lost(false).broken(), ["CK-3"]);
    for made in [true, false] {
        let mut run = lost(made);
        run.killed(1_000, 1, 2, "worker1");
        // The next life is well.
        run.start(2_000, 3, "worker1");
        assert!(run.broken().is_empty());
    }
}

#[test]
fn ck_3_a_life_that_was_lost_once_is_no_excuse_for_values_that_others_made() {
    // A reference is given to `worker1`, which lost a life long ago, and kept, by the one that is well, since.
    let given = |values: &[u64], kind| {
        let mut run = Run::new();
        run.start(0, 4, "worker2");
        run.killed(1_000, 1, 2, "worker1");
        run.start(2_000, 3, "worker1");
        run.note(2_000, DRIVER, Event::FaultOver { number: 1 });
        let (hold, value) = (5, 9);
        run.note(12_000, 4, Event::Kept { hold, value });
        run.note(12_500, 4, Event::Made { value });
        run.note(12_000, 1, Event::Kept { hold: 6, value: 8 });
        run.begin_on(20_000, 7, values, Expected::Value(3));
        end(&mut run, 20_100, 7, failed(kind, "worker1"));
        run
    };
    // Made by another worker; by nobody, and asked for when that life was long over; unknown.
    for values in [&[9][..], &[8], &[9, 8], &[]] {
        let mut run = given(values, Kind::OwnerLost);
        assert_eq!(run.broken(), ["CK-3"], "{values:?}");
        run = given(values, Kind::PeerLost);
        assert_eq!(run.broken(), ["CK-3"], "{values:?}");
        let mut lost = given(values, Kind::OwnerLost);
        lost.killed(20_050, 2, 3, "worker1");
        let expected = if values == [9] { &["CK-3"][..] } else { &[] };
        assert_eq!(lost.broken(), expected, "{values:?}");
    }
    // It has made one of them.
    let mut made = given(&[9, 7], Kind::OwnerLost);
    made.note(500, 2, Event::Made { value: 7 });
    assert!(made.broken().is_empty());
}

#[test]
fn ck_3_what_a_call_was_to_be_answered_with_may_be_lost_long_before() {
    let borrowed = |value| {
        let mut run = Run::new();
        run.start(0, 3, "worker2");
        run.note(10, 3, Event::Made { value: 9 });
        run.note(10, 2, Event::Made { value: 8 });
        run.killed(1_000, 1, 3, "worker2");
        run.note(1_500, DRIVER, Event::FaultOver { number: 1 });
        run.begin(20_000, 7, Expected::Anything);
        run.ran(20_050, 2, 7);
        run.note(20_050, 2, Event::Lent { call: 7, value });
        end(&mut run, 20_100, 7, failed(Kind::OwnerLost, "worker2"));
        run.broken()
    };
    assert!(borrowed(9).is_empty());
    assert_eq!(borrowed(8), ["CK-3"]);
}

#[test]
fn ck_3_a_lost_creator_is_the_life_that_asked_for_the_value() {
    let lost = |life| {
        let value = number(life, 9);
        let mut run = Run::new();
        run.start(0, 3, "worker2");
        run.start(0, 4, "worker3");
        run.note(10, 2, Event::Made { value });
        run.killed(1_000, 1, 3, "worker2");
        run.note(1_500, DRIVER, Event::FaultOver { number: 1 });
        run.begin_on(20_000, 7, &[value], Expected::Value(3));
        end(&mut run, 20_100, 7, failed(Kind::CreatorLost, "worker2"));
        run.broken()
    };
    assert!(lost(3).is_empty());
    assert_eq!(lost(4), ["CK-3"]);
}

#[test]
fn ck_3_a_time_limit_may_not_come_early_nor_for_nothing() {
    let late = |ms: u64| {
        let mut run = Run::new();
        run.begin(100, 7, Expected::Value(3));
        end(&mut run, ms, 7, failed(Kind::Timeout, "worker1"));
        run
    };
    // Of 10 s.
    assert_eq!(late(5_000).broken(), ["CK-3"]);
    assert_eq!(late(10_101).broken(), ["CK-3"]);
    let mut touched = late(10_101);
    touched.fault(5_000, 1, 2, "worker1", false);
    touched.note(5_500, DRIVER, Event::FaultOver { number: 1 });
    assert!(touched.broken().is_empty());
    let mut meant = Run::new();
    meant.begin(100, 7, Expected::Timeout);
    end(&mut meant, 10_101, 7, failed(Kind::Timeout, "worker1"));
    assert!(meant.broken().is_empty());
}

#[test]
fn ck_3_some_errors_are_allowed_for_nothing() {
    let mut run = call(
        true,
        Expected::Value(3),
        failed(Kind::Unexpected, "worker1"),
    );
    run.killed(150, 1, 2, "worker1");
    assert_eq!(run.broken(), ["CK-3"]);
}

#[test]
fn ck_4_a_call_that_never_ends_or_ends_twice_is_found() {
    let mut run = Run::new();
    run.begin(100, 7, Expected::Value(3));
    run.note(500, 1, Event::Quiet);
    assert_eq!(run.broken(), ["CK-4"]);
    // Its caller was killed before it had to be over.
    let mut run = Run::new();
    run.begin(100, 7, Expected::Value(3));
    run.killed(500, 1, 1, "worker0");
    assert!(run.broken().is_empty());
    let mut run = call(true, Expected::Value(3), Outcome::Value(3));
    end(&mut run, 300, 7, Outcome::Value(3));
    assert_eq!(run.broken(), ["CK-4"]);
}

/// A call of life 1 at 100 ms, and a run that lasts for another 20 s. It has to be over at 16.1 s: a limit of 10 s, 5 s for whatever
/// is slow, and 1 s, as long as one may stand still so that nobody notes it.
fn begun(expects: Expected) -> Run {
    let mut run = Run::new();
    run.begin(100, 7, expects);
    run.note(20_100, 2, Event::Quiet);
    run
}

#[test]
fn ck_4_a_call_that_is_not_over_when_its_limit_is_is_found_though_its_caller_still_waits() {
    assert_eq!(begun(Expected::Value(3)).broken(), ["CK-4"]);
    // Its caller ended long after that, or before.
    for (ms, expected) in [(18_000, &["CK-4"][..]), (16_000, &[])] {
        let mut killed = begun(Expected::Value(3));
        killed.killed(ms, 1, 1, "worker0");
        assert_eq!(killed.broken(), expected, "{ms}");
    }
}

#[test]
fn ck_4_a_call_that_ends_long_after_its_limit_is_found() {
    let late = |ms| {
        let mut run = begun(Expected::Timeout);
        end(&mut run, ms, 7, failed(Kind::Timeout, "worker1"));
        run
    };
    assert!(late(16_000).broken().is_empty());
    assert_eq!(late(16_200).broken(), ["CK-4"]);
    // Two limits, one after the other.
    let mut two = late(16_200);
    for record in &mut two.0 {
        if let Event::Begun { limits, .. } = &mut record.event {
            *limits = 2;
        }
    }
    assert!(two.broken().is_empty());
}

#[test]
fn ck_4_a_caller_that_did_not_get_to_run_may_be_late() {
    // Stopped for less than anybody would be lost by.
    let mut stopped = begun(Expected::Value(3));
    stopped.fault(5_000, 1, 1, "worker0", false);
    stopped.note(5_500, DRIVER, Event::FaultOver { number: 1 });
    assert!(stopped.broken().is_empty());
    let mut silent = begun(Expected::Value(3));
    for ms in [5_000, 7_000] {
        silent.note(ms, 1, Event::Sampled(Sample::default()));
    }
    assert!(silent.broken().is_empty());
    let mut stalled = begun(Expected::Value(3));
    stalled.note(5_000, DRIVER, Event::Stalled { micros: 800_000 });
    assert!(stalled.broken().is_empty());
    // The one that it called is no excuse, nor is what was over before.
    let mut other = begun(Expected::Value(3));
    other.fault(5_000, 1, 2, "worker1", false);
    assert_eq!(other.broken(), ["CK-4"]);
    let mut before = begun(Expected::Value(3));
    before.fault(10, 1, 1, "worker0", false);
    before.note(50, DRIVER, Event::FaultOver { number: 1 });
    assert_eq!(before.broken(), ["CK-4"]);
}
