"""Calls both ways, with every kind of plain value, by rpc_sync, rpc_async and remote."""

import collections
import math

import torch
import torch.distributed.rpc as rpc

import peer_api
import worker_api

Pair = collections.namedtuple("Pair", ["a", "b"])

VALUES = {
    "none": None,
    "bools": [True, False],
    "small ints": [0, 1, 255, 256, 65535, 65536, -1, -128, -129, 2**31 - 1, -(2**31)],
    "large ints": [2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1, -(2**63)],
    "floats": [0.0, 1.5, -2.25, 1e300, 5e-324, 0.1, math.inf, -math.inf],
    "nan": math.nan,
    "minus zero": -0.0,
    "strings": ["", "a", "h\u00e9llo", "\u65e5\u672c\u8a9e", "\U0001f600", "nul\x00inside", "line\nbreak", "back\\slash"],
    "long string": "x\u00e9" * 40000,
    "bytes": [b"", b"abc", bytes(range(256)), b"\x00" * 70000],
    "lists": [[], [7], [[[]]], list(range(3000))],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)],
    "dicts": [{}, {"a": 1}, {"a": 1, 2: "b", (3, 4): None, 1.5: [1, {"deep": (True,)}]}],
    "sets": [set(), {1, 2, 3}, {"x", "y"}],
    "record": {"rows": [{"id": i, "tags": ["t%d" % i], "pos": (i, i / 2)} for i in range(50)], "ok": True},
    "shared": [["same"]] * 3 + ["repeat", "repeat"],
    "many keys": {"key%d" % i: i for i in range(2000)},
    "deep": None,
}
for _ in range(60):
    VALUES["deep"] = [VALUES["deep"]]


