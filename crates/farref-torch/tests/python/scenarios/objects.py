"""Objects behind references: methods of the peer's objects, methods of Python's, and references inside of objects."""

import functools
import gc

import torch
import torch.distributed.rpc as rpc

import peer_api
import worker_api
from harness import until


class Holder:
    """An object of a user's program that has a reference in an attribute."""

    def __init__(self, rref):
        self.rref = rref


def main(group):
    check, peer, me = group.checks, group.peer, group.name
    other = group.pythons[1]

    # Methods of an object on the peer.
    counter = rpc.remote(peer, peer_api.Counter, args=(10,))
    check.equal("rpc_sync", counter.rpc_sync().add(5), 15)
    check.equal("with a default", counter.rpc_sync().add(), 16)
    check.equal("with a keyword", counter.rpc_sync().add(n=4), 20)
    check.equal("rpc_async", counter.rpc_async().add(1).wait(), 21)
    result = counter.remote().add(1)
    check.equal("remote", (result.to_here(), result.owner_name()), (22, peer))
    check.equal("value", counter.rpc_sync().value(), 22)
    check.equal("the default start", rpc.remote(peer, peer_api.Counter).rpc_sync().value(), 0)
    futures = [counter.rpc_async().add(1) for _ in range(50)]
    check.equal("50 at once", sorted(future.wait() for future in futures), list(range(23, 73)))
    # Functions that have arguments already. A method of a proxy is one, and can be sent to where its object is.
    check.equal("a partial", rpc.rpc_sync(peer, functools.partial(peer_api.add, 1), args=(2,)), 3)
    check.equal("with a keyword", rpc.rpc_sync(peer, functools.partial(peer_api.join, sep="/"), args=("a", "c")), "a/c")
    check.equal("left there", rpc.remote(peer, functools.partial(peer_api.add, b=4), args=(3,)).to_here(), 7)
    check.equal("a method that is sent", rpc.rpc_sync(peer, counter.rpc_sync().add, args=(1,)), 73)
    check.equal("with a keyword", rpc.rpc_async(peer, counter.rpc_sync().add, kwargs={"n": -1}).wait(), 72)
    check.error("no method", "AttributeError", ["not_served"], lambda: rpc.rpc_sync(peer, counter.rpc_sync().not_served))
    # Another worker uses it, too.
    group.ask(other, "hold", "counter", counter)
    check.equal("from another worker", group.ask(other, "held_call", "counter", "add", [3]), 75)
    # The peer calls it itself, through the same reference.
    group.ask(peer, "hold", "mine", counter)
    check.equal("by the peer", group.ask(peer, "held_call", "mine", "value", []), 75)
    group.ask(peer, "drop", "mine")
    # The first reference goes, the object stays for the others.
    del counter, result, futures
    gc.collect()
    check.equal("as long as somebody has it", group.ask(other, "held_call", "counter", "add", [1]), 76)
    group.ask(other, "drop", "counter")
    group.settle([peer])
    # An object that the peer has made.
    group.ask(peer, "own_counter", "own", 100)
    own = group.ask(peer, "give", "own")
    check.equal("made by the peer", own.rpc_sync().add(1), 101)
    group.ask(peer, "drop", "own")
    check.equal("the peer lets go of its own", own.rpc_sync().add(1), 102)
    del own

    store = rpc.remote(peer, peer_api.Store)
    store.rpc_sync().put("a", torch.arange(4.0))
    store.rpc_sync().put("b", torch.arange(6).reshape(2, 3).t())
    check.equal("a store of tensors", store.rpc_sync().names(), ["a", "b"])
    check.equal("get", store.rpc_sync().get("b"), torch.arange(6).reshape(2, 3).t())
    check.equal("get, remotely", store.remote().get("a").to_here(), torch.arange(4.0))
    check.error("there is none", "KeyError", ["c"], lambda: store.rpc_sync().get("c"))
    del store

    # The peer calls methods of Python's objects, here and on the other worker.
    for owner in [me, other]:
        group.ask(owner, "own_ledger", "ledger", "of " + owner)
        group.ask(owner, "share", "ledger", peer, "peer_api.hold", "ledger of " + owner)
        for number in range(3):
            line = {"n": number, "x": torch.full((2,), float(number))}
            got = group.ask(peer, "held_call", "ledger of " + owner, "write", [line])
            check.equal("the peer writes into a ledger of " + owner, got, number + 1)
        seen = group.ask(peer, "held_call", "ledger of " + owner, "read", [])
        check.equal("and reads it", (seen["title"], len(seen["lines"])), ("of " + owner, 3))
        words = ["no more paper"]
        check.error("its error", None, words, lambda: group.ask(peer, "held_call", "ledger of " + owner, "fail", words))
        group.ask(peer, "drop", "ledger of " + owner)
        group.ask(owner, "drop", "ledger")
    # The peer makes one by itself.
    group.ask(peer, "make_on", "ledger", other, "worker_api.Ledger", ["made by the peer"])
    check.equal("made by the peer", group.ask(peer, "held_call", "ledger", "write", ["x"]), 1)
    group.ask(peer, "share", "ledger", me, "worker_api.hold", "ledger")
    group.ask(peer, "drop", "ledger")
    check.equal("used by Python", worker_api.held_call("ledger", "read", []), {"title": "made by the peer", "lines": ["x"]})
    worker_api.drop("ledger")

    # References in attributes, containers and closures live as long as these do.
    group.settle(group.pythons + group.peers)
    holder = Holder(rpc.remote(peer, peer_api.echo, args=(["attribute"],)))
    nested = {"list": [rpc.remote(peer, peer_api.echo, args=(i,)) for i in range(5)]}

    def closing_over(rref):
        return lambda: rref.to_here()

    closure = closing_over(rpc.remote(peer, peer_api.echo, args=("closure",)))
    check.equal("in an attribute", holder.rref.to_here(), ["attribute"])
    check.equal("in a list in a dict", [r.to_here() for r in nested["list"]], list(range(5)))
    check.equal("in a closure", closure(), "closure")
    check.equal("the peer has seven values", group.ask(peer, "snapshot")["num_owner_rrefs"], 7)
    del holder
    becomes(group, "after the attribute", 6)
    nested["list"].pop()
    becomes(group, "after one of the list", 5)
    nested.clear()
    becomes(group, "after the list", 1)
    closure = None
    becomes(group, "after the closure", 0)
    # References inside of an argument, and inside of a result.
    inner = rpc.remote(peer, peer_api.echo, args=("inner",))
    back = rpc.rpc_sync(peer, peer_api.echo, args=({"deep": [(inner, 1)]},))
    check.equal("a reference inside of a value", back["deep"][0][0].to_here(), "inner")
    mine = rpc.RRef(torch.ones(2))
    back = rpc.rpc_sync(peer, peer_api.echo, args=([mine, mine],))
    check.that("my own comes back as mine", back[0].is_owner() and back[1].is_owner())
    check.equal("and has its value", back[1].local_value(), torch.ones(2))
    outer = rpc.remote(peer, peer_api.echo, args=([inner],))
    check.equal("a value that is a reference", outer.to_here()[0].to_here(), "inner")


def becomes(group, name, number):
    def there():
        gc.collect()
        count = group.ask(group.peer, "snapshot")["num_owner_rrefs"]
        return count == number or count

    until(name, there)
    group.checks.that("%s the peer has %d values" % (name, number), True)
