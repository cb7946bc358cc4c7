"""What the captured workers do: every message type, tensor kind and Python value, one named step at a time.

Worker 0 drives; the others answer. The functions here are called by name ("scenario echo"), so their
names are part of the vectors.
"""

import collections
import dataclasses
import datetime
import enum
import fractions
import gc
import math
import os
import sys
import time
import warnings
from typing import Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

from sniff import mark

warnings.filterwarnings("ignore")


# ---- functions and classes the other workers are asked for ----


def nothing():
    return None


def echo(value=None, **more):
    return (value, more) if more else value


def swallow(*values, **more):
    return None


def scale(tensor, factor=2.0):
    return tensor * factor


class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, amount=1):
        self.count += amount
        return self.count

    def fail(self):
        raise KeyError("no such thing")

    @rpc.functions.async_execution
    def add_later(self, amount):
        future = torch.futures.Future()
        future.set_result(self.add(amount))
        return future


@dataclasses.dataclass
class Point:
    x: int
    y: float


Pair = collections.namedtuple("Pair", ["left", "right"])


class Colour(enum.Enum):
    RED = 1


class Odd(Exception):
    """An exception whose class can be made from one text."""


class Picky(Exception):
    """An exception whose class cannot be made from one text."""

    def __init__(self, number, reason):
        super().__init__(number, reason)


def fail(kind):
    if kind == "value":
        raise ValueError("expected failure: \u00e9")
    if kind == "odd":
        raise Odd("odd")
    if kind == "picky":
        raise Picky(7, "seven")
    if kind == "nested":
        return rpc.rpc_sync("worker2", fail, args=("value",))
    raise KeyError(kind)


@rpc.functions.async_execution
def add_later(left, right):
    return rpc.rpc_async("worker2", torch.add, args=(left, right))


@rpc.functions.async_execution
def not_a_future():
    return 3


@rpc.functions.async_execution
def fail_later():
    raise ValueError("before the future")


kept = []


def keep(rref):
    kept.append(rref)
    return rref.is_owner()


def fetch(rref):
    return rref.to_here()


def drop_all():
    kept.clear()
    gc.collect()


def give_rref(value):
    """An RRef this worker owns, handed to the caller."""
    rref = rpc.RRef(value)
    kept.append(rref)
    return rref


def make_remote(to, value):
    """An RRef another worker owns, handed to the caller."""
    return rpc.remote(to, echo, args=(value,))


def forward_twice(tensor):
    return rpc.rpc_sync("worker2", torch.mul, args=(tensor, tensor))


def loss_of(tensor):
    return (tensor * 3).sum()


@torch.jit.script
def script_mix(numbers: List[int], table: Dict[str, int], text: str, real: float, flag: bool, maybe: Optional[int], pair: Tuple[int, str]) -> Dict[str, int]:
    result = {"sum": 0}
    for number in numbers:
        result["sum"] += number
    for key, value in table.items():
        result[key] = value
    return result


@torch.jit.script
def script_tensors(values: List[torch.Tensor], floats: List[float], words: List[str]) -> Tuple[torch.Tensor, List[float], List[str]]:
    return values[0] + values[1], floats, words


@torch.jit.script
def script_fail(value: torch.Tensor) -> torch.Tensor:
    raise ValueError("from TorchScript")
    return value


@torch.jit.script
def script_double(left: torch.Tensor) -> torch.Tensor:
    return left + left


