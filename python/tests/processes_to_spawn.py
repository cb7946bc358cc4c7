"""What processes do that tests spawn."""

import glob
import multiprocessing
import os
import pathlib
import signal
import sys
import time

import farref
import remote_functions as there
from testkit import TEST_TIMEOUT, eventually


def all_call_all(me, word, *, times=1):
    assert times == 2
    assert [peer.call(there.same, word) for peer in me.peers()] == [word] * 3


def one_fails(me):
    if me.rank == 1:
        raise LookupError("of worker1")


def one_fails_and_others_work(me, folder):
    if me.rank == 1:
        raise LookupError("of worker1")
    time.sleep(TEST_TIMEOUT)
    pathlib.Path(folder, "worked").touch()


def one_fails_at_length(me):
    if me.rank == 1:
        raise LookupError("of worker1, which has much to say: " + "x" * 300_000)


def one_is_killed(me):
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def all_exit(me, code):
    sys.exit(code)


class LateForTheSecond:
    """An argument that the second process reads when the file is there: until then it has not joined."""

    def __init__(self, file):
        self.file = file

    def __setstate__(self, state):
        self.__dict__.update(state)
        eventually(lambda: multiprocessing.current_process().name != "worker1" or os.path.exists(self.file))


def both_are_there(me, late):
    assert [peer.call(there.process) != os.getpid() for peer in me.peers()].count(False) == 1


def joins_in_the_place_of_the_second(folder, token, file):
    """A program of somebody else's: what becomes of it if it joins."""
    store = eventually(lambda: glob.glob(f"{folder}/farref-*/store"))[0]
    try:
        farref.join(name="worker1", rank=1, world_size=2, rendezvous=f"file://{store}", token=token, join_timeout=TEST_TIMEOUT)
        print("joined", flush=True)
    except farref.Error as error:
        print(type(error).__name__, error, flush=True)
    finally:
        pathlib.Path(file).touch()
    os._exit(0)
