"""A peer that waits for its turn looks whether the one that has it is still there. It does a Python worker no harm by that: a
connection that ends without a greeting would close PyTorch's listener for good."""

import time

import torch.distributed as dist

import harness
import worker_api

TURN = "rpc_prefix_0/RpcGroupManagementToken"
# Long enough for some looks.
WHILE = 4.0


def main(group):
    peer, other = group.peer, group.pythons[1]
    here = [group.name, other]
    group.meet(here)
    host, port = group.options.master.rsplit(":", 1)
    store = dist.TCPStore(host, int(port), None, False, wait_for_workers=False)
    # It is still joining when it can be called.
    harness.until("nobody has the turn", lambda: store.get(TURN) == b"" or store.get(TURN))
    token = "Token_for_%s_leave" % other
    store.set(TURN, token)
    group.signal(peer)
    time.sleep(WHILE)
    group.checks.equal("whose turn it is", store.get(TURN).decode(), token)
    store.set(TURN, "")
    store.set("rpc_prefix_0/" + token, "Done")
    here.append(peer)
    group.meet(here)
    for worker in here:
        harness.until("%s knows all" % worker, lambda: group.ask(worker, "workers") == sorted(here))
        group.checks.that("%s knows all" % worker, True)


def run(group):
    group.join()
    if group.name == group.main:
        main(group)
        group.settle(group.pythons + group.peers)
        group.finish(group.pythons[1:], group.peers)
    else:
        worker_api.finished.wait()
    group.leave()
