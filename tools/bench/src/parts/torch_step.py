"""One training step through a layer on another process, with torch.distributed.autograd.

Prints the nanoseconds of each step. Arguments: width, batch, steps to warm up, steps.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer

WIDTH, BATCH, WARM_UP, STEPS = map(int, sys.argv[1:5])


def run(rank, port):
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)
    if rank == 0:
        train()
    rpc.shutdown()


def train():
    module = RemoteModule("worker1/cpu", torch.nn.Linear, args=(WIDTH, WIDTH))
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.01)
    data, target = torch.rand(BATCH, WIDTH), torch.rand(BATCH, WIDTH)
    times = []
    for step in range(WARM_UP + STEPS):
        began = time.perf_counter_ns()
        with dist_autograd.context() as context:
            loss = torch.nn.functional.mse_loss(module.forward(data), target)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        if step >= WARM_UP:
            times.append(time.perf_counter_ns() - began)
    print("\n".join(map(str, times)), flush=True)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, args=(port,), nprocs=2)
