"""Calls that begin while all wait for each other at the end: PyTorch waits for all and counts once more, and so does the
peer, in the same rounds of the store."""

import torch.distributed as dist
import torch.distributed.rpc as rpc

import harness
import worker_api


def run(group):
    group.join()
    if group.name == group.main:
        group.meet(group.pythons + group.peers)
        group.finish(group.pythons[1:], group.peers)
        # The others are in the first round when this is answered, and this worker is not: it waits for the answer.
        others = len(group.pythons) + len(group.peers) - 1
        args = (group.options.master, others, group.name, 1.0)
        rpc.rpc_async(group.pythons[1], begin_late, args=args).then(lambda done: group.checks.that("begun", done.value()))
    else:
        worker_api.finished.wait()
    harness.stop_rpc(group.rank)
    if group.name == group.main:
        group.checks.that("graceful shutdown in step", len(group.checks.names) > 0)


def begin_late(master, others, callee, seconds):
    """Waits until so many have come to the first round, and calls without waiting for the answer: the call is open when
    all count. The peer has no part in it: it knows by the count alone that there is another round."""
    host, port = master.rsplit(":", 1)
    store = dist.TCPStore(host, int(port), None, False, wait_for_workers=False)
    count = "rpc_prefix_0/shutdown/PROCESS_COUNT_ID_1"
    harness.until("the others wait", lambda: int(store.add(count, 0)) == others)
    rpc.rpc_async(callee, worker_api.sleep, args=(seconds,))
    return True
