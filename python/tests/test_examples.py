"""The examples run, and are short."""

import sys
from pathlib import Path

import pytest
from testkit import run, rust_program

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_an_example_runs(example):
    if example.with_suffix(".rs").exists():  # a Rust worker belongs to it
        pytest.importorskip("numpy")
        rust_program("farref-pickle", "example", example.stem)
        assert len(example.with_suffix(".rs").read_text().splitlines()) <= 150
    assert run([sys.executable, example]) and len(example.read_text().splitlines()) <= 150


def test_there_are_examples():
    assert EXAMPLES
