"""Tensors there and back: every dtype, views, shared storage, empty, large, sparse."""

import math

import torch
import torch.distributed.rpc as rpc

import peer_api

DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


def views():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    yield "contiguous", base
    yield "no dimension", torch.tensor(3.5)
    yield "empty", torch.empty(0)
    yield "empty with shape", torch.empty(0, 3, dtype=torch.int64)
    yield "column", base[:, 1]
    yield "rows with offset", base[1:3]
    yield "every other column", base[:, ::2]
    yield "transposed", base.t()
    yield "permuted", torch.arange(24.0).reshape(2, 3, 4).permute(2, 0, 1)
    yield "expanded", torch.tensor([[1.0], [2.0]]).expand(2, 5)
    yield "expanded to no elements", torch.ones(1).expand(0, 1)
    yield "scalar expanded", torch.tensor(2.0).expand(3, 4)
    yield "overlapping windows", torch.arange(6.0).as_strided((4, 3), (1, 1))
    yield "slice of something big", torch.arange(100000)[5000:5007]
    yield "diagonal", torch.arange(9.0).reshape(3, 3).diagonal()
    yield "channels last", torch.arange(16.0).reshape(1, 4, 2, 2).contiguous(memory_format=torch.channels_last)
    yield "one element of many dimensions", torch.ones(1, 1, 1, 1, 1, 1)
    yield "nan and infinities", torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    yield "bool", base > 5
    yield "int32 view", torch.arange(10, dtype=torch.int32)[3:]
    yield "uint8", torch.arange(256, dtype=torch.uint8)
    yield "float64", torch.linspace(0, 1, 11, dtype=torch.float64)


def main(group):
    check, peer = group.checks, group.peer

    def echo(value):
        return rpc.rpc_sync(peer, peer_api.echo, args=(value,))

    there = [name for name in DTYPES if hasattr(torch, name)]
    for name in there:
        value = torch.tensor([1, 0, 2]).to(getattr(torch, name))
        check.equal("dtype " + name, echo(value), value)
        check.equal("dtype %s, remotely" % name, rpc.remote(peer, peer_api.echo, args=(value,)).to_here(), value)
        seen = rpc.rpc_sync(peer, peer_api.facts, args=(value,))
        check.equal("the peer sees dtype " + name, (seen["dtype"], seen["shape"]), (name, [3]))
    check.note("dtypes", there)
    for name, value in views():
        check.equal(name, echo(value), value)
        there_and_back = rpc.rpc_sync(peer, peer_api.call_back, args=(group.name, "worker_api.echo", [value]))
        check.equal(name + ", there and back twice", there_and_back, value)
        seen = rpc.rpc_sync(peer, peer_api.facts, args=(value,))
        check.equal("the peer sees the shape: " + name, seen["shape"], list(value.shape))
        total = float(value.double().sum())
        # Who adds in another order comes to another last digit.
        right = total != total or math.isclose(seen["sum"], total, rel_tol=1e-12)
        check.that("the peer sees the elements: " + name, right, seen)

    base = torch.arange(6.0)
    check.equal("three views of one storage", echo([base[:3], base[3:], base]), [base[:3], base[3:], base])
    check.equal("the same tensor twice", echo((base, base)), (base, base))
    mixed = {"a": torch.ones(1, dtype=torch.int64), "b": [torch.empty(0), torch.full((2,), 2.0)], "c": (base[1], "text")}
    check.equal("tensors inside of values", echo(mixed), mixed)
    many = [torch.full((i % 7,), float(i)) for i in range(200)]
    check.equal("200 tensors", echo(many), many)
    got = rpc.rpc_sync(peer, peer_api.scale, args=(base.reshape(2, 3).t(), 2.0))
    check.equal("computed by the peer", got.contiguous(), base.reshape(2, 3).t() * 2)

    large = torch.arange(16 * 1024 * 1024, dtype=torch.float32)
    check.equal("64 MiB", echo(large), large)
    check.equal("64 MiB behind a reference", rpc.remote(peer, peer_api.echo, args=(large,)).to_here(), large)
    del large

    # Outside of a context the flag travels, the graph does not.
    leaf = torch.ones(2, requires_grad=True)
    got = echo(leaf)
    check.equal("requires_grad, outside of a context", got.detach(), leaf.detach())
    check.equal("requires_grad is kept", got.requires_grad, True)
    check.equal("the peer sees requires_grad", rpc.rpc_sync(peer, peer_api.facts, args=(leaf,))["requires_grad"], True)
    product = leaf * 3
    check.equal("a tensor with a graph", echo(product).detach(), product.detach())

    # A peer may refuse these. Then it says why, and it works on.
    either(check, "sparse COO", "sparse", echo, torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (3, 2)))
    either(check, "sparse CSR", "sparse", echo, torch.sparse_csr_tensor([0, 1, 2], [0, 1], torch.tensor([1.0, 2.0]), (2, 2)))
    either(check, "parameter", "parameter", echo, torch.nn.Parameter(torch.ones(2)))
    check.equal("works on", echo(base), base)


def either(check, name, word, echo, value):
    try:
        got = echo(value)
    except Exception as error:
        check.that(name + " is refused with a reason", word in str(error).lower(), str(error))
        check.note(name, "refused: " + str(error).split("\n")[1][:200] if "\n" in str(error) else str(error)[:200])
    else:
        check.equal(name, got, value)
        check.note(name, "accepted")
