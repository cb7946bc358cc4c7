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

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed: farref.torch cannot be tried"
)


def run(program, workers, folder, **more):
    return torch_workers.run(PROGRAMS, program, workers, folder, **more)


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    printed = run("laws", 3, tmp_path_factory.mktemp("laws"))
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))


@pytest.mark.parametrize("law", LAWS)
def test_law(said, law):
    assert said[law] is None, said[law]


@pytest.mark.parametrize(
    "program, workers, dies",
    [
        ("a_worker_that_dies_in_a_pass_is_an_error_and_its_context_ends", 3, [2]),
        ("contexts_of_an_earlier_group_are_not_those_of_this_one", 2, ()),
        ("contexts_of_a_worker_are_not_those_of_another_with_its_id", 3, ()),
        ("contexts_of_dead_workers_end", 4, [1, 3]),
    ],
)
def test_program(tmp_path, program, workers, dies):
    run(program, workers, tmp_path, dies=dies)
