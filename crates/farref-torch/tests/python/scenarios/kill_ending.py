"""A Python worker is killed while the peer waits at the end: the peer ends at once, and says who is gone."""

import os
import signal

import torch.distributed.rpc as rpc

import harness
import worker_api


def waits(group):
    """Whether the peer has told the leader of the all-gather that it is there, if that is this worker."""
    if min(group.pythons + group.peers) != group.name:
        return True
    gathered = [state.gathered_objects for state in list(rpc.api._all_gather_sequence_id_to_states.values())]
    return any(group.peer in names for names in gathered) or gathered


def run(group):
    group.join()
    victim = group.pythons[-1]
    if group.name != group.main:
        worker_api.finished.wait()
        harness.stop_rpc(group.rank, graceful=False)
        return
    group.meet([group.name] + group.peers)
    pid = group.ask(victim, "pid")
    group.ask(group.peer, "stop", True, victim)
    # It waits for the others, who have not asked for the end, and still serves.
    harness.until("the peer waits", lambda: waits(group))
    group.checks.equal("the peer serves while it waits", group.ask(group.peer, "echo", "waits"), "waits")
    os.kill(pid, signal.SIGKILL)

    def is_gone():
        try:
            group.ask(group.peer, "nothing")
        except RuntimeError:
            return True
        return "the peer is there"

    harness.until("the peer ends", is_gone)
    group.checks.that("the peer ends, whoever else waits", True)
    for other in group.pythons[1:-1]:
        group.dismiss(other, "finish")
    harness.stop_rpc(group.rank, graceful=False)
