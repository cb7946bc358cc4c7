"""What the Python workers of a test serve, for the peer and for each other.

Peers name these functions by text ("worker_api.double"). Those that `peer_api` has, too, mean the same here.
"""

import builtins
import os
import threading
import time

import torch
import torch.distributed.rpc as rpc

import references


def nothing():
    return None


def echo(value):
    return value


def double(value):
    return value + value


def join(first, second="b", *, sep="-"):
    return first + sep + second


def fail(text, kind="RuntimeError"):
    raise getattr(builtins, kind)(text)


def sleep(seconds):
    time.sleep(seconds)
    return seconds


_gate = threading.Event()


def close_gate():
    _gate.clear()


def open_gate():
    _gate.set()


def pass_gate():
    """Answers when the gate is open, as late as the test wants it."""
    _gate.wait()


@rpc.functions.async_execution
def later(value):
    """Returns a future, whose value comes from another thread."""
    future = torch.futures.Future()
    threading.Timer(0.05, future.set_result, (value,)).start()
    return future


@rpc.functions.async_execution
def never():
    """Returns a future that has no value, ever."""
    return torch.futures.Future()


_naps = {"begun": 0, "ended": 0}


def noted_sleep(seconds):
    _naps["begun"] += 1
    time.sleep(seconds)
    _naps["ended"] += 1
    return seconds


def naps():
    """How many `noted_sleep`s have begun here, and how many are over."""
    return dict(_naps)


class Ledger:
    """A Python object whose methods the peer calls."""

    def __init__(self, title):
        self.title, self.lines = title, []

    def write(self, line):
        self.lines.append(line)
        return len(self.lines)

    def read(self):
        return {"title": self.title, "lines": list(self.lines)}

    def fail(self, text):
        raise ValueError(text)

    @rpc.functions.async_execution
    def later(self, value):
        return later(value)


def own_ledger(key, title):
    references.hold(key, rpc.RRef(Ledger(title)))


# ---- references, as in peer_api ----


def hold(key, rref):
    return references.hold(key, rref)


def held(key):
    return references.held(key)


def held_call(key, method, args):
    return references.held_call(key, method, args)


def owner_of(key):
    return references.owner_of(key)


def give(key):
    return references.find(key)


def drop(key):
    references.drop(key)


def own(key, value):
    references.own(key, value)


def make_on(key, worker, function, args):
    references.make_on(key, worker, function, args)


def share(key, worker, function, new_key):
    return references.share(key, worker, function, new_key)


def pass_on(rref, worker, function, new_key):
    return references.pass_on(rref, worker, function, new_key)


def take(new_key, worker, function, key):
    return references.take(new_key, worker, function, key)


def call_back(worker, function, args):
    return references.call(worker, function, args)


def caught(worker, function, args, timeout=None):
    return references.caught(worker, function, args, timeout)


# ---- distributed autograd, as in peer_api ----

_linear = references.Linear()


def set_linear(weight, bias):
    _linear.set(weight, bias)


def linear(x):
    return _linear(x)


def linear_then(x, worker, function, args):
    return references.call(worker, function, (torch.relu(_linear(x)), *args))


def linear_loss(x, target):
    return _linear.loss(x, target)


def gradient(context_id):
    return _linear.gradient(context_id)


def parameters():
    return _linear.parameters()


def parameter_rrefs():
    """RRefs to the parameters themselves, for `DistributedOptimizer`, which changes them in place."""
    return [rpc.RRef(_linear.weight), rpc.RRef(_linear.bias)]


# ---- the worker itself ----


def snapshot():
    return references.snapshot()


def workers():
    return sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos())


def pid():
    return os.getpid()


finished = threading.Event()


def finish():
    """The main worker of a scenario is done with this one."""
    finished.set()
