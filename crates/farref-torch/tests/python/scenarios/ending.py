"""A graceful end while calls are under way and references are still held: nobody loses an answer, nothing leaks."""

import time

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    group.join()
    check, peer = group.checks, group.peer
    if group.name != group.main:
        worker_api.finished.wait()
    else:
        other = group.pythons[1]
        # References that nobody lets go of: Python's held by the peer, the peer's held by Python, and a third worker's.
        group.ask(group.name, "own", "kept", ["python"])
        group.ask(group.name, "share", "kept", peer, "peer_api.hold", "kept by the peer")
        group.ask(peer, "own", "kept of the peer", ["peer"])
        group.ask(peer, "share", "kept of the peer", other, "worker_api.hold", "kept by other")
        group.ask(peer, "make_on", "made", other, "worker_api.echo", ["third"])
        group.ask(peer, "own_counter", "counter", 0)
        group.kept = group.ask(peer, "give", "counter")
        check.equal("held by the peer", group.ask(peer, "held", "kept by the peer"), ["python"])
        check.equal("held by the other", group.ask(other, "held", "kept by other"), ["peer"])
        check.equal("made by the peer", group.ask(peer, "held", "made"), "third")
        # Calls that outlast the beginning of the end: to the peer, and from the peer.
        calls = [
            rpc.rpc_async(peer, peer_api.sleep, args=(1.0,)),
            rpc.rpc_async(peer, peer_api.call_back, args=(other, "worker_api.sleep", [1.0])),
            rpc.rpc_async(other, worker_api.call_back, args=(peer, "peer_api.sleep", [1.0])),
        ]
        time.sleep(0.2)
        group.finish([other], [peer])
        # The others are leaving by now, and still answer.
        check.equal("served while leaving", group.ask(peer, "echo", "late"), "late")
        check.equal("answers of slow calls", [call.wait() for call in calls], [1.0] * 3)
        rpc.rpc_async(peer, peer_api.sleep, args=(0.5,))
    harness.stop_rpc(group.rank)
    check.that("graceful shutdown without leaks", True)
