"""A Python worker is killed in the middle: the others get errors instead of waiting, and go on with each other."""

import os
import signal

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    # All are there once the group exists; the victim is the last of the Python workers in the list.
    group.join()
    victim = group.pythons[-1]
    if group.name == victim:
        worker_api.finished.wait()
        raise AssertionError("the victim was not killed")
    check, peer = group.checks, group.peer
    # Everybody has references of everybody.
    group.ask(victim, "own", "value", ["of the victim"])
    group.ask(victim, "share", "value", peer, "peer_api.hold", "of the victim")
    group.ask(peer, "own", "value", ["of the peer"])
    group.ask(peer, "share", "value", victim, "worker_api.hold", "of the peer")
    mine = group.ask(peer, "give", "value")
    # What the victim had made on the peer, and handed on to this worker.
    group.ask(victim, "make_on", "made", peer, "peer_api.echo", [["made by the victim"]])
    made = group.ask(victim, "give", "made")
    check.equal("before: what the victim had made", made.to_here(), ["made by the victim"])
    check.equal("before: the peer uses it", group.ask(peer, "held", "of the victim"), ["of the victim"])
    check.equal("before: the victim uses it", group.ask(victim, "held", "of the peer"), ["of the peer"])
    # Calls are under way: from the peer to the victim, from here to the victim, and from the victim to the peer.
    pid = group.ask(victim, "pid")
    by_peer = rpc.rpc_async(peer, peer_api.caught, args=(victim, "worker_api.sleep", [harness.LIFETIME]), timeout=0)
    by_me = rpc.rpc_async(victim, worker_api.sleep, args=(harness.LIFETIME,), timeout=0)
    rpc.rpc_async(victim, worker_api.call_back, args=(peer, "peer_api.sleep", [2.0]), timeout=0)
    rpc.rpc_sync(peer, peer_api.sleep, args=(0.5,))
    os.kill(pid, signal.SIGKILL)
    check.error("my call ends with an error", None, [], by_me.wait)
    seen = by_peer.wait()
    check.that("the peer's call ends with an error", seen["kind"] is not None, seen)
    check.note("what the peer saw", seen["text"].split("\n")[0][:300])
    seen = group.ask(peer, "caught", victim, "worker_api.echo", [1])
    check.that("the next call of the peer, too", seen["kind"] is not None, seen)
    check.error("a value of the victim is lost", None, [], lambda: group.ask(peer, "held", "of the victim"))
    # The peer goes on.
    check.equal("the peer serves", group.ask(peer, "add", 1, 2), 3)
    check.equal("its values are there", mine.to_here(), ["of the peer"])
    check.equal("what the victim had made there is there, too", made.to_here(), ["made by the victim"])
    check.equal("it calls me", group.ask(peer, "call_back", group.name, "worker_api.double", [21]), 42)
    # Nobody can leave gracefully from here: a static group needs all its members for that.
    group.dismiss(peer, "stop", False)
    harness.stop_rpc(group.rank, graceful=False)
    check.that("shutdown without the victim", True)
