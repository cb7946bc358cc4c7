"""Errors both ways: classes, texts, and that everything works afterwards."""

import dataclasses

import torch
import torch.distributed.rpc as rpc

import peer_api
import worker_api


@dataclasses.dataclass
class Unknown:
    """A class that no peer has heard of."""

    number: int


def main(group):
    check, peer, me = group.checks, group.peer, group.name

    def sync(function, *args, **kwargs):
        return lambda: rpc.rpc_sync(peer, function, args=args, kwargs=kwargs)

    def remote(function, *args):
        return lambda: rpc.remote(peer, function, args=args).to_here()

    for kind in ["RuntimeError", "ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "OverflowError"]:
        text = "the reason of %s" % kind
        words = [text, "name=%s" % peer]
        check.error("rpc_sync " + kind, kind, words, sync(peer_api.fail, text, kind))
        check.error("rpc_async " + kind, kind, words, rpc.rpc_async(peer, peer_api.fail, args=(text, kind)).wait)
        error = check.error("to_here " + kind, kind, words, remote(peer_api.fail, text, kind))
        check.equal("to_here raises the class itself: " + kind, type(error).__name__, kind)
    error = check.error("ValueError stays one", "ValueError", [], sync(peer_api.fail, "text", "ValueError"))
    check.that("rpc_sync raises ValueError itself", type(error) is ValueError)
    beyond = sync(peer_api.fail, "before \u00e9 after", "ValueError")
    check.error("a text beyond ASCII", "ValueError", ["before", "after"], beyond)
    check.error("a text with lines", "ValueError", ["one", "two"], sync(peer_api.fail, "one\ntwo", "ValueError"))
    check.error("a long text", "ValueError", ["x" * 5000], sync(peer_api.fail, "x" * 5000, "ValueError"))

    check.error("a panic", "RuntimeError", ["panic"], sync(peer_api.panic))
    check.error("a panic behind a reference", "RuntimeError", ["panic"], remote(peer_api.panic))
    check.error("an unknown function", "AttributeError", ["not_served"], sync(peer_api.not_served))
    check.error("an unknown function behind a reference", "AttributeError", ["not_served"], remote(peer_api.not_served))

    check.error("a wrong argument", "TypeError", ["int"], sync(peer_api.add, "a", 1))
    check.error("a bool is no number here", "TypeError", ["int"], sync(peer_api.add, True, 1))
    check.error("too few arguments", "TypeError", [], sync(peer_api.add, 1))
    check.error("too many arguments", "TypeError", [], sync(peer_api.add, 1, 2, 3))
    check.error("an unknown keyword", "TypeError", [], sync(peer_api.add, 1, b=2, c=3))
    check.error("an argument given twice", "TypeError", [], sync(peer_api.add, 1, 2, a=3))
    check.error("a list with something else", "TypeError", ["str"], sync(peer_api.concat, ["a", 1]))
    check.error("a sum beyond 64 bits", "OverflowError", ["64 bits"], sync(peer_api.add, 2**63 - 1, 1))
    for number in [2**63, -(2**63) - 1, 2**64, 10**40, 1 << 2100]:
        check.error("an int beyond 64 bits", "OverflowError", ["64 bits"], sync(peer_api.echo, [number]))
    check.error("a class of the caller", "TypeError", ["Unknown"], sync(peer_api.echo, Unknown(1)))
    check.error("a complex number", "TypeError", ["complex"], sync(peer_api.echo, {"z": complex(1, 2)}))

    counter = rpc.remote(peer, peer_api.Counter, args=(5,))
    check.error("a method that fails", "ValueError", ["on purpose"], lambda: counter.rpc_sync().fail("on purpose"))
    check.error("asynchronously", None, ["on purpose"], lambda: counter.rpc_async().fail("on purpose").wait())
    check.error("remotely", "ValueError", ["on purpose"], lambda: counter.remote().fail("on purpose").to_here())
    check.error("a method nobody has", "AttributeError", ["not_served"], lambda: counter.rpc_sync().not_served())
    check.error("an object stays where it is", None, ["Counter"], counter.to_here)
    check.equal("the counter is unharmed", counter.rpc_sync().add(1), 6)
    broken = rpc.remote(peer, peer_api.Counter, args=("five",))
    check.error("a constructor that fails", "TypeError", ["int"], broken.to_here)
    check.error("a method of what was never made", None, ["int"], lambda: broken.rpc_sync().value())
    del counter, broken

    shapes = (torch.ones(2, 2), torch.ones(3))
    check.error("a builtin that fails", None, ["size"], lambda: rpc.rpc_sync(peer, torch.add, args=shapes))
    check.error("behind a reference", None, ["size"], lambda: rpc.remote(peer, torch.add, args=shapes).to_here())

    # The peer sees what Python raises.
    def caught(worker, function, args, timeout=None):
        return rpc.rpc_sync(peer, peer_api.caught, args=(worker, function, args, timeout))

    for kind in ["ValueError", "KeyError", "RuntimeError", "ZeroDivisionError"]:
        seen = caught(me, "worker_api.fail", ["python's reason", kind])
        check.equal("the peer sees " + kind, seen["kind"], kind)
        check.that("with its text", "python's reason" in seen["text"].replace("\\", ""), seen["text"])
        check.that("and its sender", "name=%s" % me in seen["text"], seen["text"])
    seen = caught(me, "worker_api.there_is_no_such_function", [])
    # The stand-in fails to name it at all; a Rust peer asks, and Python answers. Both speak of an attribute.
    check.equal("a function Python does not have", seen["kind"], "AttributeError")
    check.that("it is named", "there_is_no_such_function" in seen["text"], seen["text"])
    seen = caught("nobody", "worker_api.echo", [1])
    check.equal("a worker that does not exist", seen["kind"], "RuntimeError")
    check.that("it is named", "nobody" in seen["text"], seen["text"])
    seen = caught(me, "worker_api.pass_gate", [], 0.3)
    check.equal("the peer's call runs out of time", seen["kind"], "timeout")
    worker_api.open_gate()
    check.equal("a call without error", caught(me, "worker_api.echo", [[1]]), {"kind": None, "value": [1]})
    words = ["deep reason"]
    check.error("through two workers", None, words, sync(peer_api.call_back, me, "worker_api.fail", ["deep reason", "KeyError"]))
    check.error("behind a reference of a reference", None, words, behind_two(group))

    # The caller's time runs out; the answer that comes later harms nobody.
    worker_api.close_gate()
    late = lambda: rpc.rpc_sync(peer, peer_api.call_back, args=(me, "worker_api.pass_gate", []), timeout=0.2)
    check.error("too slow", "timeout", [], late)
    worker_api.open_gate()
    check.equal("all is well afterwards", rpc.rpc_sync(peer, peer_api.sleep, args=(1.0,)), 1.0)
    check.equal("and the other way", caught(me, "worker_api.sleep", [1.0]), {"kind": None, "value": 1.0})


def behind_two(group):
    """The peer holds a reference to a Python value that is an error, and is asked for it."""

    def ask():
        group.ask(group.peer, "make_on", "broken", group.name, "worker_api.fail", ["deep reason", "ValueError"])
        try:
            group.ask(group.peer, "held", "broken")
        finally:
            group.ask(group.peer, "drop", "broken")

    return ask
