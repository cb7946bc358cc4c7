"""The peer is killed in the middle: Python workers get errors instead of waiting, and go on with each other."""

import os
import signal

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    group.join()
    check, peer = group.checks, group.peer
    if group.name == group.main:
        other = group.pythons[1]
        group.meet(group.pythons + group.peers)
        group.ask(group.name, "own", "value", ["mine"])
        group.ask(group.name, "share", "value", peer, "peer_api.hold", "of main")
        theirs = rpc.remote(peer, peer_api.echo, args=(["of the peer"],))
        group.ask(other, "hold", "of the peer", theirs)
        check.equal("before: used by the other", group.ask(other, "held", "of the peer"), ["of the peer"])
        check.equal("before: used by the peer", group.ask(peer, "held", "of main"), ["mine"])
        pid = group.ask(peer, "pid")
        # The peer is at a call when it asks this worker in turn, which does not answer.
        waits = lambda whose: [group.name, "harness.begin_and_pass_gate", [whose], harness.LIFETIME]
        by_me = rpc.rpc_async(peer, peer_api.caught, args=tuple(waits("mine")), timeout=0)
        args = (peer, "peer_api.caught", waits("other's"), 0)
        by_other = rpc.rpc_async(other, worker_api.caught, args=args, timeout=0)
        begun = lambda: harness.begun() == ["mine", "other's"] or harness.begun()
        harness.until("the peer is at both calls", begun)
        os.kill(pid, signal.SIGKILL)
        check.error("my call ends with an error", None, [], by_me.wait)
        seen = by_other.wait()
        check.that("so does another's", seen["kind"] is not None, seen)
        # The threads of this worker that wait at the gate would keep it from ending.
        worker_api.open_gate()
        check.note("what the other saw", seen["text"].split("\n")[0][:300])
        check.error("the next call, too", None, [], lambda: group.ask(peer, "echo", 1))
        check.error("a value of the peer is lost", None, [], theirs.to_here)
        check.equal("the others go on", group.ask(other, "call_back", group.name, "worker_api.double", [21]), 42)
        check.equal("what the peer had of me is still mine", worker_api.held("value"), ["mine"])
        group.dismiss(other, "finish")
    else:
        worker_api.finished.wait()
    # Counters cannot go back to zero: the peer has never let go.
    harness.stop_rpc(group.rank, graceful=False)
    check.that("shutdown without the peer", True)
