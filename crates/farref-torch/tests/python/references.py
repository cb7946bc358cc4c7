"""References kept under keys, made, handed on and used: the same on every Python process of a test.

`peer_api` and `worker_api` offer these under their own names, because a function travels as its name and each
kind of worker has names of its own. Functions of a third worker are named by text, as in "worker_api.hold".
"""

import gc
import importlib
import re
import threading

import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

_kept = {}
_lock = threading.Lock()

# What `rpc._get_debug_info()` counts that must be zero when nothing is in use. The other entries of it are about
# the pool of threads.
COUNTED = (
    "num_owner_rrefs",
    "num_forks",
    "num_pending_users",
    "num_pending_futures",
    "num_autograd_contexts",
    "num_current_backward_passes",
)


def function_named(name):
    """The function that a text like "worker_api.hold" means."""
    module, _, rest = name.partition(".")
    found = importlib.import_module(module)
    for part in rest.split("."):
        found = getattr(found, part)
    return found


def call(worker, function, args):
    return rpc.rpc_sync(worker, function_named(function), args=tuple(args))


def caught(worker, function, args, timeout=None):
    """Calls, and tells how it ended: the kind and text of the error, or the value."""
    try:
        value = rpc.rpc_sync(
            worker, function_named(function), args=tuple(args), timeout=-1.0 if timeout is None else timeout
        )
    except Exception as error:
        return {"kind": error_kind(error), "text": str(error)}
    return {"kind": None, "value": value}


def error_kind(error):
    """The class of the exception as its sender named it.

    `rpc_sync` turns most classes into RuntimeError and puts the name first in the text; `to_here` does not.
    """
    text = str(error)
    if "ran for more than set timeout" in text:
        return "timeout"
    named = re.match(r"(\w+): '?On WorkerInfo", text)
    return named.group(1) if named else type(error).__name__


# ---- references under keys ----


def hold(key, rref):
    with _lock:
        if key in _kept:
            raise KeyError("there is something under %s already" % key)
        _kept[key] = rref
    return rref.is_owner()


def find(key):
    with _lock:
        if key not in _kept:
            raise KeyError("nothing is held under %s" % key)
        return _kept[key]


def held(key):
    rref = find(key)
    return rref.local_value() if rref.is_owner() else rref.to_here()


def held_call(key, method, args):
    return getattr(find(key).rpc_sync(), method)(*args)


def owner_of(key):
    return find(key).owner_name()


def drop(key):
    find(key)
    with _lock:
        del _kept[key]


def drop_all():
    with _lock:
        _kept.clear()


def own(key, value):
    hold(key, rpc.RRef(value))


def make_on(key, worker, function, args):
    hold(key, rpc.remote(worker, function_named(function), args=tuple(args)))


def share(key, worker, function, new_key):
    return rpc.rpc_sync(worker, function_named(function), args=(new_key, find(key)))


def pass_on(rref, worker, function, new_key):
    return rpc.rpc_sync(worker, function_named(function), args=(new_key, rref))


def take(new_key, worker, function, key):
    return hold(new_key, rpc.rpc_sync(worker, function_named(function), args=(key,)))


def held_count():
    with _lock:
        return len(_kept)


def snapshot():
    gc.collect()
    info = rpc._get_debug_info()
    counts = {name: int(info[name]) for name in COUNTED}
    counts["held"] = held_count()
    return counts


# ---- one linear layer per worker, for distributed autograd ----


class Linear:
    """y = x @ weight + bias, with parameters that stay on their worker."""

    def __init__(self):
        self.weight = self.bias = None

    def set(self, weight, bias):
        self.weight = weight.detach().clone().requires_grad_()
        self.bias = bias.detach().clone().requires_grad_()

    def __call__(self, x):
        return x @ self.weight + self.bias

    def loss(self, x, target):
        return ((self(x) - target) ** 2).mean()

    def gradient(self, context_id):
        # PyTorch's own text for a context that is not there is "Could not find autograd context with id: ..".
        gradients = dist_autograd.get_gradients(context_id)
        named = {"weight": self.weight, "bias": self.bias}
        return {name: gradients[p] for name, p in named.items() if p in gradients}

    def step(self, context_id, rate):
        for name, gradient in self.gradient(context_id).items():
            old = getattr(self, name)
            setattr(self, name, (old.detach() - rate * gradient).requires_grad_())

    def parameters(self):
        return {"weight": self.weight.detach(), "bias": self.bias.detach()}
