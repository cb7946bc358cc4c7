"""Runs one of PyTorch's tests in this process, and in those that it starts; or prints which tests there are.

    case module                 # prints the version of torch and the tests of each class, as JSON
    case module Class test      # ends with PASSED, FAILED or SKIPPED

The process has imported the module and has done nothing else, so the test's processes are forks of it.
"""

import importlib
import json
import sys
import unittest

# Exit statuses.
PASSED, FAILED, SKIPPED = 0, 1, 77


def listed(classes):
    """The names of all tests, by class."""
    loader = unittest.TestLoader()
    return {name: list(loader.getTestCaseNames(of)) for name, of in classes.items()}


def fork_processes():
    """Processes of the test are forks where PyTorch's test case spawns them."""
    import torch.multiprocessing

    context = torch.multiprocessing.get_context
    torch.multiprocessing.get_context = lambda method=None: context("fork" if method == "spawn" else method)


def run(of, test):
    """Runs a test. Returns its exit status."""
    # Those of RemoteModule write Python files into a folder that a process makes when it imports torch: one for each
    # process. And no process uses a GPU that is a fork of one which has looked for GPUs.
    if "RemoteModule" not in of.__name__ and "Cuda" not in of.__name__:
        fork_processes()
    result = unittest.TestResult()
    of(test).run(result)
    for _, text in result.failures + result.errors:
        print(text, flush=True)
    return FAILED if not result.wasSuccessful() else SKIPPED if result.skipped else PASSED


def main():
    """See above."""
    classes = importlib.import_module(f"torch_suite.{sys.argv[1]}").CLASSES
    if len(sys.argv) > 2:
        sys.exit(run(classes[sys.argv[2]], sys.argv[3]))
    import torch

    print(json.dumps({"torch": torch.__version__, "tests": listed(classes)}))


if __name__ == "__main__":
    main()
