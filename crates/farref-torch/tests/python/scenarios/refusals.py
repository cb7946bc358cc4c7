"""Messages that the peer refuses, with references in them: their owners and those who handed them on hear of it.

A call that nobody serves, a tensor that no peer takes, an answer that the peer cannot read: each brings references
along. PyTorch's workers register what comes and let go of it again when the call fails, so that the owner forgets the
share and the sender its pending child. Who does not leaves both waiting: nothing would be in use only in name, which
`settle` at the end finds out, and `shutdown` hangs on.
"""

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

import peer_api
import worker_api

SPARSE = torch.eye(3).to_sparse()


def main(group):
    check, peer, other = group.checks, group.peer, group.pythons[1]
    group.meet(group.pythons + group.peers)

    def references():
        """Of this worker, of the other one, and of the peer itself."""
        return [
            rpc.RRef("of this one"),
            rpc.remote(other, worker_api.echo, args=("of the other",)),
            rpc.remote(peer, peer_api.echo, args=("of the peer",)),
        ]

    def sync(function, *args, **kwargs):
        return lambda: rpc.rpc_sync(peer, function, args=args, kwargs=kwargs)

    def remote(function, *args):
        return lambda: rpc.remote(peer, function, args=args).to_here()

    for way, call in [("rpc_sync", sync), ("remote", remote)]:
        for mine in references():
            name = "%s, %s" % (way, mine.owner_name())
            check.error("nobody serves it: " + name, "AttributeError", ["not_served"], call(peer_api.not_served, mine))
            check.error("no such tensors: " + name, None, ["sparse"], call(peer_api.echo, [mine, {"x": SPARSE}]))
            # A method without an object, and an object that travels along.
            check.error("no function: " + name, None, [], call(peer_api.Counter.add, mine, 1))
            check.error("no name: " + name, None, [], call(Bound(mine).method, mine))
    # A method of `rref.rpc_sync()` that is sent to another worker than the object's.
    for theirs in [rpc.RRef(worker_api.Ledger("mine")), rpc.remote(other, worker_api.Ledger, args=("theirs",))]:
        where = theirs.owner_name()
        check.error("a method that is not here: " + where, None, ["send it to that"], sync(theirs.rpc_sync().read))
    del theirs
    mine = references()
    check.error("many at once", "AttributeError", [], sync(peer_api.not_served, mine, again=mine))
    del mine
    group.settle(group.pythons + group.peers)

    # Answers that the peer cannot read.
    for mine in references():
        seen = rpc.rpc_sync(peer, peer_api.caught, args=(group.name, "scenarios.refusals.beside", [mine]))
        check.that("an answer that the peer cannot read", "sparse" in seen["text"], seen)
    del mine
    group.settle(group.pythons + group.peers)

    # A context that is there only by calls that were refused is over on the peer as well.
    with dist_autograd.context():
        x = torch.ones(2, requires_grad=True)
        check.error("in a context", "AttributeError", [], sync(peer_api.not_served, x, rpc.RRef(1)))
        check.error("in a context, remotely", "AttributeError", [], remote(peer_api.not_served, x, rpc.RRef(1)))
        check.error("in a context, with a tensor", None, ["sparse"], sync(peer_api.echo, [x, SPARSE]))
    group.settle(group.pythons + group.peers)


class Bound:
    """What its method is called on travels along with the call, and has a reference in it."""

    def __init__(self, rref):
        self.rref = rref

    def method(self, rref):
        raise AssertionError("it is called where there is no Python")


def beside(rref):
    return [rref, SPARSE]
