"""Joining: every worker reaches every other one, itself included, and knows all names."""

import torch
import torch.distributed.rpc as rpc

from harness import until


def main(group):
    everybody = sorted(group.pythons + group.peers)
    for worker in everybody:
        until("%s knows all" % worker, lambda: group.ask(worker, "workers") == everybody or group.ask(worker, "workers"))
        group.checks.that("%s knows all workers" % worker, True)
    for caller in everybody:
        for callee in everybody:
            value = {"from": caller, "to": callee}
            got = group.ask(caller, "call_back", callee, group.named(callee, "echo"), [value])
            group.checks.equal("%s calls %s" % (caller, callee), got, value)
    for peer in group.peers:
        info = rpc.get_worker_info(peer)
        group.checks.equal("the peer has its name", info.name, peer)
        group.checks.that("by its info", rpc.rpc_sync(info, torch.add, args=(torch.ones(2), 1)).tolist() == [2.0, 2.0])
        group.checks.that("by its id", rpc.rpc_sync(info.id, torch.neg, args=(torch.ones(2),)).tolist() == [-1.0, -1.0])
