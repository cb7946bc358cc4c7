"""torch.distributed.rpc: two workers, calls of a Python function, bytes as a tensor."""

import contextlib
import multiprocessing
import os
import socket

import torch
import torch.distributed.rpc as rpc

from parent import end_with_parent


def nothing():
    pass


def swallow(tensor):
    return tensor.numel()


class Caller:
    def call(self):
        rpc.rpc_sync("server", nothing)

    def start(self):
        return rpc.rpc_async("server", nothing)

    def finish(self, started):
        torch.futures.wait_all(started)

    def payload(self, size):
        return torch.full((size,), 7, dtype=torch.uint8)

    def send(self, payload):
        return rpc.rpc_sync("server", swallow, args=(payload,))


def join(name, rank, transport, port):
    torch.set_num_threads(1)
    # All workers are on this host, whatever it is called.
    os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    # Otherwise PyTorch chooses, on one host shared memory for all and a copy between processes for tensors.
    tcp = {"_transports": ["uv"], "_channels": ["basic"]} if transport == "tcp" else {}
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}", **tcp)
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve(transport, port):
    end_with_parent()
    join("server", 1, transport, port)
    rpc.shutdown()


@contextlib.contextmanager
def connected(transport):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(transport, port), daemon=True)
    server.start()
    join("caller", 0, transport, port)
    yield Caller(), torch.__version__
    rpc.shutdown()
    server.join()
