//! Which faults that can be switched on in `farref` these scenarios notice.

use crate::Mutation;

/// Which scenario notices which fault. Who notices the others: `farref-promises` has a test that nobody is left out.
pub const NOTICED: [(Mutation, &str); 8] = [
    (Mutation::ReleaseMarked, "sd_1_what_is_queued_is_written"),
    (
        Mutation::HandOverInSilence,
        "sd_1_what_is_queued_is_written",
    ),
    (
        Mutation::LookBeforeWatching,
        "d4_who_watches_hears_of_the_cancellation",
    ),
    (
        Mutation::EndInSilence,
        "rp_1_who_waits_gets_the_reply_or_learns_of_none",
    ),
    (
        Mutation::GiveToTheGone,
        "tp_2_a_task_that_is_gone_gets_no_call",
    ),
    (Mutation::NoClaim, "bp_2_each_job_has_its_thread"),
    (
        Mutation::TimerNotTold,
        "ti_1_the_timer_looks_when_the_moment_comes",
    ),
    (Mutation::ForgetAfterLooking, "dl_1_late_calls_are_ended"),
];
