"""Calls whose time limit is over, and that are never answered, keep no group from ending: PyTorch counts them no more."""

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    group.join()
    check, peer = group.checks, group.peer
    if group.name == group.main:
        other = group.pythons[1]
        group.meet(group.pythons + group.peers)
        # Of the peer, by Python.
        call = rpc.rpc_async(peer, peer_api.sleep, args=(1000.0,), timeout=0.5)
        check.error("Python waits no longer", "timeout", [], call.wait)
        # Of Python, by the peer.
        seen = rpc.rpc_sync(peer, peer_api.caught_async, args=(other, "worker_api.never", [], 0.5))
        check.equal("the peer waits no longer", seen["kind"], "timeout")
        group.finish([other], [peer])
    else:
        worker_api.finished.wait()
    harness.stop_rpc(group.rank)
    check.that("graceful shutdown without leaks", True)
