"""Gradients over workers are those of one process.

One group of real processes runs the programs of ``torch_gradients.py``; each is a test here.
"""

import importlib.util
import json
import pathlib
import re

import pytest
import torch_workers

PROGRAMS = pathlib.Path(__file__).parent / "torch_gradients.py"
LAWS = re.findall(r"^@law\ndef (\w+)", PROGRAMS.read_text(), re.MULTILINE)
PATIENCE = 240

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


def run(program, workers, folder, **more):
    return torch_workers.run(PROGRAMS, program, workers, folder, PATIENCE, **more)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    printed = run("laws", 3, tmp_path_factory.mktemp("laws"))
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


@pytest.mark.parametrize("law", LAWS)
def test_law(said, law):
    assert said[law] is None, said[law]


def test_a_worker_that_dies_in_a_pass_is_an_error_and_the_context_goes(tmp_path):
    run("killed", 3, tmp_path, dies=[2])


def test_contexts_of_an_earlier_group_are_not_taken_for_those_of_this_one(tmp_path):
    run("exchanged", 2, tmp_path)


def test_contexts_of_a_worker_are_not_taken_for_those_of_another_that_had_its_id(tmp_path):
    run("replaced", 3, tmp_path)


def test_contexts_that_nobody_can_end_any_more_end(tmp_path):
    run("orphans", 4, tmp_path, dies=[1, 3])
