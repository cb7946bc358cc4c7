"""More calls at once than the peer takes at once: they wait, and nobody is cut off. PyTorch knows of no limit."""

import torch.distributed.rpc as rpc

import peer_api

# Several times what the peer is told to take at once (`--max-calls` in `plans.py`).
CALLS = 400


def main(group):
    check, peer = group.checks, group.peer
    futures = [rpc.rpc_async(peer, peer_api.sleep, args=(0.2,)) for _ in range(CALLS)]
    check.equal("calls", [future.wait() for future in futures], [0.2] * CALLS)
    made = [rpc.remote(peer, peer_api.sleep, args=(0.2,)) for _ in range(CALLS)]
    check.equal("values that stay", [rref.to_here() for rref in made], [0.2] * CALLS)
    del made
    # Fetches of values that are not there yet, beside all the rest.
    slow = rpc.remote(peer, peer_api.sleep, args=(1.0,))
    futures = [rpc.rpc_async(peer, peer_api.add, args=(i, i)) for i in range(CALLS)]
    check.equal("one that takes longer", slow.to_here(), 1.0)
    check.equal("and many that do not", [future.wait() for future in futures], [2 * i for i in range(CALLS)])
    del slow
