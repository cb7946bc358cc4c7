"""Calls from eight threads at once, of mixed sizes, both ways."""

import random
import threading

import torch
import torch.distributed.rpc as rpc

import peer_api
from harness import same

THREADS, CALLS = 8, 200


def main(group):
    wrong, done = [], []
    others = [name for name in group.pythons if name != group.name] or [group.name]

    def caller(number):
        choice = random.Random(number)
        try:
            for turn in range(CALLS):
                kind = choice.randrange(10)
                if kind < 3:
                    got, want = rpc.rpc_sync(group.peer, peer_api.add, args=(number, turn)), number + turn
                elif kind < 5:
                    want = "x" * choice.randrange(3000)
                    got = rpc.rpc_sync(group.peer, peer_api.echo, args=(want,))
                elif kind < 7:
                    want = torch.full((choice.randrange(20000),), float(turn))
                    got = rpc.rpc_sync(group.peer, peer_api.echo, args=(want,))
                elif kind == 7:
                    want = {"turn": turn, "tensors": [torch.arange(choice.randrange(50)), torch.ones(3)]}
                    got = rpc.remote(group.peer, peer_api.echo, args=(want,)).to_here()
                elif kind == 8:
                    # The peer calls Python while it serves Python.
                    args = (choice.choice(others), "worker_api.double", [torch.ones(choice.randrange(2000))])
                    got, want = rpc.rpc_sync(group.peer, peer_api.call_back, args=args), args[2][0] * 2
                else:
                    size = 262144 if turn % 40 == 0 else 8192
                    want = torch.full((size,), number, dtype=torch.int32)
                    got = rpc.rpc_async(group.peer, peer_api.echo, args=(want,)).wait()
                if not same(got, want):
                    wrong.append((number, turn, kind))
        except Exception as error:
            wrong.append((number, repr(error)[:300]))
        else:
            done.append(number)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    group.checks.equal("no call went wrong", wrong, [])
    group.checks.equal("all threads ended", sorted(done), list(range(THREADS)))
    group.checks.note("calls", THREADS * CALLS)
