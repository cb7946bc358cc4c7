"""A static group whose workers come one after the other, and end one after the other, in an order that the plan says.

Each lets the next one go when it begins, and each goes a moment later, so that the one before it waits already: in
`init_rpc` for the group, in `shutdown` for the rest of it. Those who wait for the end still serve the others.
"""

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api
from scenarios import join


def run(group):
    options, check = group.options, group.checks
    harness.wait_for_turn(options.start_when)
    harness.let_go(options.then)
    group.join()
    if group.name == group.main:
        join.main(group)
        keep_references(group)
        harness.let_go(options.end_first)
    harness.wait_for_turn(options.end_when)
    # Whoever is at its end already, or is not: all answer.
    for worker in group.pythons + group.peers:
        check.equal("%s serves before my end" % worker, group.ask(worker, "echo", group.name), group.name)
    for worker in group.peers:
        again = (group.name, "worker_api.echo", [worker])
        check.equal("%s calls me" % worker, rpc.rpc_sync(worker, peer_api.call_back, args=again), worker)
    harness.let_go(options.end_then)
    harness.stop_rpc(group.rank)
    check.that("graceful shutdown without leaks", True)


def keep_references(group):
    """References that nobody lets go of before the end: the owners learn at the end that they may."""
    peer, other = group.peer, group.pythons[1]
    group.ask(group.name, "own", "mine", ["python"])
    group.ask(group.name, "share", "mine", peer, "peer_api.hold", "of python")
    group.ask(peer, "own", "theirs", ["peer"])
    group.ask(peer, "share", "theirs", other, "worker_api.hold", "of the peer")
    group.kept = rpc.remote(peer, peer_api.Counter, args=(3,))
    group.checks.equal("a peer's object", group.kept.rpc_sync().add(4), 7)
    group.checks.equal("held by the peer", group.ask(peer, "held", "of python"), ["python"])
    group.checks.equal("held by the other", group.ask(other, "held", "of the peer"), ["peer"])
