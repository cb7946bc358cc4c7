"""What processes do that tests spawn."""

import remote_functions as there


def all_call_all(me, word):
    assert [peer.call(there.same, word) for peer in me.peers()] == [word] * 3


def one_fails(me):
    if me.rank == 1:
        raise LookupError("of worker1")
