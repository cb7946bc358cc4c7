"""A program of `tutorials`, in a group with a peer in place of one of its workers, and in one without.

The program is not told which it is. On the worker that drives it, what came out of the one is compared with what came
out of the other.
"""

import importlib
import json
import os

import torch
import torch.distributed.rpc as rpc

import harness


def run(group):
    options = group.options
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = options.master.rsplit(":", 1)
    rpc.api._ignore_rref_leak = False
    if group.rank == 0:
        keep_the_store()
    program = importlib.import_module("tutorials." + options.program)
    results = program.run_worker(group.rank, int(group.world))
    group.checks.that("the program has ended, without leaks", True)
    if options.results_to and results:
        # Whoever waits for the file is to find all of it.
        with open(options.results_to + ".part", "w") as file:
            json.dump(results, file)
        os.rename(options.results_to + ".part", options.results_to)
    if options.results_like and results:
        harness.wait_for_file(options.results_like)
        with open(options.results_like) as file:
            compare(group.checks, results, json.load(file))


def keep_the_store():
    """Whoever hosts it is through with `shutdown` a moment before the others, which still read the last barrier there.
    Where PyTorch's store goes with its host at once they fail, and that is no fault of the program's."""
    shutdown = rpc.shutdown

    def keep_store_and_shut_down():
        harness.keep_store()
        shutdown()

    rpc.shutdown = keep_store_and_shut_down


def compare(check, got, want):
    check.equal("what is told of the run", sorted(got), sorted(want))
    for name in want:
        numbers, wanted = torch.tensor(list(flat(got[name]))), torch.tensor(list(flat(want[name])))
        check.that("there is something to compare", len(wanted) > 0, want)
        check.close(name, numbers, wanted)
        check.note(name, float((numbers - wanted).abs().max()))


def flat(numbers):
    """All the numbers of lists in lists."""
    if not isinstance(numbers, list):
        yield numbers
        return
    for item in numbers:
        yield from flat(item)
