"""Runs PyTorch's own tests of torch.distributed.rpc on farref, and compares what came out with what is expected.

    python -m torch_suite                            # all, class by class (in python/tests, with farref on the path)
    python -m torch_suite RpcTest DistAutogradTest   # these classes
    python -m torch_suite RpcTest.test_add           # these tests
    python -m torch_suite --write expected.json ..   # writes down what came out
    python -m torch_suite --cuda --jobs 4            # those with tensors on GPUs instead, on a machine that has one, four at a time

No test is changed, left out or patched. What is expected is in ``expected/<version of torch>.json``: for each test "passed",
"skipped" (by PyTorch itself), or why it cannot pass; with ``--cuda`` in ``<version of torch>-cuda.json``, of a machine with one GPU. Exit status 1 if anything is worse than expected.
"""

import argparse
import json
import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

from .batch import MARK

HERE = pathlib.Path(__file__).parent
PREFIXES = ("TensorPipe", "Faulty")
# Seconds that one test may take before PyTorch's own test case gives it up.
PATIENCE = "120"


def collected(on_gpus):
    """The names of all tests, by class."""
    import unittest

    if on_gpus:
        from . import cuda

        classes = cuda.CLASSES
    else:
        from . import tensorpipe
        from . import faulty

        classes = {**tensorpipe.CLASSES, **faulty.CLASSES}
    loader = unittest.TestLoader()
    return {name: loader.getTestCaseNames(of) for name, of in classes.items()}


def run(of, tests):
    """Tests of one class: for each its name, "passed", "skipped" or "failed", and what was printed."""
    environment = dict(os.environ, DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=PATIENCE, PYTHONUNBUFFERED="1")
    left = list(tests)
    while left:
        command = [sys.executable, "-m", "torch_suite.batch", of, *left]
        # Of its own session: what a test leaves running ends with it.
        batch = subprocess.Popen(
            command,
            cwd=HERE.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        printed = []
        watchdog = threading.Timer(4 * int(PATIENCE), _end, [batch])
        watchdog.start()
        for line in batch.stdout:
            if line.startswith(MARK):
                watchdog.cancel()
                outcome, test = line[len(MARK) :].split()
                left.remove(test)
                yield test, outcome, "".join(printed)
                printed = []
                watchdog = threading.Timer(4 * int(PATIENCE), _end, [batch])
                watchdog.start()
            else:
                printed.append(line)
        watchdog.cancel()
        _end(batch)
        batch.wait()
        if left:  # it ended in the middle of one
            yield left.pop(0), "failed", "".join(printed)


def _end(batch):
    try:
        os.killpg(batch.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def wanted(arguments, tests):
    """The tests that were asked for."""
    chosen = []
    for class_name, names in tests.items():
        plain = next(class_name[len(prefix) :] for prefix in PREFIXES if class_name.startswith(prefix))
        for test in names:
            asked = {class_name, plain, f"{plain}.{test}", f"{class_name}.{test}"}
            if not arguments or asked & set(arguments):
                chosen.append((class_name, test))
    return chosen


def outcomes(chosen, again, jobs):
    """Runs them, class by class, so many at a time, and what fails up to so many times more."""
    if jobs > 1:
        yield from _side_by_side([chosen[first::jobs] for first in range(jobs)], again)
        return
    classes = {}
    for of, test in chosen:
        classes.setdefault(of, []).append(test)
    for of, tests in classes.items():
        began = time.monotonic()
        for test, outcome, printed in run(of, tests):
            for _ in range(again):
                if outcome == "failed":
                    ((_, outcome, printed),) = run(of, [test])
            yield of, test, outcome, printed, time.monotonic() - began
            began = time.monotonic()


def _side_by_side(parts, again):
    found = queue.SimpleQueue()

    def work(part):
        try:
            for outcome in outcomes(part, again, 1):
                found.put(outcome)
        finally:
            found.put(None)

    for part in parts:
        threading.Thread(target=work, args=[part], daemon=True).start()
    ended = 0
    while ended < len(parts):
        outcome = found.get()
        if outcome is None:
            ended += 1
        else:
            yield outcome


def main():
    """See above."""
    parser = argparse.ArgumentParser(prog="torch_suite", description="PyTorch's own tests of RPC, on farref")
    parser.add_argument("tests", nargs="*", help="classes, or class.test; all by default")
    parser.add_argument("--write", metavar="FILE", help="add what came out to this file")
    parser.add_argument("--logs", metavar="FOLDER", help="what failing tests print goes here")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="run what failed up to N times more")
    parser.add_argument("--only-expected", action="store_true", help="only those that are expected to pass")
    parser.add_argument("--cuda", action="store_true", help="those with tensors on GPUs")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="run N tests at a time")
    options = parser.parse_args()

    tests = collected(options.cuda)  # before torch is imported: on farref
    import torch

    version = ".".join(torch.__version__.split(".")[:2])
    path = HERE / "expected" / f"torch-{version}{'-cuda' if options.cuda else ''}.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    came_out, worse = {}, []
    chosen = wanted(options.tests, tests)
    if options.only_expected:
        chosen = [(of, test) for of, test in chosen if expected.get(of, {}).get(test) == "passed"]
    number = 0
    for of, test, outcome, printed, took in outcomes(chosen, options.again, options.jobs):
        number += 1
        came_out.setdefault(of, {})[test] = outcome
        was = expected.get(of, {}).get(test)
        note = ""
        if outcome == "failed":
            if options.logs:
                os.makedirs(options.logs, exist_ok=True)
                pathlib.Path(options.logs, f"{of}.{test}.log").write_text(printed)
            if was == "passed":
                worse.append(f"{of}.{test}")
                note = "  <-- expected to pass"
            elif was:
                note = f"  ({was})"
        elif was not in (None, outcome):
            note = f"  (better than expected: {was})"
        print(f"[{number}/{len(chosen)}] {outcome:7} {took:5.1f} s  {of}.{test}{note}", flush=True)
        if options.write:
            target = pathlib.Path(options.write)
            known = json.loads(target.read_text()) if target.exists() else {}
            known.setdefault(of, {})[test] = outcome
            target.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")

    print()
    for of, tests in came_out.items():
        counts = {kind: list(tests.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"{of:50} " + "  ".join(f"{kind} {count:3}" for kind, count in counts.items()))
    for test in worse:
        print(f"worse than expected: {test}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
