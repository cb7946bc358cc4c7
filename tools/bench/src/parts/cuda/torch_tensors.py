"""Tensors on a GPU to another process that uses the same GPU, with torch.distributed.rpc and a device map.

Prints `one_way BYTES NANOSECONDS` or `echo BYTES NANOSECONDS` for each call. The same tensor is sent each time.
Arguments: calls to warm up, calls, and the sizes in bytes.
"""

import os
import socket
import sys
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

WARM_UP, CALLS, *SIZES = map(int, sys.argv[1:])


def take(tensor):
    return tensor.numel()


def give_back(tensor):
    return tensor


def run(rank, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    options = rpc.TensorPipeRpcBackendOptions()
    options.set_device_map(f"worker{1 - rank}", {0: 0})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        for size in SIZES:
            tensor = torch.ones(size // 4, device="cuda:0")
            for direction, function in [("one_way", take), ("echo", give_back)]:
                measure(direction, function, tensor, size)
    rpc.shutdown()


def measure(direction, function, tensor, size):
    for call in range(WARM_UP + CALLS):
        torch.cuda.synchronize()
        began = time.perf_counter_ns()
        rpc.rpc_sync("worker1", function, args=(tensor,))
        torch.cuda.synchronize()
        elapsed = time.perf_counter_ns() - began
        if call >= WARM_UP:
            print(direction, size, elapsed, flush=True)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("this torch sees no CUDA device")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(run, args=(port,), nprocs=2)