@rpc.functions.async_execution
@torch.jit.script
def script_later(to: str, left: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    return rpc.rpc_async(to, script_double, (left,))


@torch.jit.script
def script_from_rref(rref: torch.distributed.rpc.RRef[torch.Tensor]) -> torch.Tensor:
    return rref.to_here() + 1


# ---- steps ----


class Step:
    """Marks the wire; an error in a step is reported and does not end the run."""

    problems = []

    def __init__(self, name, note="", quiet=0.05):
        self.name, self.note, self.quiet = name, note, quiet

    def __enter__(self):
        mark(self.name, self.note)
        self.started = time.time()

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.problems.append("%s: %s: %s" % (self.name, kind.__name__, str(error).split("\n")[0][:200]))
            print("step failed:", self.problems[-1], file=sys.stderr, flush=True)
        if time.time() - self.started > 3:
            print("slow step:", self.name, time.time() - self.started, file=sys.stderr, flush=True)
        del error, trace
        gc.collect()
        time.sleep(self.quiet)
        return kind is None or issubclass(kind, Exception)


def expect_error(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("no error came")


def options():
    return rpc.TensorPipeRpcBackendOptions(init_method=init_method(), _transports=["uv"], _channels=["basic"], num_worker_threads=8, rpc_timeout=20)


def init_method():
    return "tcp://127.0.0.1:" + os.environ["CAPTURE_PORT"]


def call(name, function, args=(), kwargs=None, note="", to="worker1"):
    with Step(name, note):
        return rpc.rpc_sync(to, function, args=args, kwargs=kwargs or {})


DTYPES = [
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
    "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu",
]  # fmt: skip


def python_values():
    yield "none", None
    yield "bools", [True, False]
    yield "small_ints", [0, 1, 255, 256, 65535, 65536, -1, 2**31 - 1, -(2**31)]
    yield "big_ints", [2**31, -(2**31) - 1, 2**53, 2**63 - 1, -(2**63), 2**63, 2**64, 10**40, -(10**40)]
    yield "huge_int", 1 << 2100
    yield "floats", [0.0, -0.0, 1.5, -2.25, 1e300, 5e-324, math.inf, -math.inf, math.nan]
    yield "strings", ["", "a", "h\u00e9llo", "\u65e5\u672c", "\U0001f600", "nul\x00inside", "line\nbreak"]
    yield "long_string", "x" * 300
    yield "bytes", [b"", b"abc", bytes(range(0, 256, 17)), b"\x00" * 260]
    yield "bytearray", bytearray(b"abc")
    yield "list_empty", []
    yield "list_one", [7]
    yield "tuples", [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    yield "dict_empty", {}
    yield "dict_one", {"a": 1}
    yield "dict_mixed", {"a": 1, 2: "b", (3, 4): None, 1.5: [1, {"deep": (True,)}]}
    yield "set_empty", set()
    yield "set", {1, 2, 3}
    yield "frozenset", frozenset(["only"])
    yield "nested", {"rows": [{"id": i, "tags": ["t%d" % i], "pos": (i, i / 2)} for i in range(3)], "ok": True}
    yield "shared", [["same"]] * 2 + ["repeat", "repeat"]
    yield "dataclass", Point(1, 2.5)
    yield "namedtuple", Pair("l", 2)
    yield "instance", Counter(4)
    yield "enum", Colour.RED
    yield "complex", complex(1, -2)
    yield "range_slice", [range(1, 9, 2), slice(1, None, 2)]
    yield "ordered_dict", collections.OrderedDict([("z", 1), ("a", 2)])
    yield "defaultdict", collections.defaultdict(list, {"k": [1]})
    yield "deque", collections.deque([1, 2], 5)
    yield "datetime", datetime.datetime(2024, 1, 2, 3, 4, 5)
    yield "fraction", fractions.Fraction(1, 3)
    yield "exception", ValueError("as a value")
    yield "functions", [echo, len, math.sqrt, torch.add, torch.nn.functional.relu, Counter.add, str.upper]
    yield "classes", [Counter, int, dict, torch.Tensor, torch.nn.Linear]
    yield "torch_things", [torch.float32, torch.device("cpu"), torch.Size([2, 3])]


def special_tensors():
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    yield "zero_dim", torch.tensor(3.5)
    yield "empty", torch.empty(0)
    yield "empty_2d", torch.empty(0, 3)
    yield "column_view", base[:, 1]
    yield "row_view_with_offset", base[1:]
    yield "transposed", base.t()
    yield "expanded", torch.tensor([1.0, 2.0]).expand(3, 2)
    yield "strided_slice", base[:, ::2]
    yield "view_of_big_storage", torch.arange(4096, dtype=torch.float32)[8:12]
    yield "requires_grad", torch.ones(2, requires_grad=True)
    yield "parameter", torch.nn.Parameter(torch.ones(2))
    yield "sparse_coo", torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (3, 2))
    yield "sparse_coalesced", torch.sparse_coo_tensor([[0, 2], [1, 0]], [3.0, 4.0], (3, 2)).coalesce()
    yield "sparse_csr", torch.sparse_csr_tensor([0, 1, 2], [0, 1], torch.tensor([1.0, 2.0]), (2, 2))
    yield "conjugate_view", torch.tensor([1 + 2j]).conj()
    yield "channels_last", torch.arange(8.0).reshape(1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    yield "quantized", torch.quantize_per_tensor(torch.tensor([1.0, 2.0]), 0.1, 10, torch.quint8)


def scripts():
    left, right = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.full((2, 2), 10.0)
    call("builtin_add", torch.add, (left, right), note="torch.add([[1,2],[3,4]], full((2,2),10))")
    call("builtin_add_scalar", torch.add, (left, 3), note="torch.add([[1,2],[3,4]], 3)")
    call("builtin_add_float", torch.add, (left, 0.5), {"alpha": 2}, note="torch.add([[1,2],[3,4]], 0.5, alpha=2)")
    call("builtin_mul", torch.mul, (left, right), note="torch.mul([[1,2],[3,4]], full((2,2),10))")
    call("builtin_matmul", torch.matmul, (left, right), note="torch.matmul([[1,2],[3,4]], full((2,2),10))")
    call("builtin_sum", torch.sum, (left,), note="torch.sum([[1,2],[3,4]])")
    call("builtin_zeros", torch.zeros, ((2, 3),), note="torch.zeros((2,3)): an int list and empty optionals")
    call("builtin_zeros_dtype", torch.zeros, ((2,),), {"dtype": torch.int64}, note="torch.zeros((2,), dtype=torch.int64)")
    call("builtin_stack", torch.stack, ([left, right], 1), note="torch.stack([a, b], 1): a tensor list")
    call("builtin_split", torch.split, (torch.arange(5.0), 2), note="torch.split(arange(5.), 2): a tensor list comes back")
    with Step("builtin_two_results", "torch.max([[1,2],[3,4]], 1): two results, which PyTorch refuses with an EXCEPTION"):
        expect_error(lambda: rpc.rpc_sync("worker1", torch.max, args=(left, 1)))
    call("builtin_equal", torch.equal, (left, left), note="torch.equal(a, a): a bool comes back")
    call("builtin_to_self", torch.add, (left, 1), to="worker0", note="a worker calls itself")
    call("script_mix", script_mix, ([1, 2, -3], {"a": 1}, "t\u00e9xt", 1.5, True, None, (5, "five")), note="a TorchScript function with one argument of each plain kind")
    call("script_tensors", script_tensors, ([left, right], [1.0, 2.5], ["x", "y"]), note="a TorchScript function with lists, a tuple comes back")
    call("script_later", script_later, ("worker2", left), note="a TorchScript function with async_execution: the flag is true")
    with Step("builtin_error", "torch.add of shapes (2,2) and (3,): an EXCEPTION comes back"):
        expect_error(lambda: rpc.rpc_sync("worker1", torch.add, args=(left, torch.ones(3))))
    with Step("script_error", "a TorchScript function raises: an EXCEPTION comes back"):
        expect_error(lambda: rpc.rpc_sync("worker1", script_fail, args=(left,)))


def pythons():
    call("python_nothing", nothing, note="nothing() -> None")
    call("python_kwargs", echo, (1,), {"b": 2, "c": [3]}, note="echo(1, b=2, c=[3]) -> (1, {'b': 2, 'c': [3]})")
    call("python_tensor", scale, (torch.tensor([1.0, 2.0]),), {"factor": 3.0}, note="scale([1,2], factor=3.0) -> [3,6]")
    call("python_tensors_nested", echo, ({"a": torch.tensor([1.0]), "b": [torch.tensor([2]), "x"]},), note="tensors inside a dict and a list")
    call("python_to_self", echo, ("self",), to="worker0", note="a worker calls itself")
    call("python_torch_function", torch.nn.functional.relu, (torch.tensor([-1.0, 1.0]),), note="relu([-1,1]) as a Python function")
    call("python_builtin", len, ([1, 2],), note="len([1,2]) -> 2")
    call("python_bound_method", Counter(5).add, (2,), note="a bound method travels with its object: getattr(Counter, 'add')")
    call("python_constructor", Counter, (9,), note="Counter(9): an instance comes back")
    for name, value in python_values():
        short = repr(value)
        call("value_" + name, echo, (value,), note="echo(x) -> x, x = " + (short if len(short) < 200 else short[:200] + ".."))
    call("async_execution", add_later, (torch.ones(2), torch.ones(2)), note="an async_execution function: the flag is 1; worker1 asks worker2")
    for kind in ["value", "odd", "picky", "key", "nested"]:
        with Step("python_error_" + kind, "fail(%r): PYTHON_RET with a RemoteException" % kind):
            expect_error(lambda: rpc.rpc_sync("worker1", fail, args=(kind,)))
    with Step("python_error_async", "an async_execution function that does not return a future"):
        expect_error(lambda: rpc.rpc_sync("worker1", not_a_future))
    with Step("python_error_async_raise", "an async_execution function that raises before it has a future"):
        expect_error(lambda: rpc.rpc_sync("worker1", fail_later))

    def only_here():
        return 1

    only_here.__module__, only_here.__qualname__ = "scenario", "only_here"
    sys.modules["scenario"].only_here = only_here
    with Step("python_error_unknown_function", "a function the callee does not have"):
        expect_error(lambda: rpc.rpc_sync("worker1", only_here))


def tensors():
    for name in DTYPES:
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        with Step("dtype_" + name, "swallow(tensor([1, 0, 2]) as torch.%s)" % name):
            rpc.rpc_sync("worker1", swallow, args=(torch.tensor([1, 0, 2]).to(dtype),))
    for name, value in special_tensors():
        call("tensor_" + name, swallow, (value,), note="swallow(x), x = %s" % name)
    base = torch.arange(6, dtype=torch.float32)
    call("tensor_shared_storage", swallow, (base[:3], base[3:], base), note="swallow(b[:3], b[3:], b): three views of one storage")
    call("tensor_same_twice", swallow, (base, base), note="swallow(b, b)")
    call("tensor_two_storages", swallow, (torch.tensor([1], dtype=torch.int64), torch.tensor([2.0])), note="swallow(int64, float32)")
    call("tensor_empty_between", echo, ([torch.tensor([1.0]), torch.empty(0), torch.tensor([2.0])],), note="the empty one sends nothing on the channel")


def rrefs():
    one, two = torch.ones(2), torch.full((2,), 2.0)
    with Step("remote_builtin", "remote(torch.add) on worker1, to_here, delete"):
        rref = rpc.remote("worker1", torch.add, args=(one, two))
        rref.to_here()
        del rref
    with Step("remote_builtin_error", "remote(torch.add) that fails, to_here raises"):
        rref = rpc.remote("worker1", torch.add, args=(one, torch.ones(3)))
        expect_error(rref.to_here)
        del rref
    with Step("remote_script", "remote(TorchScript function), to_here, delete"):
        rref = rpc.remote("worker1", script_mix, args=([1], {}, "", 0.0, False, 3, (1, "")))
        rref.to_here()
        del rref
    with Step("remote_python", "remote(echo, {'k': [1, 2]}), to_here, delete"):
        rref = rpc.remote("worker1", echo, args=({"k": [1, 2]},))
        rref.to_here()
        del rref
    with Step("remote_python_tensor", "remote(scale, [1,1], factor=4.0), to_here, delete"):
        rref = rpc.remote("worker1", scale, args=(one,), kwargs={"factor": 4.0})
        rref.to_here()
        del rref
    with Step("remote_python_async", "remote(async_execution function): the flag is true"):
        rref = rpc.remote("worker1", add_later, args=(one, two))
        rref.to_here()
        del rref
    with Step("remote_python_error", "remote(fail): REMOTE_RET is normal, to_here brings the RemoteException"):
        rref = rpc.remote("worker1", fail, args=("value",))
        expect_error(rref.to_here)
        del rref
    with Step("remote_to_self", "remote on the caller itself"):
        rref = rpc.remote("worker0", echo, args=("mine",))
        rref.to_here()
        del rref
    with Step("rref_owner_to_user", "worker0 owns, worker1 keeps: no fork messages"):
        rref = rpc.RRef("owned by worker0")
        rpc.rpc_sync("worker1", keep, args=(rref,))
    with Step("rref_owner_to_user_dropped", "worker1 drops it: RREF_USER_DELETE"):
        rpc.rpc_sync("worker1", drop_all)
        del rref
    with Step("rref_owner_to_user_fetch", "worker1 fetches the value worker0 owns"):
        rref = rpc.RRef(torch.tensor([5.0]))
        rpc.rpc_sync("worker1", fetch, args=(rref,))
        del rref
    with Step("rref_user_to_owner", "worker0 holds an RRef of worker1 and passes it to worker1: CHILD_ACCEPT to the parent"):
        rref = rpc.remote("worker1", echo, args=(1,))
        rpc.rpc_sync("worker1", fetch, args=(rref,))
    with Step("rref_user_to_user", "worker0 passes worker1's RRef to worker2: FORK_REQUEST, ACK, CHILD_ACCEPT"):
        rpc.rpc_sync("worker2", keep, args=(rref,))
    with Step("rref_user_to_user_parent_gone", "worker0 drops its fork"):
        del rref
    with Step("rref_user_to_user_child_gone", "worker2 drops its fork: the owner forgets the value"):
        rpc.rpc_sync("worker2", drop_all)
    with Step("rref_returned_by_owner", "worker1 returns an RRef it owns"):
        rref = rpc.rpc_sync("worker1", give_rref, args=("from worker1",))
        rref.to_here()
        del rref
        rpc.rpc_sync("worker1", drop_all)
    with Step("rref_returned_by_user", "worker1 returns an RRef worker2 owns"):
        rref = rpc.rpc_sync("worker1", make_remote, args=("worker2", "from worker2"))
        rref.to_here()
        del rref
    with Step("rref_returned_home", "worker1 returns an RRef worker0 owns"):
        rref = rpc.rpc_sync("worker1", make_remote, args=("worker0", "from worker0"))
        rref.local_value()
        del rref
    with Step("rref_of_rref", "remote(echo, (rref,)): a value that is an RRef"):
        inner = rpc.RRef([1])
        outer = rpc.remote("worker1", echo, args=(inner,))
        outer.to_here().to_here()
        del inner, outer
    with Step("rref_in_script", "a TorchScript function takes an RRef: torch.distributed.rpc.rref in a jit pickle"):
        rref = rpc.remote("worker1", torch.add, args=(one, two))
        rpc.rpc_sync("worker1", script_from_rref, args=(rref,))
        del rref
    with Step("proxy_rpc_sync", "remote(Counter, 10); rref.rpc_sync().add(5)"):
        rref = rpc.remote("worker1", Counter, args=(10,))
        assert rref.rpc_sync().add(5) == 15
    with Step("proxy_rpc_sync_kwargs", "rref.rpc_sync().add(amount=2)"):
        rref.rpc_sync().add(amount=2)
    with Step("proxy_rpc_async", "rref.rpc_async().add(1)"):
        rref.rpc_async().add(1).wait()
    with Step("proxy_async_execution", "rref.rpc_sync().add_later(1): the method has async_execution"):
        rref.rpc_sync().add_later(1)
    with Step("proxy_remote", "rref.remote().add(1).to_here()"):
        rref.remote().add(1).to_here()
    with Step("proxy_error", "rref.rpc_sync().fail()"):
        expect_error(lambda: rref.rpc_sync().fail())
    with Step("proxy_gone", "the RRef is dropped"):
        del rref


def autograds():
    weights = torch.tensor([1.0, 2.0], requires_grad=True)
    with Step("autograd_builtin", "context; mul(w, w) on worker1; backward of the sum; release", 0.15):
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("worker1", torch.mul, args=(weights, weights)).sum()
            dist_autograd.backward(context, [loss])
            grads = dist_autograd.get_gradients(context)
            assert torch.equal(grads[weights], torch.tensor([2.0, 4.0]))
            del loss, grads
    with Step("autograd_builtin_no_grad", "context; a builtin call without tensors that require grad is not wrapped", 0.15):
        with dist_autograd.context():
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1))
    with Step("autograd_python", "context; scale(w) on worker1; backward with retain_graph", 0.15):
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("worker1", scale, args=(weights,)).sum()
            dist_autograd.backward(context, [loss], retain_graph=True)
            del loss
    with Step("autograd_python_plain", "context; echo('x'): a Python call without tensors is wrapped, the answer is not", 0.15):
        with dist_autograd.context():
            rpc.rpc_sync("worker1", echo, args=("x",))
    with Step("autograd_remote_builtin", "context; remote(torch.mul), to_here, backward", 0.15):
        with dist_autograd.context() as context:
            rref = rpc.remote("worker1", torch.mul, args=(weights, weights))
            loss = rref.to_here().sum()
            dist_autograd.backward(context, [loss])
            del loss, rref
    with Step("autograd_remote_python", "context; remote(scale), to_here, backward", 0.15):
        with dist_autograd.context() as context:
            rref = rpc.remote("worker1", scale, args=(weights,))
            loss = rref.to_here().sum()
            dist_autograd.backward(context, [loss])
            del loss, rref
    with Step("autograd_nested", "context; worker1 multiplies on worker2; backward through both", 0.15):
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("worker1", forward_twice, args=(weights,)).sum()
            dist_autograd.backward(context, [loss])
            del loss
    with Step("rref_backward", "context; remote(loss_of, w); rref.backward(context)", 0.15):
        with dist_autograd.context() as context:
            rref = rpc.remote("worker1", loss_of, args=(weights,))
            rref.backward(context)
            del rref
    with Step("rref_backward_retain", "rref.backward(context, retain_graph=True)", 0.15):
        with dist_autograd.context() as context:
            rref = rpc.remote("worker1", loss_of, args=(weights,))
            rref.backward(context, True)
            del rref
    with Step("autograd_error", "context; torch.add of wrong shapes: a bare EXCEPTION", 0.15):
        with dist_autograd.context():
            expect_error(lambda: rpc.rpc_sync("worker1", torch.add, args=(weights, torch.ones(3))))
    with Step("autograd_python_error", "context; fail('value')", 0.15):
        with dist_autograd.context():
            expect_error(lambda: rpc.rpc_sync("worker1", fail, args=("value",)))
    with Step("rref_backward_error", "rref.backward with a context worker1 does not know: an EXCEPTION", 0.15):
        rref = rpc.remote("worker1", loss_of, args=(weights,))
        expect_error(lambda: rref.backward(12345))
        del rref
    with Step("autograd_from_worker1", "worker1 makes the context: ids carry worker 1 in the upper 16 bits", 0.15):
        rpc.rpc_sync("worker1", own_context)


def own_context():
    weights = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync("worker2", torch.add, args=(weights, 1)).sum()
        dist_autograd.backward(context, [loss])


def profiled():
    with Step("profiled_python", "echo(1) under the legacy profiler: RUN_WITH_PROFILING", 0.2):
        with torch.autograd.profiler_legacy.profile():
            rpc.rpc_sync("worker1", echo, args=(1,))
    with Step("profiled_builtin", "torch.add under the legacy profiler: RUN_WITH_PROFILING", 0.2):
        with torch.autograd.profiler_legacy.profile():
            rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 1))


