"""A Python worker of a dynamic group is killed. The peer takes it off the list and tells the others, so that all go on: one
joins, and each leaves in order."""

import os
import signal

import torch.distributed as dist

import harness
import worker_api


def run(group):
    group.join()
    if group.name == group.main:
        drive(group)
    else:
        worker_api.finished.wait()
    group.leave()


def drive(group):
    check, peer, late, victim = group.checks, group.peer, group.pythons[1], group.pythons[-1]
    group.meet([group.name, peer, victim])
    os.kill(group.ask(victim, "pid"), signal.SIGKILL)
    host, port = group.options.master.rsplit(":", 1)
    store = dist.TCPStore(host, int(port), None, False, wait_for_workers=False)

    def listed():
        names = store.get("rpc_prefix_0/names/_ALL_WORKER_INFOS").decode()
        return victim not in names or names

    harness.until("the victim is off the list", listed)
    check.that("the victim is off the list", True)
    for worker in [group.name, peer]:
        harness.until("%s knows it" % worker, lambda: group.ask(worker, "workers") == sorted([group.name, peer]))
        check.that("%s knows it" % worker, True)
    group.signal(late)
    here = [group.name, peer, late]
    group.meet(here)
    for worker in here:
        harness.until("%s knows the newcomer" % worker, lambda: group.ask(worker, "workers") == sorted(here))
    check.equal("the peer calls the newcomer", group.ask(peer, "call_back", late, "worker_api.echo", [1]), 1)
    check.equal("the newcomer calls the peer", group.ask(late, "call_back", peer, "peer_api.echo", [2]), 2)
    group.settle(here)
    group.finish([late])
    harness.until("the newcomer leaves", lambda: late not in group.ask(peer, "workers"))
    check.that("the newcomer leaves", True)
    group.finish((), [peer])
    harness.until("the peer leaves", lambda: peer not in worker_api.workers() or worker_api.workers())
    check.that("the peer leaves", True)
