"""What the documentation and the type stubs say is what there is."""

import ast
import doctest
import importlib
import pathlib

import pytest


@pytest.mark.parametrize("name", ["farref", "farref.testing", "farref._worker", "farref._context", "farref._remote"])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0


STUBS = sorted(pathlib.Path(importlib.import_module("farref").__file__).parent.glob("*.pyi"))


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.stem)
def test_type_stubs_name_what_there_is(stub):
    module = importlib.import_module(f"farref.{stub.stem}")
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ClassDef) and hasattr(module, node.name):
            theirs = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
            ours = {name for name in vars(getattr(module, node.name)) if not name.startswith("_")}
            missing = [name for name in theirs if not hasattr(getattr(module, node.name), name)]
            assert not missing and ours <= theirs, (node.name, missing, ours - theirs)
        elif isinstance(node, ast.FunctionDef):
            assert hasattr(module, node.name), node.name


def test_public_names_are_documented():
    farref = importlib.import_module("farref")
    assert [name for name in farref.__all__ if not getattr(farref, name).__doc__] == []
