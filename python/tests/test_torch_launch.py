"""Programs of torch.distributed.rpc are started on farref: by themselves, and by the launcher."""

import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest
from processes import environment, is_stale

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(__file__).parent / "torch_spawning.py"
PATIENCE = 120

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


@pytest.fixture(scope="module")
def farref():
    """The command, built if it has not been or is older than its source (`cargo test --workspace` builds it, too)."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "debug" / "farref"
    if is_stale(program):
        subprocess.run(["cargo", "build", "--quiet", "-p", "farref-cli"], cwd=ROOT, check=True)
    return str(program.resolve())


def lines(command):
    """What a program prints that ends well."""
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_processes_that_a_program_spawns_run_on_farref_like_itself(tmp_path):
    assert lines([sys.executable, "-m", "farref.torch", str(PROGRAM), str(tmp_path / "store")]) == [
        "this worker runs on farref",
        "the other one runs on farref",
    ]


def test_the_launcher_starts_programs_on_farref(farref):
    assert lines([farref, "launch", "-n", "2", "--torch", "--", sys.executable, str(PROGRAM), "launched"]) == [
        "[0] this worker runs on farref",
        "[0] the other one runs on farref",
    ]
