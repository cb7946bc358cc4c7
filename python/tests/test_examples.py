"""The examples run, and are short."""

import subprocess
import sys
from pathlib import Path

import pytest
from processes import environment, rust_program

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example):
    if example.with_suffix(".rs").exists():  # a Rust worker belongs to it
        pytest.importorskip("numpy")
        rust_program(example.stem)
        assert len(example.with_suffix(".rs").read_text().splitlines()) <= 150
    ran = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=300, env=environment())
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout and len(example.read_text().splitlines()) <= 150


def test_there_are_examples():
    assert EXAMPLES
