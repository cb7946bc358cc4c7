"""What processes do that tests spawn."""

import os
import pathlib
import signal
import sys
import time

import remote_functions as there


def all_call_all(me, word, *, times=1):
    assert times == 2
    assert [peer.call(there.same, word) for peer in me.peers()] == [word] * 3


def one_fails(me):
    if me.rank == 1:
        raise LookupError("of worker1")


def one_fails_and_others_work(me, folder):
    if me.rank == 1:
        raise LookupError("of worker1")
    time.sleep(15)
    pathlib.Path(folder, "worked").touch()


def one_fails_at_length(me):
    if me.rank == 1:
        raise LookupError("of worker1, which has much to say: " + "x" * 300_000)


def one_is_killed(me):
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def all_exit(me, code):
    sys.exit(code)
