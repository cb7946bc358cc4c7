"""A dynamic group: workers join later, leave early, and the others go on."""

import torch.distributed.rpc as rpc

import worker_api
from harness import until


def run(group):
    group.join()
    if group.name == group.main:
        drive(group)
    else:
        worker_api.finished.wait()
    group.leave()


def drive(group):
    first, second = group.peers
    late = group.pythons[1]
    here = [group.name]
    # Plans differ in who is there from the start: a peer that hosts the store is.
    if group.rank == 0:
        group.checks.equal("alone", worker_api.workers(), [group.name])
        group.signal(first)
    arrives(group, here, first)
    group.signal(late)
    arrives(group, here, late)
    # References between all three, so that the one that leaves has had some.
    group.ask(late, "own", "before leaving", [1, 2])
    group.ask(late, "share", "before leaving", first, group.named(first, "hold"), "of late")
    group.checks.equal("the peer uses a newcomer's value", group.ask(first, "held", "of late"), [1, 2])
    group.ask(first, "drop", "of late")
    group.ask(late, "drop", "before leaving")
    group.settle(here)
    # A Python worker leaves.
    group.finish([late])
    leaves(group, here, late)
    # A second peer arrives, after somebody has left.
    group.signal(second)
    arrives(group, here, second)
    group.ask(first, "own", "peers", "between peers")
    group.ask(first, "share", "peers", second, group.named(second, "hold"), "peers")
    group.ask(first, "drop", "peers")
    group.checks.equal("a peer uses a peer's value", group.ask(second, "held", "peers"), "between peers")
    group.ask(second, "drop", "peers")
    group.settle(here)
    # Peers leave, the one with the store last of all.
    group.finish((), [second])
    leaves(group, here, second)
    group.finish((), [first])
    if group.rank == 0:
        leaves(group, here, first)


def arrives(group, here, newcomer):
    here.append(newcomer)
    group.meet(here)
    for worker in here:
        until("%s knows %s" % (worker, newcomer), lambda: group.ask(worker, "workers") == sorted(here))
        for caller, callee in [(worker, newcomer), (newcomer, worker)]:
            got = group.ask(caller, "call_back", callee, group.named(callee, "echo"), [caller])
            group.checks.equal("%s calls %s" % (caller, callee), got, caller)


def leaves(group, here, worker):
    here.remove(worker)
    for other in here:
        until("%s sees %s leave" % (other, worker), lambda: group.ask(other, "workers") == sorted(here))
        group.checks.that("%s sees %s leave" % (other, worker), True)
        group.checks.equal("%s goes on" % other, group.ask(other, "echo", [worker]), [worker])
    group.checks.error("nobody of that name any more", None, [worker], lambda: rpc.rpc_sync(worker, worker_api.nothing))
