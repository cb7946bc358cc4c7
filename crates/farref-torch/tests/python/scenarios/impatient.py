"""A peer that does not wait for the others at the end, and asks for it again, twice at once: it is counted once."""

import os

import harness
import worker_api


def run(group):
    group.join()
    check, peer = group.checks, group.peer
    if group.name == group.main:
        group.meet(group.pythons + group.peers)
        group.finish((), [peer])
        # It gives up once, and then waits again.
        harness.wait_for_turn(os.path.join(group.options.scratch, "gave-up"))
        check.equal("served while it waits", group.ask(peer, "echo", "late"), "late")
        group.finish(group.pythons[1:])
    else:
        worker_api.finished.wait()
    harness.stop_rpc(group.rank)
    check.that("graceful shutdown without leaks", True)
