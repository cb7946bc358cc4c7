"""`farref-chaos` with Python workers among the Rust ones."""

import json
import sys

from testkit import run, rust_program


def test_python_workers_keep_promises_while_some_are_killed():
    command = [rust_program("farref-chaos", "bin", "farref-chaos")]
    command += ["--workers", "5", "--python", "2", "--python-program", sys.executable]
    command += ["--seconds", "12", "--operations-per-second", "60", "--peer-timeout", "8", "--seed", "3", "--json", "-"]
    report = json.loads(run(command))
    assert report["violations"] == []
    assert report["calls"]["brought_values"] > 50
    assert {life["worker"] for life in report["lives"]} >= {"python3", "python4"}
