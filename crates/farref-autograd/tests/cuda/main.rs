//! Tensors on a real CUDA device, between real processes: values, references, gradients, death. Needs a GPU, and the feature
//! `cuda`: docs/cuda.md says how this is built and run.

#[path = "../common/mod.rs"]
mod common;

mod copied_times;
mod departures;
mod gradients;
mod group;
mod memory;
mod times;
mod values;

use std::process::ExitCode;

use anyhow::Result;
use common::processes::{Role, exit_code, in_runtime};
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    if let Some(role) = Role::of_this_process() {
        let served = role.and_then(|role| in_runtime(group::be_worker(&role)));
        return exit_code(served);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) == Some("times") {
        return exit_code(times::measure(&arguments[1..]));
    }
    let mut arguments = Arguments::from_args();
    // One GPU, and tests that look at how much of it is used.
    arguments.test_threads = Some(1);
    let trial = |name: &str, test: fn() -> Result<()>| {
        Trial::test(name, move || {
            test().map_err(|error| Failed::from(format!("{error:?}")))
        })
    };
    macro_rules! trials {
        ($($module:ident::$name:ident),* $(,)?) => {
            vec![$(trial(concat!(stringify!($module), "::", stringify!($name)), || {
                in_runtime($module::$name())
            })),*]
        };
    }
    let trials = trials![
        values::every_type_arrives_as_it_is_shared_and_copied,
        values::a_tensor_of_another_device_of_candles_arrives,
        values::a_tensor_without_elements_arrives,
        values::every_view_arrives_as_what_it_shows,
        values::many_tensors_travel_in_one_message,
        values::what_a_peer_computes_on_shared_memory_is_right_whatever_is_still_running,
        values::ct6_what_one_thread_computes_other_threads_and_peers_read,
        values::a_map_says_where_tensors_arrive,
        values::a_device_that_is_not_there_is_an_error_that_names_both_sides,
        values::a_tensor_that_comes_home_is_the_one_that_left,
        values::a_tensor_that_is_sent_again_and_again_is_shared_each_time,
        memory::shared_tensors_take_no_memory_of_the_receiver,
        memory::ct1_memory_is_kept_until_its_last_user_has_let_go,
        memory::ct1_what_a_killed_peer_used_is_released,
        memory::a_peer_goes_on_with_memory_whose_owner_was_killed,
        memory::what_is_handed_on_outlives_who_handed_it_on,
        memory::ct3_beyond_the_limit_tensors_are_copied,
        memory::large_tensors_that_are_copied_arrive_whole,
        memory::a_group_ends_well_right_after_many_tensors_came_again_and_again,
        memory::a_thousand_rounds_leave_no_memory_behind,
        departures::ct1_memory_stays_as_long_as_a_process_uses_it_that_has_left,
        departures::ct1_memory_stays_as_it_is_when_its_owner_has_left,
        departures::ct7_what_a_peer_has_changed_is_changed_when_it_comes_home_or_is_handed_on,
        departures::ct7_a_tensor_whose_owner_died_before_it_was_done_stops_nobody_and_is_not_sent_on,
        departures::an_address_that_is_used_again_has_another_id,
        gradients::training_over_processes_has_the_losses_of_one,
        gradients::gradients_come_back_from_where_a_map_sent_their_tensors,
        gradients::an_optimizer_over_processes_does_as_one,
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}
