"""A peer leaves a dynamic group while others hold references to its values, keep calling it, and wait for answers of it that
never come: nothing of that keeps it, as it does not keep a Python worker. Its own calls it waits for."""

import threading

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    group.join()
    if group.name != group.main:
        worker_api.finished.wait()
        harness.stop_rpc(group.rank)
        return
    check, peer, other = group.checks, group.peer, group.pythons[1]
    group.meet(group.pythons + group.peers)
    # What others hold: a value of the peer's, made by this worker, which another one has, too.
    counter = rpc.remote(peer, peer_api.Counter, args=(40,))
    group.ask(other, "hold", "counter", counter)
    check.equal("used before", counter.rpc_sync().add(2), 42)
    # What the peer holds: it lets go of it.
    group.ask(peer, "make_on", "made", other, "worker_api.echo", ["made"])
    check.equal("made by the peer", group.ask(peer, "held", "made"), "made")
    # What others wait for: an answer that never comes, and one after the other.
    never = rpc.rpc_async(peer, peer_api.sleep, args=(1000.0,))
    failed = threading.Event()
    threads = [threading.Thread(target=keep_calling, args=(peer, failed), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    # What the peer waits for: a call of its own, which is answered.
    rpc.rpc_async(peer, peer_api.call_back, args=(other, "worker_api.noted_sleep", [3.0]))
    harness.until("the peer calls", lambda: rpc.rpc_sync(other, worker_api.naps)["begun"] == 1)
    group.finish((), [peer])
    harness.until("the peer has left", lambda: peer not in group.ask(other, "workers"))
    check.that("the peer leaves", True)
    for thread in threads:
        thread.join()
    check.that("nobody calls it any more", failed.is_set())
    check.error("no answer", None, [], never.wait)
    harness.until("let go of", lambda: group.ask(other, "snapshot")["num_owner_rrefs"] == 0)
    check.equal("its own call was over", rpc.rpc_sync(other, worker_api.naps), {"begun": 1, "ended": 1})
    del counter
    group.ask(other, "drop", "counter")
    group.finish([other])
    harness.stop_rpc(group.rank)
    check.that("the others go on, and end", True)


def keep_calling(peer, failed):
    try:
        while True:
            rpc.rpc_sync(peer, peer_api.sleep, args=(0.05,))
    except RuntimeError:
        failed.set()
