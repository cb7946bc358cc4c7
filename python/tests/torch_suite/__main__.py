"""Runs PyTorch's own tests of torch.distributed.rpc on farref, and compares what came out with what is expected.

    python -m torch_suite                            # all (in python/tests, with farref on the path)
    python -m torch_suite RpcTest DistAutogradTest   # these classes
    python -m torch_suite RpcTest.test_add           # these tests
    python -m torch_suite --write expected.json ..   # writes down what came out
    python -m torch_suite --jobs 8                   # runs eight at a time
    python -m torch_suite --cuda                     # those with tensors on GPUs instead, on a machine that has one

No test is changed, left out or patched. What is expected is in ``expected/<version of torch>.json``: for each test
"passed", "skipped" (by PyTorch itself), or why it cannot pass; with ``--cuda`` in ``<version of torch>-cuda.json``, of a
machine with one GPU. Exit status 1 if anything is worse than expected.

PyTorch's test cases start four processes for each test, and each of them imports torch. Here each test is forked off
from a process that has imported torch and has done nothing else, and so are its processes: see ``case.py``. (With
``--cuda`` they are not.)
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import time

from fork_server import fork_server
from testkit import TEST_TIMEOUT, Process, environment

from .case import FAILED, PASSED, SKIPPED

HERE = pathlib.Path(__file__).parent
PREFIXES = ("TensorPipe", "Faulty")
OUTCOMES = {PASSED: "passed", SKIPPED: "skipped"}


def started(module, *arguments):
    """`case` with one of the modules that have PyTorch's test cases. What it leaves running ends with it."""

    def start(output, errors):
        program = ["torch_suite.case", module, *arguments]
        if module == "cuda":
            # It looks for GPUs when it is imported, and a fork of a process that has done so cannot use them.
            command = [sys.executable, "-m", *program]
            return subprocess.Popen(
                command, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        server = fork_server(f"torch_suite.{module}")
        return server.start(output, output, arguments=program, environment=environment(), new_session=True)

    return Process(" ".join(arguments), start, leads_session=True)


def collected(modules):
    """The version of torch, and the names of all tests by module and class."""
    tests = {}
    for module in modules:
        found = json.loads(started(module).succeeds().splitlines()[-1])
        version, tests[module] = found["torch"], found["tests"]
    return version, tests


def run(module, of, test, again):
    """Runs a test, and up to so many times more if it fails. Returns how it ended, what it printed, and its seconds."""
    for _ in range(again + 1):
        began = time.monotonic()
        process = started(module, of, test)
        try:
            status, printed, _ = process.end()
        except AssertionError as hangs:
            status, printed = FAILED, str(hangs)
        finally:
            process.close()
        outcome = OUTCOMES.get(status, "failed")
        if outcome != "failed":
            break
    return outcome, printed, time.monotonic() - began


def wanted(arguments, tests):
    """Module, class and name of the tests that were asked for."""
    chosen = []
    for module, classes in tests.items():
        for of, names in classes.items():
            plain = next(of[len(prefix) :] for prefix in PREFIXES if of.startswith(prefix))
            for test in names:
                asked = {of, plain, f"{plain}.{test}", f"{of}.{test}"}
                if not arguments or asked & set(arguments):
                    chosen.append((module, of, test))
    return chosen


def main():
    """See above."""
    parser = argparse.ArgumentParser(prog="torch_suite", description="PyTorch's own tests of RPC, on farref")
    parser.add_argument("tests", nargs="*", help="classes, or class.test; all by default")
    parser.add_argument("--write", metavar="FILE", help="add what came out to this file")
    parser.add_argument("--logs", metavar="FOLDER", help="what failing tests print goes here")
    parser.add_argument("--again", type=int, default=0, metavar="N", help="run what failed up to N times more")
    parser.add_argument("--only-expected", action="store_true", help="only those that are expected to pass")
    parser.add_argument("--cuda", action="store_true", help="those with tensors on GPUs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="run N tests at a time")
    options = parser.parse_args()

    # PyTorch's test case reads it when it is imported, and gives up a test after so many seconds.
    os.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = str(TEST_TIMEOUT)
    version, tests = collected(["cuda"] if options.cuda else ["tensorpipe", "faulty"])
    version = ".".join(version.split(".")[:2])
    path = HERE / "expected" / f"torch-{version}{'-cuda' if options.cuda else ''}.json"
    expected = json.loads(path.read_text()) if path.exists() else {}
    came_out, worse = {}, []
    chosen = wanted(options.tests, tests)
    if options.only_expected:
        chosen = [(module, of, test) for module, of, test in chosen if expected.get(of, {}).get(test) == "passed"]
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    runs = {pool.submit(run, module, of, test, options.again): (of, test) for module, of, test in chosen}
    for number, ended in enumerate(concurrent.futures.as_completed(runs), 1):
        of, test = runs[ended]
        outcome, printed, took = ended.result()
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
    total = [outcome for tests in came_out.values() for outcome in tests.values()]
    for of, outcomes in [*sorted((of, list(tests.values())) for of, tests in came_out.items()), ("all", total)]:
        counts = {kind: outcomes.count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"{of:50} " + "  ".join(f"{kind} {count:3}" for kind, count in counts.items()))
    for test in worse:
        print(f"worse than expected: {test}")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
