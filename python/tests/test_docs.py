"""What the documentation says is what happens."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["farref", "farref.testing", "farref._worker", "farref._scope", "farref._remote"])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(name)
    failed, tried = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert tried > 0 and failed == 0