def collectives():
    with Step("barrier", "worker0, worker1 and worker2 call _barrier at the same time"):
        futures = [rpc.rpc_async(name, join_barrier) for name in ("worker1", "worker2")]
        join_barrier()
        for future in futures:
            future.wait()
    with Step("all_gather", "_all_gather of {'rank': i}"):
        futures = [rpc.rpc_async(name, join_gather) for name in ("worker1", "worker2")]
        join_gather()
        for future in futures:
            future.wait()


def join_barrier():
    rpc.api._barrier({"worker0", "worker1", "worker2"})


def join_gather():
    return len(rpc.api._all_gather({"rank": rpc.get_worker_info().id}))


def static(rank):
    """Three workers, static group, every step. Workers 1 and 2 start their shutdown only when worker 0 is done."""
    side = dist.TCPStore("127.0.0.1", int(os.environ["CAPTURE_SIDE_PORT"]), 3, rank == 0)
    rpc.init_rpc("worker%d" % rank, rank=rank, world_size=3, rpc_backend_options=options())
    rpc.api._ignore_rref_leak = False
    if rank == 0:
        for part in (scripts, pythons, tensors, rrefs, autograds, profiled, collectives):
            part()
        mark("debug", "")
        debug = {name: rpc.rpc_sync(name, debug_info) for name in ("worker0", "worker1", "worker2")}
        mark("shutdown", "graceful shutdown of a static group")
        time.sleep(0.05)
        report({"debug_info": debug, "problems": Step.problems})
        side.set("finish", "")
    else:
        side.get("finish")
    rpc.shutdown()


