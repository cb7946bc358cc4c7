//! Faults that tests of `farref` notice.

use farref_schedules::Mutation;

use Tests::{Laws, Processes};

/// A fault, and a test that fails with it.
#[derive(Clone, Copy, Debug)]
pub struct Noticed {
    /// What can be switched on.
    pub fault: Mutation,
    /// The number of the promise that it breaks.
    pub promise: &'static str,
    /// Where the test is.
    pub tests: Tests,
    /// The test, as it is called there.
    pub test: &'static str,
    /// What it says when it fails, among other things: that it is this that it has noticed.
    pub says: &'static str,
}

/// The programs with tests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tests {
    /// Groups in one process.
    Laws,
    /// Groups of real processes.
    Processes,
}

impl Tests {
    /// As cargo calls it.
    pub fn name(self) -> &'static str {
        match self {
            Laws => "laws",
            Processes => "processes",
        }
    }
}

/// All of them.
pub const NOTICED: &[Noticed] = &[
    Noticed {
        fault: Mutation::RunTwice,
        promise: "D1",
        tests: Laws,
        test: "seam::a_call_that_comes_twice_runs_at_most_once",
        says: "it ran 2 times",
    },
    Noticed {
        fault: Mutation::KeepParked,
        promise: "D4",
        tests: Processes,
        test: "a_call_cancelled_before_it_is_sent_is_never_sent",
        says: "never: the call's reference is released",
    },
    Noticed {
        fault: Mutation::IgnoreWindow,
        promise: "D5",
        tests: Processes,
        test: "no_more_calls_run_at_once_than_the_callee_accepts",
        says: "more than it accepts: ",
    },
    Noticed {
        fault: Mutation::NoAnswerBudget,
        promise: "D5",
        tests: Processes,
        test: "a_caller_that_does_not_read_its_answers_holds_up_nobody_else",
        says: "MiB for answers of",
    },
    Noticed {
        fault: Mutation::IgnoreRefusal,
        promise: "P1",
        tests: Laws,
        test: "authorization::nothing_of_a_refused_call_is_read_or_run",
        says: "expected a refusal of permitted::count, got Ok(())",
    },
    Noticed {
        fault: Mutation::AskOwnCalls,
        promise: "P2",
        tests: Laws,
        test: "authorization::neither_a_workers_own_calls_are_asked_about_nor_what_is_behind_references_and_streams",
        says: "`permitted::secret` was refused",
    },
    Noticed {
        fault: Mutation::NameItself,
        promise: "P3",
        tests: Laws,
        test: "authorization::it_is_said_who_calls_and_that_is_the_last_of_a_chain_of_callers",
        says: "expected a refusal of permitted::secret, got Ok(7)",
    },
    Noticed {
        fault: Mutation::TimeConstructors,
        promise: "R6",
        tests: Processes,
        test: "a_slow_constructor_is_no_timeout",
        says: "Slow::made_at` on worker `a` took longer than",
    },
    Noticed {
        fault: Mutation::AnySignature,
        promise: "R8",
        tests: Laws,
        test: "signatures::a_function_with_another_signature_is_an_error_that_names_both",
        says: r#"Ok("texttext")"#,
    },
    Noticed {
        fault: Mutation::AnyType,
        promise: "R8",
        tests: Processes,
        test: "a_reference_is_not_read_as_one_to_another_type",
        says: "a probe was read as a text",
    },
    Noticed {
        fault: Mutation::LaterBatchFirst,
        promise: "T1",
        tests: Laws,
        test: "streams::all_items_come_in_order_and_then_the_end",
        says: "all(numbers::on(to, 0, count).await?).await? == expected",
    },
    Noticed {
        fault: Mutation::AskFarAhead,
        promise: "T2",
        tests: Laws,
        test: "streams::a_slow_reader_holds_the_maker_back",
        says: "items ahead of",
    },
    Noticed {
        fault: Mutation::ReaderStays,
        promise: "T3",
        tests: Laws,
        test: "streams::ending::dropping_the_reader_drops_what_makes_the_items",
        says: "never: the count is reached",
    },
    Noticed {
        fault: Mutation::PanicIsEnd,
        promise: "T4",
        tests: Laws,
        test: "streams::ending::a_panic_comes_after_the_items_before_it",
        says: "after 0 items, instead of the panic: None",
    },
    Noticed {
        fault: Mutation::AdmitAllReaders,
        promise: "T5",
        tests: Laws,
        test: "streams::handing_on::a_stream_has_one_reader",
        says: "a second reader was given Some(Ok(",
    },
    Noticed {
        fault: Mutation::PullWithinCall,
        promise: "T6",
        tests: Laws,
        test: "streams::a_stream_outlives_the_limit_of_its_call",
        says: "nobody reads any more",
    },
    Noticed {
        fault: Mutation::PublishOwnOnly,
        promise: "N1",
        tests: Laws,
        test: "naming::n1_any_reference_can_be_published_by_whoever_holds_it_and_outlives_its_name",
        says: "a name has 1 to 255 bytes",
    },
    Noticed {
        fault: Mutation::SameVersion,
        promise: "N2",
        tests: Laws,
        test: "naming::n2_what_is_published_again_takes_the_place_of_what_was_and_is_newer",
        says: "`second.number() > first.number()`",
    },
    Noticed {
        fault: Mutation::KeepLostNames,
        promise: "N3",
        tests: Laws,
        test: "naming::n3_names_go_with_their_publisher_and_with_the_owner_of_their_value",
        says: "which had the value, is gone",
    },
    Noticed {
        fault: Mutation::HighestCounts,
        promise: "N4",
        tests: Laws,
        test: "naming::n4_in_the_group_the_lowest_number_counts_and_the_dead_do_not",
        says: "`find().await? == 1` (3 vs 1)",
    },
    Noticed {
        fault: Mutation::KeepNamesAtEnd,
        promise: "N5",
        tests: Laws,
        test: "naming::n5_what_is_published_at_the_end_is_no_leak_and_holds_nobody_up",
        says: "references were never dropped",
    },
    Noticed {
        fault: Mutation::ErrorsUnnamed,
        promise: "F4",
        tests: Processes,
        test: "f4_errors_of_calls_are_typed",
        says: r#"the wrong error: Remote(RemoteError { worker: "a", function: ,"#,
    },
    Noticed {
        fault: Mutation::ErrorsAreText,
        promise: "F5",
        tests: Processes,
        test: "f5_a_functions_own_error_arrives_as_what_it_is",
        says: "it has become another error",
    },
    Noticed {
        fault: Mutation::OutOfSight,
        promise: "F9",
        tests: Processes,
        test: "w1_w2_a_killed_worker_and_its_next_life_are_told",
        says: "nothing is told",
    },
    Noticed {
        fault: Mutation::WatchFromNow,
        promise: "W1",
        tests: Laws,
        test: "watching::w1_those_who_are_there_come_first_and_then_it_is_said_that_they_are_all",
        says: r#"left: "complete""#,
    },
    Noticed {
        fault: Mutation::TellUnmet,
        promise: "W2",
        tests: Laws,
        test: "watching::w2_w3_of_lives_that_nobody_read_of_only_the_last_is_told_and_no_end_is_missed",
        says: r#"("joined short", "#,
    },
    Noticed {
        fault: Mutation::LoseSecondEvent,
        promise: "W2",
        tests: Laws,
        test: "watching::w2_w3_of_lives_that_nobody_read_of_only_the_last_is_told_and_no_end_is_missed",
        says: r#"left: [("died worker1", "#,
    },
    Noticed {
        fault: Mutation::NoLastWord,
        promise: "W4",
        tests: Laws,
        test: "watching::w4_the_stream_ends_with_its_worker_and_says_how",
        says: "the stream of members is over",
    },
    Noticed {
        fault: Mutation::GoneWhileThere,
        promise: "W5",
        tests: Laws,
        test: "watching::w5_gone_is_about_the_life_that_was_there_when_it_was_asked_for",
        says: "of_second.as_mut().poll(&mut context).is_pending()",
    },
    Noticed {
        fault: Mutation::HurryWorkers,
        promise: "S1a",
        tests: Laws,
        test: "serving::s1a_the_clock_of_a_shutdown_starts_when_all_have_asked",
        says: "was lost before it answered `laws::serving::add`",
    },
    Noticed {
        fault: Mutation::ForgetOrigins,
        promise: "S2",
        tests: Processes,
        test: "s2_a_leak_that_was_handed_on_names_its_line_its_maker_and_its_way",
        says: r#"no "functions::Probe on `owner`, held by holder, made at"#,
    },
    Noticed {
        fault: Mutation::PeerIsSender,
        promise: "V1",
        tests: Laws,
        test: "peers::v1_a_peer_anywhere_in_a_value_arrives_as_the_receivers_own",
        says: r#"left: ["worker0", "worker0", "worker0""#,
    },
];
