"""Programs of torch.distributed.rpc run on farref unchanged, and without PyTorch's defects.

Each test starts the workers of one program as real processes (``torch_scenarios.py``).
"""

import importlib.util
import pathlib
import socket
import sys

import pytest
import torch_workers
from testkit import free_port, run as run_program

SCENARIOS = pathlib.Path(__file__).parent / "torch_scenarios.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


def run(scenario, workers, folder, **more):
    torch_workers.run(SCENARIOS, scenario, workers, folder, **more)


@pytest.mark.parametrize(
    "scenario, workers, dies",
    [
        ("calls_give_what_they_give_with_pytorch", 2, ()),
        ("values_live_as_long_as_references_to_them", 3, ()),
        ("futures_are_waited_for_by_threads_callbacks_and_shutdown", 2, ()),
        ("calls_whose_futures_are_dropped_leave_nothing_behind", 2, ()),
        ("arguments_of_all_forms_arrive_as_they_are", 2, ()),
        ("a_killed_worker_does_not_hang_the_shutdown", 3, [2]),
        ("a_call_that_runs_when_its_worker_ends_is_answered", 2, ()),
        ("what_a_dead_worker_held_is_freed", 2, [1]),
        ("a_process_can_be_in_two_groups_one_after_the_other", 2, ()),
        ("gradients_come_from_all_workers_despite_unused_results", 3, ()),
        ("what_is_not_supported_is_named", 1, ()),
        ("workers_join_and_leave_a_group_of_no_fixed_size", 3, ()),
        ("ddp_in_a_context_is_refused", 2, ()),
    ],
)
def test_scenario(tmp_path, scenario, workers, dies):
    run(scenario, workers, tmp_path, dies=dies)


@pytest.mark.parametrize("has_map", ["", "yes"])
def test_tensors_on_devices_that_no_map_names_are_refused_as_pytorch_does(tmp_path, has_map):
    run("tensors_on_devices_that_no_map_names_are_refused", 2, tmp_path, SCENARIO_MAP=has_map)


def test_what_the_environment_says_of_ranks_is_not_for_groups_of_no_fixed_size(tmp_path):
    run("workers_join_and_leave_a_group_of_no_fixed_size", 2, tmp_path, FARREF_TOKEN="swordfish", RANK="0", WORLD_SIZE="9")


def test_groups_meet_at_addresses_of_the_network_if_that_is_said_to_be_safe(tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as seen:
        try:
            seen.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this host has no address but its own")
        address = seen.getsockname()[0]
    place = f"tcp://{address}:{free_port(address)}"
    run("calls_give_what_they_give_with_pytorch", 2, tmp_path, SCENARIO_PLACE=place, FARREF_INSECURE="1")


def test_an_import_that_comes_too_late_says_so():
    program = "import torch\ntry:\n import farref.torch\nexcept ImportError as error:\n assert 'first' in str(error)\nelse:\n raise SystemExit(1)"
    run_program([sys.executable, "-c", program])
