"""Two groups after each other: the Python processes were in a group before, the peer joins only the second.

PyTorch counts groups and shutdown rounds per process, so a process that comes new has to be told where they are:
prefix 1, and rounds from 4.
"""

import torch
import torch.distributed.rpc as rpc

import harness
import worker_api
from scenarios import join


def run(group):
    # The first group, of Python workers only.
    rank = sorted(group.pythons).index(group.name)
    harness.start_rpc(group.name, rank, len(group.pythons), group.options.master, group.options.transports)
    if group.name == group.main:
        for worker in group.pythons:
            group.checks.equal("the first group", group.ask(worker, "echo", worker), worker)
            got = rpc.remote(worker, torch.add, args=(torch.ones(2), 1)).to_here()
            group.checks.equal("references of the first group", got, torch.full((2,), 2.0))
    group.rank, first = rank, group.rank
    group.leave()
    # The second one, with the peer.
    group.rank, group.options.master = first, group.options.second_master
    group.join()
    if group.name == group.main:
        join.main(group)
        group.ask(group.peer, "own", "value", {"of": "the second group"})
        rref = group.ask(group.peer, "give", "value")
        group.checks.equal("references of the second group", rref.to_here(), {"of": "the second group"})
        group.ask(group.peer, "drop", "value")
        group.ask(group.name, "own", "mine", ["mine"])
        group.ask(group.name, "share", "mine", group.peer, "peer_api.hold", "of python")
        group.checks.equal("the other way", group.ask(group.peer, "held", "of python"), ["mine"])
        group.ask(group.peer, "drop", "of python")
        worker_api.drop("mine")
        del rref
        group.finish([name for name in group.pythons if name != group.name], group.peers)
    else:
        worker_api.finished.wait()
    # PyTorch itself leaks here: a process that has shut down once never again tells an owner that it has let go. So
    # counters stay, and a peer must be able to leave although it still owns what nobody uses.
    rpc.api._ignore_rref_leak = True
    harness.stop_rpc(group.rank)
    group.checks.that("graceful shutdown of the second group", True)
