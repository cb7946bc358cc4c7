"""What the tests share: waiting for events, threads, ports, programs, and workers in processes of their own."""

import contextlib
import functools
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parents[1]

# Seconds that a test waits for one event. Only a test that fails spends them.
TEST_TIMEOUT = 120
# Seconds that a test waits for the end of a whole program, in which there are many events.
PROGRAM_TIMEOUT = 5 * TEST_TIMEOUT
POLL_INTERVAL = 0.01
# Seconds of silence after which workers in processes of their own give each other up. Several
# processes of pytest may keep a worker from running for a while, and it must not pass for dead. No
# test waits for so long: the port of one that has ended refuses connections, and the others give it
# up at once.
PEER_TIMEOUT = 10

_PRELUDE = """
import faulthandler, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background tests with it ignored
faulthandler.dump_traceback_later({timeout}, exit=True)  # a worker that hangs prints where
{imports}
import farref
import remote_functions as there
from testkit import PEER_TIMEOUT, TEST_TIMEOUT, eventually
name, rank, workers, place = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def join(**settings):
    settings.setdefault("join_timeout", TEST_TIMEOUT)
    settings.setdefault("peer_timeout", PEER_TIMEOUT)
    return farref.join(name=name, rank=rank, world_size=workers, rendezvous=place, **settings)

def say(*words):
    print(*words, flush=True)
"""


def eventually(condition, failure="the condition did not become true"):
    """Waits until `condition()` is true. Returns its value."""
    deadline = time.monotonic() + TEST_TIMEOUT
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{failure} (after {TEST_TIMEOUT} s)"
        time.sleep(POLL_INTERVAL)
    return value


def started(*functions):
    """Threads that run these functions."""
    threads = [threading.Thread(target=function, daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def ended(*threads):
    """Waits until the threads have ended."""
    for thread in threads:
        thread.join(TEST_TIMEOUT)
        assert not thread.is_alive(), "a thread does not end"


_claims = []


def free_port(host="127.0.0.1"):
    """A port that was free a moment ago, outside the range from which the system serves connections.

    No two calls get the same port, in all processes that run tests at a time: a process has the UDP port of the same
    number until it ends.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 20_000)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            claim.bind(("0.0.0.0", port))
            with socket.create_server((host, port)):
                _claims.append(claim)
                return port
        claim.close()


def environment(**variables):
    """The environment of a test's programs: they find the modules that this process finds, and those of the tests."""
    paths = [str(TESTS), *map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}


def run(command, **variables):
    """Runs a program, which has to succeed. Returns its standard output."""
    done = subprocess.run(
        list(map(str, command)), env=environment(**variables), capture_output=True, text=True, timeout=PROGRAM_TIMEOUT
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@functools.cache
def rust_program(package, kind, name, *options):
    """A program of the workspace, built if it is missing or older than a source: cargo alone would build it anew
    for other features, too."""
    program = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"), "debug", "examples" if kind == "example" else "", name)
    sources = [source for folder in ("crates", "tools") for source in (ROOT / folder).rglob("*.rs")]
    if not program.exists() or program.stat().st_mtime < max(source.stat().st_mtime for source in sources):
        subprocess.run(["cargo", "build", "--quiet", "-p", package, f"--{kind}", name, *options], cwd=ROOT, check=True)
    return str(program.resolve())


class Process:
    """A running program. Its output is read all the time, so that it never waits for a reader."""

    def __init__(self, name, start, leads_session=False):
        """`start` starts it, given the descriptors of its standard output and its standard error."""
        self.name, self.leads_session = name, leads_session
        outputs, inputs = zip(os.pipe(), os.pipe())
        self.process = start(*inputs)
        for descriptor in inputs:
            os.close(descriptor)
        self._lines, self._errors = queue.SimpleQueue(), queue.SimpleQueue()
        self._readers = started(*map(functools.partial, [self._read] * 2, outputs, (self._lines, self._errors)))

    @staticmethod
    def _read(descriptor, lines):
        with open(descriptor, errors="replace") as stream:
            for line in stream:
                lines.put(line)
        lines.put("")

    def line(self):
        """The next line that it prints; "" after the last."""
        try:
            line = self._lines.get(timeout=TEST_TIMEOUT)
        except queue.Empty:
            raise AssertionError(f"{self.name} prints nothing") from None
        if not line:
            self._lines.put(line)
        return line.rstrip("\n")

    def interrupt(self):
        """Sends SIGINT, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def kill(self):
        """Ends it at once, and the rest of its session."""
        if self.leads_session:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def close(self):
        """Ends it at once, and waits for its end."""
        self.kill()
        self.process.wait()

    def end(self):
        """Waits for its end. Returns its exit status, and what else it printed."""
        hangs = ""
        try:
            self.process.wait(PROGRAM_TIMEOUT + TEST_TIMEOUT)
        except subprocess.TimeoutExpired:
            hangs = f"{self.name} hangs"
            self.kill()
        ended(*self._readers)
        printed, errors = "".join(iter(self._lines.get, "")), "".join(iter(self._errors.get, ""))
        assert not hangs, f"{hangs}; it printed: {printed}\n{errors}"
        return self.process.wait(), printed, errors

    def succeeds(self):
        """Waits for its end with exit status 0. Returns what else it printed."""
        status, printed, errors = self.end()
        assert status == 0, f"{self.name} ended with {status}; it printed: {printed}\n{errors}"
        return printed


def started_program(name, command, **variables):
    """A program that has been started, as a `Process`."""

    def start(output, errors):
        return subprocess.Popen(
            list(map(str, command)), env=environment(**variables), stdin=subprocess.DEVNULL, stdout=output, stderr=errors
        )

    return Process(name, start)


class Group:
    """Processes that are a group: each runs a script, which has `name`, `rank`, `workers`, `place`, `join` and `say`."""

    def __init__(self, folder, number_of_workers):
        self.place = f"file://{folder}/store{time.monotonic_ns()}"
        self.workers = number_of_workers
        self.processes = []

    def start(self, script, imports=None):
        """Starts the next worker. With `imports`, code that runs before farref is imported, it is no fork."""
        from fork_server import fork_server

        rank = len(self.processes)
        name = f"worker{rank}"
        code = _PRELUDE.format(timeout=PROGRAM_TIMEOUT, imports=imports or "") + textwrap.dedent(script)
        arguments = [name, str(rank), str(self.workers), self.place]

        def fork(output, errors):
            server = fork_server("farref", "remote_functions")
            return server.start(output, errors, arguments=arguments, environment=environment(), code=code)

        if imports is None:
            process = Process(name, fork)
        else:
            process = started_program(name, [sys.executable, "-c", code, *arguments])
        self.processes.append(process)
        return process

    def close(self):
        """Ends what still runs."""
        for process in self.processes:
            process.close()