def debug_info():
    gc.collect()
    return {key: str(value) for key, value in sorted(rpc._get_debug_info().items())}


def dynamic(rank):
    """Three workers, dynamic group: worker0, then worker1, then worker2 joins; they leave in the same order as they came, worker0 last."""
    store = dist.TCPStore("127.0.0.1", int(os.environ["CAPTURE_SIDE_PORT"]), 3, rank == 0)
    if rank:
        store.get("start%d" % rank)
    mark("join_worker%d" % rank, "worker%d joins a dynamic group" % rank)
    rpc.init_rpc("worker%d" % rank, rank=rank, rpc_backend_options=options())
    if rank:
        with Step("use_worker%d" % rank, "torch.add on worker0"):
            rpc.rpc_sync("worker0", torch.add, args=(torch.ones(1), 1))
    store.set("start%d" % (rank + 1), "")
    store.get("start3")
    if rank == 1:
        time.sleep(0.1)
    elif rank == 2:
        store.get("gone1")
    else:
        store.get("gone2")
    mark("leave_worker%d" % rank, "worker%d leaves" % rank)
    rpc.shutdown()
    store.set("gone%d" % rank, "")
    if rank == 0:
        report({})
    else:
        store.get("gone2")


def again(rank):
    """Two workers, two static groups one after the other in the same processes: counters that do not start again."""
    for turn in range(2):
        os.environ["CAPTURE_PORT"] = os.environ["CAPTURE_PORT" if turn == 0 else "CAPTURE_PORT_2"]
        if rank == 0:
            mark("turn_%d" % turn)
        rpc.init_rpc("worker%d" % rank, rank=rank, world_size=2, rpc_backend_options=options())
        rpc.shutdown()
        time.sleep(0.2)
    if rank == 0:
        report({})


