"""Workers in processes of their own: a script each, which sees its name and the number of workers as `name` and `workers`."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

TESTS = Path(__file__).parent

_FIRST = """
import faulthandler, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that a shell has started in the background have it ignored
faulthandler.dump_traceback_later({patience}, exit=True)  # a worker that hangs says where
{imports}
import farref
import remote_functions as there
name, rank, workers, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def join(**settings):
    settings.setdefault("join_timeout", 60)
    return farref.join(name=name, rank=rank, world_size=workers, rendezvous=place, **settings)

def say(*words):
    print(*words, flush=True)
"""

# No test waits longer than this for a process: then it hangs.
PATIENCE = int(os.environ.get("FARREF_TEST_PATIENCE", "90"))


def environment(*more):
    """What processes of tests find their modules by, wherever they run: as this one does, and in these folders."""
    paths = [*more, *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def rust_program(name):
    """A Rust worker, built if it has not been or is older than its source (`cargo test --workspace` builds it, too)."""
    root = TESTS.parents[1]
    program = Path(os.environ.get("CARGO_TARGET_DIR", root / "target"), "debug", "examples", name)
    if is_stale(program):
        subprocess.run(["cargo", "build", "--quiet", "-p", "farref-pickle", "--example", name], cwd=root, check=True)
    return str(program.resolve())


def is_stale(program):
    """Whether a program is not there, or is older than a source: cargo alone would build it anew for other features, too."""
    sources = TESTS.parents[1].glob("crates/*/**/*.rs")
    return not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources)


class Process:
    """A worker's process."""

    def __init__(self, name, rank, workers, place, script, imports=""):
        code = _FIRST.format(patience=PATIENCE, imports=imports) + textwrap.dedent(script)
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, name, str(rank), str(workers), place],
            env=environment(str(TESTS)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self):
        """The next line that it says."""
        return self.process.stdout.readline().rstrip("\n")

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def kill(self):
        self.process.kill()

    def end(self):
        """Waits for its end. Returns its exit status, and what it said."""
        try:
            said, errors = self.process.communicate(timeout=PATIENCE + 10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            said, errors = self.process.communicate()
            raise AssertionError(f"{self.name} hangs; it said: {said}\n{errors}") from None
        return self.process.returncode, said, errors

    def succeeds(self):
        """Waits for its end, which has to be a good one. Returns what it said."""
        status, said, errors = self.end()
        assert status == 0, f"{self.name} ended with {status}; it said: {said}\n{errors}"
        return said


class Group:
    """Processes that are a group. A test's last word: none of them is left."""

    def __init__(self, folder, number_of_workers):
        self.place = f"file://{folder}/store{time.monotonic_ns()}"
        self.workers = number_of_workers
        self.processes = []

    def start(self, script, imports=""):
        rank = len(self.processes)
        process = Process(f"worker{rank}", rank, self.workers, self.place, script, imports)
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()
                process.process.communicate()
