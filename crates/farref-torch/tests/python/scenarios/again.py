"""Two groups after each other: the Python processes were in a group before, the peer joins only the second.

PyTorch counts groups and shutdown rounds per process, so a process that comes new has to be told where they are:
prefix 1, and rounds from 4.

Calls only: PyTorch's references do not survive a shutdown. Its table of references belongs to the agent of the first
group and stays closed, so that in a second group no worker tells an owner that it has let go, and a graceful
shutdown hangs.
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
        group.settle(group.pythons + group.peers)
        group.finish([name for name in group.pythons if name != group.name], group.peers)
    else:
        worker_api.finished.wait()
    group.leave()
