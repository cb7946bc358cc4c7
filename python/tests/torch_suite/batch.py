"""Runs some tests of one class, one after the other, in this process (and in those that they start).

PyTorch's test cases spawn four processes for each test, and each of them imports torch. Here they are forked off from a process
that has imported it, and has done nothing else: it takes a tenth of the time.
"""

import importlib
import multiprocessing
import sys
import unittest

# What a line begins with that says how a test ended.
MARK = "== torch_suite:"


def module_of(class_name):
    """Which module of this package has the class."""
    return "faulty" if class_name.startswith("Faulty") else "cuda" if "Cuda" in class_name else "tensorpipe"


def main():
    """``batch Class test..``"""
    module = importlib.import_module(f"torch_suite.{module_of(sys.argv[1])}")
    import torch.multiprocessing

    # Those of RemoteModule write Python files into a folder that a process makes when it imports torch: one for each process. And no
    # process uses a GPU that was forked off from one which has looked for GPUs.
    if "RemoteModule" not in sys.argv[1] and "Cuda" not in sys.argv[1]:
        multiprocessing.set_forkserver_preload([module.__name__])
        context = torch.multiprocessing.get_context
        torch.multiprocessing.get_context = lambda method=None: context("forkserver" if method == "spawn" else method)
    of = module.CLASSES[sys.argv[1]]
    for test in sys.argv[2:]:
        result = unittest.TestResult()
        of(test).run(result)
        for _, text in result.failures + result.errors:
            print(text, flush=True)
        outcome = "failed" if not result.wasSuccessful() else "skipped" if result.skipped else "passed"
        sys.stderr.flush()
        print(f"{MARK} {outcome} {test}", flush=True)


if __name__ == "__main__":
    main()
