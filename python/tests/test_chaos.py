"""`farref chaos` with Python workers among the Rust ones."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from processes import environment, is_stale

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE = 300


@pytest.fixture(scope="module")
def farref():
    """The command with this part of it, built if it has not been or is older than its source."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    program = target / "debug" / "farref"
    has_chaos = not is_stale(program) and subprocess.run([program, "chaos", "--help"], capture_output=True).returncode == 0
    if not has_chaos:
        subprocess.run(["cargo", "build", "--quiet", "-p", "farref-cli", "--features", "chaos"], cwd=ROOT, check=True)
    return str(program.resolve())


def test_python_workers_keep_what_is_promised_while_some_are_killed(farref):
    command = [farref, "chaos", "--workers", "5", "--python", "2", "--python-program", sys.executable]
    command += ["--seconds", "12", "--operations-per-second", "60", "--peer-timeout", "4", "--seed", "3", "--json", "-"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert report["violations"] == []
    assert report["calls"]["brought_values"] > 50
    assert {life["worker"] for life in report["lives"]} >= {"python3", "python4"}
