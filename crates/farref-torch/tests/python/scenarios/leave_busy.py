"""A worker leaves a dynamic group while calls of its own are open: they are answered, and it goes."""

import torch.distributed.rpc as rpc

import harness
import peer_api
import worker_api


def run(group):
    group.join()
    check, peer = group.checks, group.peer
    if group.name == group.main:
        group.meet(group.pythons + group.peers)
        group.finish(group.pythons[1:])
        harness.until("the other has left", lambda: group.pythons[1] not in group.ask(peer, "workers"))
        check.equal("the peer goes on", group.ask(peer, "echo", "on"), "on")
        group.finish((), group.peers)
        group.leave()
        return
    worker_api.finished.wait()
    answers = []
    # Python waits for them before it goes. What comes too late is an error of time.
    for _ in range(3):
        rpc.rpc_async(peer, peer_api.sleep, args=(2.0,)).then(lambda call: answers.append(call.value()))
    harness.stop_rpc(group.rank)
    check.equal("answers of calls that were open", answers, [2.0] * 3)
