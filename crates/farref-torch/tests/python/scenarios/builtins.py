"""Builtin operators of torch on the peer: what PyTorch sends as an aten schema, not as a Python function."""

import torch
import torch.distributed.rpc as rpc


def main(group):
    check, peer = group.checks, group.peer
    a = torch.tensor([[1.0, -2.0], [3.0, 4.0]])
    b = torch.tensor([[0.5, 8.0], [-1.0, 2.0]])
    whole = torch.tensor([[1, -2], [3, 4]])
    cases = [
        ("add", (a, b), {}), ("add", (a, 3), {}), ("add", (a, b), {"alpha": 2}), ("add", (a, 0.5), {}),
        ("add", (whole, whole), {}), ("add", (whole, 7), {}), ("add", (a, torch.ones(2)), {}),
        ("add", (a.double(), b.double()), {}),
        ("sub", (a, b), {}), ("sub", (a, 1), {}), ("mul", (a, b), {}), ("mul", (a, 2.5), {}), ("mul", (whole, whole), {}),
        ("div", (a, b), {}), ("div", (a, 4), {}),
        ("matmul", (a, b), {}), ("matmul", (a, torch.tensor([1.0, 2.0])), {}), ("mm", (a, b), {}), ("mm", (a.t(), b), {}),
        ("neg", (a,), {}), ("neg", (whole,), {}), ("relu", (a,), {}), ("sum", (a,), {}), ("sum", (whole,), {}),
        ("sum", (a, 1), {}), ("sum", (whole,), {"dtype": torch.float64}), ("sum", (a, 0, True), {}),
        ("zeros", ((2, 3),), {}), ("ones", ((4,),), {}), ("full", ((2, 2), 1.5), {}),
        ("zeros", ((2,),), {"dtype": torch.int64}), ("ones", ((2, 0),), {}), ("full", ((3,), 2.0), {"dtype": torch.float64}),
    ]  # fmt: skip
    for name, args, kwargs in cases:
        function = getattr(torch, name)
        want = function(*args, **kwargs)
        label = "torch.%s%s" % (name, tuple(getattr(x, "dtype", x) for x in args) + tuple(kwargs.items()))
        compare(check, label, rpc.rpc_sync(peer, function, args=args, kwargs=kwargs), want)
        compare(check, label + " behind a reference", rpc.remote(peer, function, args=args, kwargs=kwargs).to_here(), want)
    x = torch.arange(6.0).reshape(2, 3)
    compare(check, "the same tensor twice", rpc.rpc_sync(peer, torch.mul, args=(x, x)), x * x)
    compare(check, "views of one storage", rpc.rpc_sync(peer, torch.sub, args=(x[0], x[1])), x[0] - x[1])
    compare(check, "an expanded view", rpc.rpc_sync(peer, torch.sum, args=(torch.ones(1).expand(9),)), torch.tensor(9.0))
    check.error("an operator nobody has", None, ["inv"], lambda: unknown(group))


def compare(check, label, got, want):
    check.equal(label + ": dtype and shape", (got.dtype, got.shape), (want.dtype, want.shape))
    check.that(label, torch.allclose(got, want), "%r != %r" % (got, want))


def unknown(group):
    # A Python worker has this operator, too, but fails with its name: the matrix has no inverse.
    return rpc.rpc_sync(group.peer, torch.inverse, args=(torch.zeros(2, 2),))
