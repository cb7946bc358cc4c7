"""What a peer serves: the contract between the Python scripts and the test executable written in Rust.

PyTorch sends a function as its module and name. The scripts import the functions from here, so that they have
something to send; the Rust peer serves the same names. The bodies are what `stand_in.py` does in its place, and
say exactly what is expected. `README.md` lists arguments, results and errors.

Rules for all of them:
* values are plain: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict, set, tensors, RRefs;
* an argument that is none of these is answered with TypeError, an int beyond 64 bits with OverflowError;
* too few, too many or unknown arguments are answered with TypeError;
* an error is answered as an exception of a builtin class, its text beginning "On WorkerInfo(id=.., name=..):".
"""

import builtins
import os
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

import references

# ---- values ----

_PLAIN = (type(None), bool, int, float, str, bytes, torch.Tensor, rpc.PyRRef)


def _admit(value):
    """Refuses what a peer need not understand."""
    if isinstance(value, (list, tuple, set)):
        for item in value:
            _admit(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _admit(key)
            _admit(item)
    elif not isinstance(value, _PLAIN):
        raise TypeError("a peer does not understand %s" % type(value).__name__)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError("an int of more than 64 bits")
    return value


def _number(value):
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError("expected an int, got %s" % type(value).__name__)
    return _admit(value)


def nothing():
    """Nothing in, nothing out."""
    return None


def echo(value):
    """The value that was given."""
    return _admit(value)


def add(a: int, b: int) -> int:
    """The sum. OverflowError if it does not fit into 64 bits."""
    return _admit(_number(a) + _number(b))


def concat(parts: list) -> str:
    """All parts in one string."""
    if not all(isinstance(part, str) for part in parts):
        raise TypeError("expected a list of str")
    return "".join(parts)


def join(first: str, second: str = "b", *, sep: str = "-") -> str:
    """A function with a default and a keyword."""
    return first + sep + second


def describe(values: dict) -> dict:
    """For each key the kind of its value: "None", "bool", "int", "float", "str", "bytes", "list", "tuple", "dict",
    "set", "tensor" or "rref"."""
    kinds = {type(None): "None", torch.Tensor: "tensor", rpc.PyRRef: "rref"}
    return {key: kinds.get(type(_admit(value)), type(value).__name__) for key, value in values.items()}


def scale(tensor: torch.Tensor, factor: float) -> torch.Tensor:
    """The tensor times a number, for float32 and float64."""
    return tensor * factor


def facts(tensor: torch.Tensor) -> dict:
    """What the peer sees of a tensor: {"dtype": "float32", "shape": [2, 3], "sum": 15.0, "requires_grad": False}.

    The sum runs over the elements, not over the storage: an expanded element counts as often as it is there. It is
    None for dtypes other than bool, uint8, int32, int64, float32 and float64.
    """
    summed = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.float64}
    return {
        "dtype": str(tensor.dtype).replace("torch.", ""),
        "shape": list(tensor.shape),
        "sum": float(tensor.detach().double().sum()) if tensor.dtype in summed else None,
        "requires_grad": tensor.requires_grad,
    }


def sleep(seconds: float) -> float:
    """Answers after a while. Other calls are served in the meantime."""
    time.sleep(seconds)
    return seconds


# ---- errors ----


def fail(text: str, kind: str = "RuntimeError"):
    """Fails with an exception of the builtin class `kind` and with this text."""
    raise getattr(builtins, kind)(text)


def panic():
    """The function panics: RuntimeError with the word "panic", and the peer goes on."""
    raise RuntimeError("a panic in peer_api.panic")


def not_served():
    """No peer has this function: AttributeError with its name."""
    raise AssertionError("nobody serves this")


# ---- objects that live on the peer ----


