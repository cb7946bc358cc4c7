"""Tensors on a CUDA device, on a machine that has one: programs of ``cuda_programs.py``, as real processes."""

import importlib.util
import pathlib

import pytest
import torch_workers

PROGRAMS = pathlib.Path(__file__).parent / "cuda_programs.py"


def has_gpu():
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


pytestmark = pytest.mark.skipif(not has_gpu(), reason="no torch that sees a GPU")


def run(program, workers, folder, **more):
    print(torch_workers.run(PROGRAMS, program, workers, folder, **more))


def test_tensors_arrive_as_they_are_whatever_their_type_and_form(tmp_path):
    run("values", 2, tmp_path)


def test_large_tensors_are_the_same_memory_on_both_workers_and_small_ones_are_copied(tmp_path):
    run("shared", 2, tmp_path)


def test_gu4_what_is_read_waits_for_what_makes_it(tmp_path):
    run("order", 2, tmp_path)


def test_a_map_says_where_tensors_arrive_and_a_device_that_is_not_there_is_an_error(tmp_path):
    run("maps", 2, tmp_path)


def test_workers_that_do_not_share_a_host_get_copies(tmp_path):
    run("elsewhere", 2, tmp_path)


def test_a_thousand_rounds_leave_no_memory_behind(tmp_path):
    run("rounds", 2, tmp_path)


def test_gu1_what_a_killed_worker_used_is_given_back(tmp_path):
    run("killed_user", 2, tmp_path, dies=[1])


def test_gu1_what_a_worker_uses_that_has_left_is_used_for_nothing_else(tmp_path):
    run("left_user", 2, tmp_path)


def test_gu1_what_a_worker_uses_that_was_taken_for_dead_is_used_for_nothing_else(tmp_path):
    run("stopped_user", 2, tmp_path)


def test_gu2_memory_is_given_back_beside_a_graph_that_is_captured_and_does_not_disturb_it(tmp_path):
    run("captured", 2, tmp_path)


def test_gu3_what_came_back_is_mapped_by_nobody(tmp_path):
    run("most", 2, tmp_path)


def test_gu4_what_a_sender_begins_later_is_not_waited_for(tmp_path):
    run("events", 2, tmp_path)


def test_a_program_ends_well_while_its_device_works_on_memory_of_others(tmp_path):
    run("ends_at_work", 2, tmp_path)


def test_a_worker_goes_on_with_memory_whose_owner_was_killed(tmp_path):
    run("killed_owner", 2, tmp_path, dies=[1])


def test_pytorchs_calls_take_and_return_them_as_copies(tmp_path):
    run("torch_values", 2, tmp_path)


def test_pytorchs_calls_wait_for_what_makes_tensors_on_any_stream(tmp_path):
    run("torch_order", 2, tmp_path)


def test_without_a_map_pytorchs_calls_refuse_them_as_pytorch_does(tmp_path):
    run("torch_refused", 2, tmp_path)


def test_a_map_to_the_cpu_is_one_back_from_it_and_gradients_come_home(tmp_path):
    run("torch_to_the_cpu", 2, tmp_path)


def test_gradients_over_workers_are_those_of_one_process(tmp_path):
    run("torch_autograd", 3, tmp_path)


def test_gradients_are_in_order_on_a_stream_of_the_programs_own(tmp_path):
    run("torch_autograd_aside", 3, tmp_path)


def test_when_one_of_pytorchs_calls_is_answered_its_arguments_have_been_read(tmp_path):
    run("torch_read", 2, tmp_path)


def test_what_a_worker_sends_to_itself_from_another_stream_arrives_as_it_was(tmp_path):
    run("torch_to_itself", 2, tmp_path)


def test_a_thousand_of_pytorchs_calls_leave_no_memory_behind(tmp_path):
    run("torch_rounds", 2, tmp_path)


def test_memory_that_was_on_its_way_to_a_killed_worker_is_given_back(tmp_path):
    run("torch_killed", 2, tmp_path, dies=[1])
