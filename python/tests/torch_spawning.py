"""A program as PyTorch's tutorials have it: it starts its workers itself. Nothing here knows of farref.

``torch_spawning.py place``; with ``launched`` it is one of the workers that somebody else has started.
"""

import os
import sys

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing


def what_runs_here():
    return type(rpc.api._get_current_rpc_agent()).__module__.partition(".")[0]


def work():
    """What all workers do."""
    if rpc.get_worker_info().id == 0:
        assert torch.equal(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))
        print("this worker runs on", what_runs_here(), flush=True)
        print("the other one runs on", rpc.rpc_sync("worker1", what_runs_here), flush=True)
    rpc.shutdown()


def spawned(rank, workers, place):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{place}")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=workers, rpc_backend_options=options)
    work()


if __name__ == "__main__":
    if sys.argv[1] == "launched":
        rank = int(os.environ["RANK"])
        rpc.init_rpc(f"worker{rank}", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        work()
    else:
        torch.multiprocessing.spawn(spawned, args=(2, sys.argv[1]), nprocs=2)