class Counter:
    """An object with methods. It cannot leave its worker: `to_here()` fails with "Counter" in the text."""

    def __init__(self, start: int = 0):
        self.count = _number(start)

    def add(self, n: int = 1) -> int:
        self.count += _number(n)
        return self.count

    def value(self) -> int:
        return self.count

    def fail(self, text: str):
        raise ValueError(text)

    def not_served(self):
        """No peer has this method: AttributeError with its name."""
        raise AssertionError("nobody serves this")

    def __reduce__(self):
        raise TypeError("a Counter stays where it is: call its methods")


class Store:
    """Tensors under names."""

    def __init__(self):
        self.tensors = {}

    def put(self, name: str, tensor: torch.Tensor) -> None:
        self.tensors[name] = tensor

    def get(self, name: str) -> torch.Tensor:
        """KeyError, with the name, if there is none."""
        return self.tensors[name]

    def names(self) -> list:
        return sorted(self.tensors)

    def __reduce__(self):
        raise TypeError("a Store stays where it is: call its methods")


class Scaler:
    """Multiplies tensors, and takes part in autograd."""

    def __init__(self, factor: float):
        self.factor = factor

    def scale(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * self.factor

    def __reduce__(self):
        raise TypeError("a Scaler stays where it is: call its methods")


def call_method(method, rref, *args):
    """A method of an object of the peer's, by the function that it is, as PyTorch's tutorials call methods."""
    return method(rref.local_value(), *args)


def count_arguments(first, *args, **kwargs) -> list:
    """[first, how many are left by place, the names of those that are left by name]."""
    return [first, len(args), list(kwargs)]


def doubled(value):
    """Twice a number, a tensor or a text; of a list, of each."""
    return [doubled(item) for item in value] if isinstance(value, list) else value * 2


# ---- references ----


def hold(key: str, rref) -> bool:
    """Keeps the RRef under a key. True if the peer owns it. KeyError if the key is taken."""
    return references.hold(key, rref)


def held(key: str):
    """The value behind the RRef kept under the key. KeyError if there is none; the owner's error if it has one."""
    return references.held(key)


def held_call(key: str, method: str, args: list):
    """What a method of the object behind the RRef returns, called as `rref.rpc_sync().method(*args)` does."""
    return references.held_call(key, method, args)


def owner_of(key: str) -> str:
    """The name of the worker that owns it."""
    return references.owner_of(key)


def give(key: str):
    """The RRef kept under the key, to the caller. It stays kept."""
    return references.find(key)


def drop(key: str) -> None:
    """Lets go of the RRef. KeyError if there is none."""
    references.drop(key)


def own(key: str, value) -> None:
    """Makes an RRef of the value, owned by the peer, and keeps it under the key."""
    references.own(key, _admit(value))


def own_counter(key: str, start: int) -> None:
    """Makes a Counter, owned by the peer, and keeps an RRef to it under the key."""
    references.hold(key, rpc.RRef(Counter(start)))


def make_on(key: str, worker: str, function: str, args: list) -> None:
    """Asks the worker for an RRef of what the function will return, as `rpc.remote` does, and keeps it."""
    references.make_on(key, worker, function, args)


def share(key: str, worker: str, function: str, new_key: str):
    """Calls `function(new_key, rref)` on the worker, with the RRef kept under the key; returns what that returns."""
    return references.share(key, worker, function, new_key)


def pass_on(rref, worker: str, function: str, new_key: str):
    """The same with an RRef that has just arrived and is not kept."""
    return references.pass_on(rref, worker, function, new_key)


def take(new_key: str, worker: str, function: str, key: str) -> bool:
    """Calls `function(key)` on the worker, which returns an RRef, and keeps that. True if the peer owns it."""
    return references.take(new_key, worker, function, key)


# ---- calls of the peer ----


def call_back(worker: str, function: str, args: list):
    """Calls the function on the worker and returns what it returns. An error of the callee comes back as a
    RuntimeError (or the callee's class) whose text has the callee's text in it."""
    return references.call(worker, function, args)


def call_async(worker: str, function: str, args: list):
    """The same for a function that is decorated with `@rpc.functions.async_execution`."""
    return references.call(worker, function, args)


def caught(worker: str, function: str, args: list, timeout: float = None) -> dict:
    """Calls, and tells how the peer saw it end.

    {"kind": None, "value": ..}, or {"kind": .., "text": ..} where kind is the name of the callee's exception class,
    or "timeout" if the time given (in seconds) was over, or "RuntimeError" if the call could not be made.
    """
    return references.caught(worker, function, args, timeout)


def caught_async(worker: str, function: str, args: list, timeout: float) -> dict:
    """The same for a function that is decorated with `@rpc.functions.async_execution`."""
    return references.caught(worker, function, args, timeout)


# ---- distributed autograd ----

_linear = references.Linear()


def set_linear(weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Gives the peer's layer its parameters: weight [n, m], bias [m], float32. Until then the others fail."""
    _linear.set(weight, bias)


def linear(x: torch.Tensor) -> torch.Tensor:
    """x @ weight + bias. Takes part in the autograd context of the caller."""
    return _linear(x)


def linear_then(x: torch.Tensor, worker: str, function: str, args: list) -> torch.Tensor:
    """relu(linear(x)), handed to `function(h, *args)` on the worker within the same context; its result."""
    return references.call(worker, function, (torch.relu(_linear(x)), *args))


def linear_loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """mean((linear(x) - target) ** 2), of no dimension."""
    return _linear.loss(x, target)


def gradient(context_id: int) -> dict:
    """The gradients of the layer in this context: {"weight": .., "bias": ..}, those that there are. An error with
    the word "context" if the peer does not know the context (any more)."""
    return _linear.gradient(context_id)


def step(context_id: int, rate: float) -> None:
    """Subtracts rate times the gradients of this context from the parameters."""
    _linear.step(context_id, rate)


def parameter_rrefs() -> list:
    """RRefs to the parameters themselves, for `DistributedOptimizer`, which changes them in place."""
    return [rpc.RRef(_linear.weight), rpc.RRef(_linear.bias)]


def parameters() -> dict:
    """{"weight": .., "bias": ..}, without gradients."""
    return _linear.parameters()


def loss_through(worker: str, function: str, args: list, x: torch.Tensor, target: torch.Tensor, gradients: list) -> dict:
    """The peer as the one who trains: opens a context, y = function(relu(linear(x)), *args) on the worker,
    loss = mean((y - target) ** 2), runs backward.

    {"context": id, "loss": float, "gradient": gradient(id), "others": [..]}; others are the results of calling
    `function(id)` for each ["worker", "function"] of `gradients` while the context is open.
    """
    with dist_autograd.context() as context_id:
        y = linear_then(x, worker, function, args)
        loss = ((y - target) ** 2).mean()
        dist_autograd.backward(context_id, [loss])
        return {
            "context": context_id,
            "loss": loss.item(),
            "gradient": gradient(context_id),
            "others": [references.call(name, ask, [context_id]) for name, ask in gradients],
        }


# ---- the peer itself ----


def snapshot() -> dict:
    """What is in use, as PyTorch counts it: num_owner_rrefs, num_forks, num_pending_users, num_pending_futures,
    num_autograd_contexts, num_current_backward_passes; and held, the number of keys in use."""
    return references.snapshot()


def workers() -> list:
    """The names of all workers the peer knows, itself included, sorted."""
    return sorted(info.name for info in rpc.api._get_current_rpc_agent().get_worker_infos())


def pid() -> int:
    """Its process id, so that a test can kill it."""
    return os.getpid()


_stopping = threading.Event()
_graceful = True


def stop(graceful: bool = True, dead: str = None) -> None:
    """The peer begins to leave, after this call is answered. Not graceful: it goes without waiting for anybody. If a
    worker is named it will die meanwhile, and the peer ends with an error that names it, in order."""
    global _graceful
    _graceful = graceful
    _stopping.set()
