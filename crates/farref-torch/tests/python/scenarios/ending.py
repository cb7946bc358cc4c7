"""A graceful end while calls are under way and references are still held: nobody loses an answer, nothing leaks."""

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api
from scenarios import kill_ending

# A call of it lasts until the gate of the worker that runs it is opened.
GATE = "harness.begin_and_pass_gate"


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
        gate = lambda worker, value: [worker, GATE, [value], harness.PATIENCE]
        by_other = (peer, "peer_api.caught", gate(group.name, "by other"))
        calls = [
            rpc.rpc_async(peer, peer_api.caught, args=tuple(gate(group.name, "by me"))),
            rpc.rpc_async(peer, peer_api.caught, args=tuple(gate(other, "of other"))),
            rpc.rpc_async(other, worker_api.caught, args=by_other),
        ]
        at_gates = lambda: harness.begun() + rpc.rpc_sync(other, harness.begun)
        all_calls = ["by me", "by other", "of other"]
        harness.until("all calls have begun", lambda: at_gates() == all_calls or at_gates())
        group.finish([other], [peer])
        harness.until("the peer leaves", lambda: kill_ending.waits(group))
        check.equal("served while leaving", group.ask(peer, "echo", "late"), "late")
        worker_api.open_gate()
        rpc.rpc_sync(other, worker_api.open_gate)
        answer = lambda value: {"kind": None, "value": value}
        answers = [answer("by me"), answer("of other"), answer(answer("by other"))]
        check.equal("answers of slow calls", [call.wait() for call in calls], answers)
        rpc.rpc_async(peer, peer_api.sleep, args=(0.5,))
    harness.stop_rpc(group.rank)
    check.that("graceful shutdown without leaks", True)
