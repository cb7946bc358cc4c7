"""What the stubs say is there, is there; and the other way round."""

import ast
import importlib.util
import pathlib

from farref import _core


def stub():
    """Functions, and classes with their attributes, as the stub has them."""
    # Beside the package's own files: the core's name has more in it.
    path = pathlib.Path(importlib.util.find_spec("farref").origin).with_name("_core.pyi")
    functions, classes = set(), {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            functions.add(node.name)
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = {member.name for member in node.body if isinstance(member, ast.FunctionDef)}
    return functions, classes


def plain(names):
    return {name for name in names if not name.startswith("__")}


def test_the_stub_has_the_functions_and_classes_of_the_core():
    functions, classes = stub()
    core = {name for name, value in vars(_core).items() if not name.startswith("__")}
    # Classes that Python gets to see only through their objects are not among the core's names.
    assert functions | set(classes) - {"Completion"} == core


def test_the_stub_has_the_attributes_of_each_class():
    _, classes = stub()
    for name, attributes in classes.items():
        of = getattr(_core, name, None)
        if of is not None:
            assert plain(attributes) == plain(vars(of)), name
