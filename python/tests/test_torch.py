"""Programs of torch.distributed.rpc run on farref unchanged, and without PyTorch's defects.

Each test starts the workers of one program as real processes (``torch_scenarios.py``).
"""

import importlib.util
import pathlib
import socket
import subprocess
import sys

import pytest
import torch_workers

SCENARIOS = pathlib.Path(__file__).parent / "torch_scenarios.py"
PATIENCE = 120

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


def run(scenario, workers, folder, **more):
    torch_workers.run(SCENARIOS, scenario, workers, folder, PATIENCE, **more)


def test_calls_give_what_they_give_with_pytorch(tmp_path):
    run("calls", 2, tmp_path)


def test_values_live_as_long_as_somebody_refers_to_them(tmp_path):
    run("references", 3, tmp_path)


def test_futures_are_waited_for_by_any_number_of_threads_callbacks_and_the_shutdown(tmp_path):
    run("futures", 2, tmp_path)


def test_calls_whose_futures_nobody_keeps_end_and_leave_nothing_behind(tmp_path):
    run("unkept", 2, tmp_path)


def test_arguments_arrive_as_they_are_whatever_form_they_have(tmp_path):
    run("forms", 2, tmp_path)


def test_a_killed_worker_does_not_hang_the_shutdown(tmp_path):
    run("killed", 3, tmp_path, dies=[2])


def test_a_call_that_is_carried_out_when_its_worker_ends_is_answered(tmp_path):
    run("answered_at_the_end", 2, tmp_path)


def test_what_a_dead_worker_held_is_freed(tmp_path):
    run("held_by_the_dead", 2, tmp_path, dies=[1])


def test_a_process_can_be_in_two_groups_one_after_the_other(tmp_path):
    run("twice", 2, tmp_path)


def test_gradients_come_from_all_workers_and_unused_results_hold_nothing_up(tmp_path):
    run("autograd", 3, tmp_path)


def test_what_is_not_supported_says_so_by_its_name(tmp_path):
    run("not_there", 1, tmp_path)


@pytest.mark.parametrize("has_map", ["", "yes"])
def test_tensors_on_devices_that_no_map_names_are_refused_as_pytorch_does(tmp_path, has_map):
    run("devices", 2, tmp_path, SCENARIO_MAP=has_map)


def test_workers_join_and_leave_a_group_of_no_fixed_size(tmp_path):
    run("dynamic", 3, tmp_path)


def test_what_the_environment_says_of_ranks_is_not_for_groups_of_no_fixed_size(tmp_path):
    run("dynamic", 2, tmp_path, FARREF_TOKEN="swordfish", RANK="0", WORLD_SIZE="9")


def test_groups_meet_at_addresses_of_the_network_if_that_is_said_to_be_safe(tmp_path):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as seen:
        try:
            seen.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            pytest.skip("this host has no address but its own")
        address = seen.getsockname()[0]
    with socket.create_server((address, 0)) as free:
        place = f"tcp://{address}:{free.getsockname()[1]}"
    run("calls", 2, tmp_path, SCENARIO_PLACE=place, FARREF_INSECURE="1")


def test_ddp_in_a_context_is_refused_and_not_left_out(tmp_path):
    run("ddp_in_a_context", 2, tmp_path)


def test_an_import_that_comes_too_late_says_so():
    program = "import torch\ntry:\n import farref.torch\nexcept ImportError as error:\n assert 'first' in str(error)\nelse:\n raise SystemExit(1)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
