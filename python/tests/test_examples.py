"""The examples run, and are short."""

import subprocess
import sys
from pathlib import Path

import pytest
from processes import environment

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example):
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300, env=environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout and len(example.read_text().splitlines()) <= 150


def test_there_are_examples():
    assert EXAMPLES