def defaults(rank):
    """Two workers with default options: what they offer in the brochure; the rest goes over shared memory."""
    mark("defaults", "default transports and channels")
    rpc.init_rpc("worker%d" % rank, rank=rank, world_size=2, rpc_backend_options=rpc.TensorPipeRpcBackendOptions(init_method=init_method()))
    rpc.shutdown()
    if rank == 0:
        report({})


def store(rank):
    """One store server, one client, every operation of the client this version has."""
    mark("store_open", "a client connects")
    served = dist.TCPStore("127.0.0.1", int(os.environ["CAPTURE_PORT"]), None, True, wait_for_workers=False)
    steps = [
        ("set", lambda: served.set("k", "v")),
        ("get", lambda: served.get("k")),
        ("add", lambda: served.add("n", 5)),
        ("add_negative", lambda: served.add("n", -2)),
        ("get_number", lambda: served.get("n")),
        ("compare_set_missing", lambda: served.compare_set("c", "", "first")),
        ("compare_set_equal", lambda: served.compare_set("c", "first", "second")),
        ("compare_set_other", lambda: served.compare_set("c", "first", "third")),
        ("compare_set_missing_expected", lambda: served.compare_set("d", "x", "y")),
        ("check", lambda: served.check(["k"])),
        ("check_missing", lambda: served.check(["k", "missing"])),
        ("wait", lambda: served.wait(["k", "n"])),
        ("wait_timeout", lambda: expect_error(lambda: served.wait(["missing"], datetime.timedelta(milliseconds=200)))),
        ("num_keys", lambda: served.num_keys()),
        ("delete_key", lambda: served.delete_key("c")),
        ("delete_missing", lambda: served.delete_key("c")),
        ("append", lambda: served.append("k", "more")),
        ("multi_set", lambda: served.multi_set(["a", "b"], ["1", "2"])),
        ("multi_get", lambda: served.multi_get(["a", "b"])),
        ("queue_push", lambda: served.queue_push("q", "item")),
        ("queue_len", lambda: served.queue_len("q")),
        ("queue_pop", lambda: served.queue_pop("q")),
        ("list_keys", lambda: served.list_keys()),
        ("prefix_set", lambda: dist.PrefixStore("p", served).set("k", "v")),
        ("empty_value", lambda: served.set("e", "")),
        ("get_empty", lambda: served.get("e")),
        ("timeout_get", lambda: (served.set_timeout(datetime.timedelta(milliseconds=200)), expect_error(lambda: served.get("missing")))),
    ]
    for name, action in steps:
        with Step("store_" + name, quiet=0.02):
            action()
    mark("store_close")
    report({"problems": Step.problems})


def report(facts):
    import json

    with open(os.environ["CAPTURE_REPORT"], "w") as out:
        json.dump(facts, out)
