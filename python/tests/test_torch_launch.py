"""Programs of torch.distributed.rpc are started on farref: by themselves, and by the launcher."""

import importlib.util
import pathlib
import sys

import pytest
from testkit import run, rust_program

PROGRAM = pathlib.Path(__file__).parent / "torch_spawning.py"

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


def test_processes_that_a_program_spawns_run_on_farref_like_itself(tmp_path):
    assert run([sys.executable, "-m", "farref.torch", PROGRAM, tmp_path / "store"]).splitlines() == [
        "this worker runs on farref",
        "the other one runs on farref",
    ]


def test_the_launcher_starts_programs_on_farref():
    farref = rust_program("farref-cli", "bin", "farref")
    assert run([farref, "launch", "-n", "2", "--torch", "--", sys.executable, PROGRAM, "launched"]).splitlines() == [
        "[0] this worker runs on farref",
        "[0] the other one runs on farref",
    ]
