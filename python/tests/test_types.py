"""Programs with types: type checkers find no error in them, and those that there are."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")
# The package as tests see it may be one that is not installed.
PACKAGES = pathlib.Path(importlib.util.find_spec("farref").origin).parent.parent


def marked():
    lines = enumerate(PROGRAM.read_text().splitlines(), 1)
    return {number for number, line in lines if line.endswith("# error")}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_type_checkers_find_the_errors_of_a_program_and_no_others(checker, tmp_path):
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    program = tmp_path / PROGRAM.name
    program.write_text(PROGRAM.read_text())
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = True\nmypy_path = {PACKAGES}\ncache_dir = {tmp_path / 'cache'}\n")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(PACKAGES)], "typeCheckingMode": "standard"}))
    options = [str(program)] if checker == "mypy" else ["-p", str(tmp_path)]
    command = [sys.executable, "-m", checker, *options]
    said = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    found = {int(line) for line in re.findall(rf"{PROGRAM.name}:(\d+)\S* (?:- )?error", said.stdout)}
    assert found == marked(), said.stdout + said.stderr