def main(group):
    check, peer, me = group.checks, group.peer, group.name
    # Python calls the peer.
    for name, value in VALUES.items():
        check.equal("echo of " + name, rpc.rpc_sync(peer, peer_api.echo, args=(value,)), value)
        check.equal("echo, there and back: " + name, back(group, "worker_api.echo", value), value)
        # On its own, too: a value at the top is written in another way than one inside of a list.
        for item in value if isinstance(value, list) and name != "deep" else []:
            check.equal("echo of one of " + name, rpc.rpc_sync(peer, peer_api.echo, args=(item,)), item)
    zero = rpc.rpc_sync(peer, peer_api.echo, args=(-0.0,))
    check.that("the sign of zero is kept", math.copysign(1, zero) == -1)
    kinds = {
        "n": None, "b": True, "i": 1, "f": 1.0, "s": "s", "y": b"y", "l": [], "t": (), "d": {}, "e": {1},
        "x": torch.ones(1), "r": rpc.RRef(1),
    }  # fmt: skip
    named = dict(n="None", b="bool", i="int", f="float", s="str", y="bytes", l="list", t="tuple", d="dict", e="set")
    described = rpc.rpc_sync(peer, peer_api.describe, args=(kinds,))
    check.equal("the peer knows what it got", described, {**named, "x": "tensor", "r": "rref"})
    check.equal("nothing", rpc.rpc_sync(peer, peer_api.nothing), None)
    check.equal("add", rpc.rpc_sync(peer, peer_api.add, args=(2**62, -5)), 2**62 - 5)
    check.equal("concat", rpc.rpc_sync(peer, peer_api.concat, args=(["a", "\u00e9", ""],)), "a\u00e9")
    # Keywords.
    check.equal("a default", rpc.rpc_sync(peer, peer_api.join, args=("a",)), "a-b")
    check.equal("a keyword", rpc.rpc_sync(peer, peer_api.join, args=("a", "c"), kwargs={"sep": "/"}), "a/c")
    check.equal("only keywords", rpc.rpc_sync(peer, peer_api.join, kwargs={"second": "y", "first": "x"}), "x-y")
    check.equal("keywords of add", rpc.rpc_async(peer, peer_api.add, kwargs={"b": 1, "a": 2}).wait(), 3)
    # PyTorch calls `function(*args, **kwargs)`: a list will do, as in two of its tutorials, and all that unpacks.
    check.equal("args is a list", rpc.rpc_sync(peer, peer_api.add, args=[1, 2]), 3)
    check.equal("the same, asynchronously", rpc.rpc_async(peer, peer_api.add, args=[3, 4]).wait(), 7)
    check.equal("the same, remotely", rpc.remote(peer, peer_api.add, args=[5, 6]).to_here(), 11)
    check.equal("a list for a constructor", rpc.remote(peer, peer_api.Counter, args=[40]).rpc_sync().add(2), 42)
    check.equal("a list for an operator", rpc.rpc_sync(peer, torch.add, args=[torch.ones(2), 1]), torch.full((2,), 2.0))
    check.equal("args is a deque", rpc.rpc_sync(peer, peer_api.add, args=collections.deque([1, 2])), 3)
    check.equal("args is a named tuple", rpc.rpc_sync(peer, peer_api.add, args=Pair(1, 2)), 3)
    check.equal("args is a dict", rpc.rpc_sync(peer, peer_api.add, args={1: "", 2: ""}), 3)
    named = collections.OrderedDict(b=1, a=2)
    check.equal("kwargs is an OrderedDict", rpc.rpc_sync(peer, peer_api.add, kwargs=named), 3)
    # Under the old profiler, which asks for what happened on the callee; a peer may have nothing to tell.
    with torch.autograd.profiler_legacy.profile():
        check.equal("profiled", rpc.rpc_sync(peer, peer_api.add, args=(1, 2)), 3)
        check.equal("profiled, remote", rpc.remote(peer, peer_api.add, args=(3, 4)).to_here(), 7)
        check.equal("profiled operator", rpc.rpc_sync(peer, torch.add, args=(torch.ones(2), 1)), torch.full((2,), 2.0))
        check.error("profiled, failing", "ValueError", ["no"], lambda: rpc.rpc_sync(peer, peer_api.fail, args=("no", "ValueError")))
    # Asynchronously: answers come in any order.
    slow = rpc.rpc_async(peer, peer_api.sleep, args=(0.5,))
    futures = [rpc.rpc_async(peer, peer_api.add, args=(i, i)) for i in range(100)]
    check.equal("100 at once", [future.wait() for future in futures], [2 * i for i in range(100)])
    check.equal("a slow call is not in the way", slow.wait(), 0.5)
    # Futures with a continuation.
    then = rpc.rpc_async(peer, peer_api.add, args=(1, 2)).then(lambda future: future.wait() + 1)
    check.equal("a continuation", then.wait(), 4)
    # Remote.
    rref = rpc.remote(peer, peer_api.add, args=(20, 22))
    check.equal("remote", rref.to_here(), 42)
    check.equal("remote, owner", (rref.owner_name(), rref.is_owner()), (peer, False))
    check.equal("remote with keywords", rpc.remote(peer, peer_api.join, args=("p",), kwargs={"sep": "+"}).to_here(), "p+b")
    check.equal("remote of nothing", rpc.remote(peer, peer_api.nothing).to_here(), None)
    record = rpc.remote(peer, peer_api.echo, args=(VALUES["record"],))
    check.equal("remote of a record, twice", [record.to_here(), record.to_here()], [VALUES["record"]] * 2)
    slow = rpc.remote(peer, peer_api.sleep, args=(0.3,))
    check.equal("a value that is not there yet", slow.to_here(), 0.3)
    # The peer calls Python: itself, another function, a torch function.
    check.equal("the peer calls Python", back(group, "worker_api.double", "ab"), "abab")
    check.equal("with a tensor", back(group, "worker_api.double", torch.arange(3)), torch.arange(3) * 2)
    check.equal("the peer calls torch", back(group, "torch.sub", torch.ones(2), 3), torch.full((2,), -2.0))
    nested = rpc.rpc_sync(
        peer, peer_api.call_back, args=(me, "worker_api.call_back", [peer, "peer_api.call_back", [me, "worker_api.double", [4]]])
    )
    check.equal("to and fro, four deep", nested, 8)
    rpc.rpc_sync(peer, peer_api.make_on, args=("made", me, "worker_api.double", [[1, "x"]]))
    check.equal("the peer's remote()", rpc.rpc_sync(peer, peer_api.held, args=("made",)), [1, "x", 1, "x"])
    rpc.rpc_sync(peer, peer_api.drop, args=("made",))


def back(group, function, *args):
    return rpc.rpc_sync(group.peer, peer_api.call_back, args=(group.name, function, list(args)))
