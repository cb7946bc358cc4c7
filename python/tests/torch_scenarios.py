"""Programs of torch.distributed.rpc, as PyTorch's users write them: nothing here knows of farref.

``torch_scenarios.py scenario workers place`` runs one of them, for ``test_torch.py``. Its workers are forked off from this process,
which has imported torch and done nothing else; its last words are how they ended.
"""

import gc
import os
import signal
import sys
import threading
import time
import weakref

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch_workers
from testkit import TEST_TIMEOUT, eventually
from torch.distributed.optim import DistributedOptimizer

RANK, WORKERS, PLACE = None, int(sys.argv[2]), sys.argv[3]


def join(name=None, part="", world_size=WORKERS):
    place = os.environ.get("SCENARIO_PLACE", f"file://{PLACE}{part}")
    options = rpc.TensorPipeRpcBackendOptions(init_method=place, rpc_timeout=TEST_TIMEOUT)
    rpc.init_rpc(name or f"worker{RANK}", rank=RANK, world_size=world_size, rpc_backend_options=options)


def raises(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def add(a, b):
    return a + b


def fail():
    raise ValueError("not like this")


@rpc.functions.async_execution
def add_elsewhere(to, a, b):
    return rpc.rpc_async(to, add, args=(a, b)).then(lambda sum: 10 * sum.wait())


@rpc.functions.async_execution
def fails_later(to):
    return rpc.rpc_async(to, fail)


@rpc.functions.async_execution
def answers_at_once():
    return 1


def first_and_last(tensor):
    return tensor[0].item(), tensor[-1].item()


released = threading.Event()


def waits_to_be_released():
    assert released.wait(TEST_TIMEOUT)


def release():
    released.set()


class Till:
    def __init__(self):
        self.coins = 0

    def put(self, coins):
        self.coins += coins
        return self.coins


def put_one(till):
    return till.rpc_sync().put(1)


def owned():
    info = rpc._rref_context_get_debug_info()
    return int(info["num_owner_rrefs"]), int(info["num_forks"])


def calls_give_what_they_give_with_pytorch():
    join()
    if RANK == 0:
        ones = torch.ones(3, 4)
        assert torch.equal(rpc.rpc_sync("worker1", torch.add, args=(ones, 2)), ones + 2)
        large = torch.arange(100_000).view(100, 1000)
        assert torch.equal(rpc.rpc_sync(1, add, args=(large.t(), 1)), large.t() + 1)
        sparse = torch.eye(3).to_sparse()
        assert torch.equal(rpc.rpc_sync(1, add, args=(sparse, sparse)).to_dense(), 2 * torch.eye(3))
        futures = [rpc.rpc_async("worker1", add, args=(number, 1)) for number in range(100)]
        assert torch.futures.wait_all(futures) == list(range(1, 101))
        assert rpc.rpc_sync("worker1", add_elsewhere, args=("worker0", 1, 2)) == 30
        assert rpc.rpc_sync("worker0", add, args=("to", " myself")) == "to myself"
        raises(ValueError, "not like this", rpc.rpc_sync, "worker1", fail)
        raises(RuntimeError, "RPC ran for more than", rpc.rpc_sync, "worker1", waits_to_be_released, timeout=0.2)
        rpc.rpc_sync("worker1", release)
        raises(ValueError, "not like this", rpc.rpc_sync, "worker1", fails_later, args=("worker0",))
        raises(RuntimeError, "must return a torch.futures.Future", rpc.rpc_sync, "worker1", answers_at_once)
        # What cannot be sent back is an error of the call.
        raises(Exception, "lock", rpc.rpc_sync, "worker1", threading.Lock)
        raises(RuntimeError, "worker7", rpc.rpc_sync, "worker7", add, args=(1, 2))
        assert rpc.get_worker_info("worker1").id == 1
    rpc.shutdown()


def values_live_as_long_as_references_to_them():
    join()
    if RANK == 0:
        till = rpc.remote("worker1", Till)
        assert till.rpc_sync().put(2) == 2
        assert rpc.rpc_sync("worker2", put_one, args=(till,)) == 3
        assert rpc.rpc_sync("worker1", put_one, args=(till,)) == 4
        assert till.remote().put(1).to_here() == 5
        assert till.to_here().coins == 5
        raises(RuntimeError, "can't call localValue()", till.local_value)
        mine = rpc.RRef(Till())
        assert rpc.rpc_sync("worker2", put_one, args=(mine,)) == 1
        assert mine.local_value().coins == 1
        raises(ValueError, "not like this", rpc.remote("worker1", fail).to_here)
        late = rpc.remote("worker1", waits_to_be_released)
        raises(RuntimeError, "RPC ran for more than", late.to_here, timeout=0.1)
        rpc.rpc_sync("worker1", release)
        assert late.to_here() is None
        del late
        del till, mine
        eventually(lambda: rpc.rpc_sync("worker1", owned) == (0, 0))
        eventually(lambda: owned() == (0, 0))
    rpc.shutdown()


def a_killed_worker_does_not_hang_the_shutdown():
    join()
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    rpc.shutdown()


kept = []


ENDS = threading.Event()


def says_that_its_worker_ends():
    ENDS.set()
    time.sleep(0.3)
    return "the end"


def a_call_that_runs_when_its_worker_ends_is_answered():
    join()
    if RANK == 0:
        assert rpc.rpc_sync("worker1", says_that_its_worker_ends) == "the end"
    else:
        ENDS.wait()
    rpc.shutdown(graceful=False)


def keep(value):
    kept.append(value)


def what_a_dead_worker_held_is_freed():
    join()
    if RANK == 0:
        mine = rpc.RRef(Till())
        rpc.rpc_sync("worker1", keep, args=(mine,))
        assert owned() == (1, 1)
        rpc.rpc_async("worker1", os._exit, args=(0,))
        eventually(lambda: owned() == (0, 0))
        raises(RuntimeError, "worker1", rpc.rpc_sync, "worker1", add, args=(1, 2))
    rpc.shutdown()


def a_process_can_be_in_two_groups_one_after_the_other():
    for part in "ab":
        join(part=part)
        if RANK == 0:
            till = rpc.remote("worker1", Till)
            assert rpc.rpc_sync("worker1", put_one, args=(till,)) == 1
            del till
            eventually(lambda: rpc.rpc_sync("worker1", owned) == (0, 0))
        rpc.shutdown()


def gradients_come_from_all_workers_despite_unused_results():
    join()
    if RANK == 0:
        a, b = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
        ((a * b) + (a * b) @ b).sum().backward()
        expected = a.grad, b.grad
        with dist_autograd.context() as context:
            product = rpc.rpc_sync("worker1", torch.mul, args=(a, b))
            # Nobody uses it, and nobody waits for its gradient.
            rpc.rpc_sync("worker2", torch.mul, args=(a, b))
            loss = add(product, rpc.rpc_sync("worker2", torch.matmul, args=(product, b))).sum()
            dist_autograd.backward(context, [loss])
            gradients = dist_autograd.get_gradients(context)
        assert all(torch.allclose(gradients[tensor], grad) for tensor, grad in zip((a, b), expected))
        layers = [rpc.remote(f"worker{rank}", torch.nn.Linear, args=(4, 4)) for rank in (1, 2)]
        parameters = [rref for layer in layers for rref in parameters_of(layer)]
        before = [rref.to_here().detach().clone() for rref in parameters]
        optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.1)
        with dist_autograd.context() as context:
            out = torch.ones(2, 4)
            for layer in layers:
                out = layer.rpc_sync().forward(out)
            dist_autograd.backward(context, [out.sum()])
            optimizer.step(context)
        after = [rref.to_here() for rref in parameters]
        assert not any(torch.equal(one, other) for one, other in zip(before, after))
    rpc.shutdown()


def parameters_of(layer):
    return rpc.rpc_sync(layer.owner(), rrefs_of, args=(layer,))


def rrefs_of(layer):
    return [rpc.RRef(parameter) for parameter in layer.local_value().parameters()]


@torch.jit.script
def scripted(a: torch.Tensor):
    return a + 1


def what_is_not_supported_is_named():
    join()
    assert torch.equal(rpc.rpc_sync("worker0", scripted, args=(torch.ones(1),)), torch.ones(1) + 1)
    mine = rpc.RRef(torch.ones(1))
    raises(NotImplementedError, "TorchScript", rpc.rpc_sync, "worker0", scripted, args=(mine,))
    with torch.autograd.profiler_legacy.profile():
        raises(NotImplementedError, "profiler", rpc.rpc_sync, "worker0", add, args=(1, 2))
    rpc.shutdown()


def waits_for(path):
    eventually(lambda: os.path.exists(path))
    return os.path.basename(path)


def is_one(a, b, also=None):
    return a is b, a is also


def given(*args, **kwargs):
    return args, kwargs


def futures_are_waited_for_by_threads_callbacks_and_shutdown():
    join()
    if RANK == 0:
        until_then = f"{PLACE}.go"
        future = rpc.rpc_async("worker1", waits_for, args=(until_then,))
        assert isinstance(future, torch.futures.Future) and isinstance(future, torch._C.Future)
        assert not future.done()
        raises(RuntimeError, "", future.value)
        # Callbacks may call, and wait.
        length = future.then(lambda ended: rpc.rpc_sync("worker1", add, args=(len(ended.wait()), 1)))
        both = torch.futures.collect_all([future, rpc.rpc_async("worker1", add, args=(1, 2))])
        seen = []
        waiting = [threading.Thread(target=lambda: seen.append(future.wait())) for _ in range(3)]
        for thread in waiting:
            thread.start()
        with open(until_then, "w"):
            pass
        for thread in waiting:
            thread.join()
        assert len(seen) == 3 and all(name is seen[0] for name in seen), seen
        assert future.done() and future.value() is future.wait() is seen[0]
        assert length.wait() == len(seen[0]) + 1
        assert [ended.wait() for ended in both.wait()] == [seen[0], 3]
        assert future.then(lambda ended: ended.value()).wait() == seen[0]
        failed = rpc.rpc_async("worker1", fail)
        raises(ValueError, "not like this", failed.wait)
        raises(ValueError, "not like this", failed.wait)
        raises(ValueError, "not like this", torch.futures.wait_all, [rpc.rpc_async("worker1", fail)])
        some = [rpc.rpc_async("worker1", add, args=(1, 2)), rpc.rpc_async("worker1", fail)]
        raises(ValueError, "not like this", torch.futures.collect_all(some).wait)
        # One that nobody waits for: the shutdown does.
        rpc.rpc_async("worker1", time.sleep, args=(0.1,))
        kept = rpc.rpc_async("worker1", add, args=(1, 2))
    rpc.shutdown()
    assert RANK != 0 or kept.done()


noted = []


def note(number):
    noted.append(number)


def number_of_notes():
    return len(noted)


def till():
    return rpc.RRef(Till())


class Caught:
    """What a callback has."""


def calls_that_nobody_has_heard_of():
    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.client_active_calls"])


def calls_whose_futures_are_dropped_leave_nothing_behind():
    join()
    if RANK == 0:
        for number in range(200):
            rpc.rpc_async("worker1", note, args=(number,))
        eventually(lambda: rpc.rpc_sync("worker1", number_of_notes) == 200)
        # Of what they are answered with nobody reads anything: errors, values, references.
        for _ in range(20):
            rpc.rpc_async("worker1", fail)
            rpc.rpc_async("worker1", add, args=(torch.ones(100_000), 1))
            rpc.rpc_async("worker1", till)
        called, caught = [], Caught()
        gone = weakref.ref(caught)
        rpc.rpc_async("worker1", add, args=(1, 2)).then(lambda sum, caught=caught: called.append(sum.wait()))
        rpc.rpc_async("worker1", add, args=(3, 4)).add_done_callback(lambda sum, caught=caught: called.append(sum.wait()))
        del caught
        eventually(lambda: sorted(called) == [3, 7])
        eventually(lambda: gc.collect() >= 0 and gone() is None)
        eventually(lambda: calls_that_nobody_has_heard_of() == 0)
        eventually(lambda: rpc.rpc_sync("worker1", owned) == (0, 0))
    rpc.shutdown()


def arguments_of_all_forms_arrive_as_they_are():
    join()
    if RANK == 0:
        global only_here

        def only_here(number):
            return number

        tensor = torch.arange(12.0).reshape(3, 4)
        large = torch.arange(1 << 16)
        empty = torch.empty(0, 3)
        sent = (tensor, tensor.t(), tensor[:, ::2], large, large[::3], empty, torch.tensor(True), 7, None, "text")
        args, kwargs = rpc.rpc_sync("worker1", given, args=sent, kwargs={"b": tensor, "c": [tensor, {"d": 1}]})
        for there, back in zip(sent, args):
            assert type(there) is type(back)
            assert torch.equal(there, back) if isinstance(there, torch.Tensor) else there == back
        assert torch.equal(kwargs["b"], tensor) and torch.equal(kwargs["c"][0], tensor) and kwargs["c"][1] == {"d": 1}
        args, kwargs = rpc.rpc_sync("worker1", given, args=(tensor, 1), kwargs={"wants": tensor.clone().requires_grad_()})
        assert torch.equal(args[0], tensor) and args[1] == 1 and kwargs["wants"].requires_grad and not args[0].requires_grad
        args[0].add_(1)  # what came can be written to
        # One tensor that is there twice arrives as one.
        assert rpc.rpc_sync("worker1", is_one, args=(tensor, tensor), kwargs={"also": tensor}) == (True, True)
        assert rpc.rpc_sync("worker1", is_one, args=(tensor, tensor.clone())) == (False, False)
        assert torch.equal(rpc.rpc_sync("worker1", Till.put, args=(Till(), tensor)), tensor)
        raises(Exception, "only_here", rpc.rpc_sync, "worker1", only_here, args=(1,))
        numbers = torch.view_as_complex(torch.arange(20_000.0).reshape(-1, 2))
        twice = torch.sparse_coo_tensor([[0, 0, 1], [1, 1, 0]], [1.0, 2.0, 3.0], (2, 2))
        sent = (numbers.conj(), numbers.conj().imag, numbers[:3].conj(), twice, twice.coalesce(), torch.eye(3).to_sparse_csr())
        args, _ = rpc.rpc_sync("worker1", given, args=sent)
        for there, back in zip(sent, args):
            assert (there.layout, there.dtype, there.shape) == (back.layout, back.dtype, back.shape)
            assert torch.equal(there.to_dense(), back.to_dense())
        assert [tensor.is_coalesced() for tensor in args[3:5]] == [False, True]
        assert torch.equal(rpc.rpc_sync("worker1", torch.Tensor.to_dense, args=(twice.to_sparse_csr(),)), twice.to_dense())
        # Small ones of all kinds of elements, which are made anew in one step.
        kinds = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16, torch.int32]
        kinds += [torch.int64, torch.bool, torch.complex64, torch.complex128]
        for kind in kinds:
            there = torch.tensor([0, 1, 100, 37]).to(kind)
            [back], _ = rpc.rpc_sync("worker1", given, args=(there,))
            assert there.dtype is back.dtype and torch.equal(there, back), (there, back)
        # Nobody keeps what is on its way.
        calls = [rpc.rpc_async("worker1", first_and_last, args=(torch.full((300_000,), n * 1.0),)) for n in range(8)]
        assert torch.futures.wait_all(calls) == [(n, n) for n in range(8)]
    rpc.shutdown()


def ddp_in_a_context_is_refused():
    join()
    torch.distributed.init_process_group("gloo", init_method=f"file://{PLACE}.gloo", rank=RANK, world_size=WORKERS)
    layer = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    layer(torch.ones(1, 2)).sum().backward()
    with dist_autograd.context():
        raises(NotImplementedError, "not be reduced", layer, torch.ones(1, 2))
        with torch.no_grad():
            layer(torch.ones(1, 2))
    rpc.shutdown()


def workers_join_and_leave_a_group_of_no_fixed_size():
    # A dash is legal in a name.
    join(name=f"worker-{RANK}", world_size=None)
    eventually(lambda: len(rpc.api._get_current_rpc_agent().get_worker_infos()) == WORKERS)
    for rank in range(WORKERS):
        assert rpc.rpc_sync(f"worker-{rank}", add, args=(rank, 1)) == rank + 1
    with open(f"{PLACE}.{RANK}", "w"):
        pass
    eventually(lambda: all(os.path.exists(f"{PLACE}.{rank}") for rank in range(WORKERS)))
    rpc.shutdown()


def empty_elsewhere(tensor):
    return torch.empty(2, device="meta")


def tensors_on_devices_that_no_map_names_are_refused():
    """Tensors on devices that no map names are refused; maps that say nothing new change nothing."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{PLACE}", rpc_timeout=TEST_TIMEOUT)
    if os.environ["SCENARIO_MAP"]:
        for rank in range(WORKERS):
            options.set_device_map(f"worker{rank}", {"cpu": "cpu"})
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORKERS, rpc_backend_options=options)
    if RANK == 0:
        tensor, elsewhere = torch.ones(2), torch.empty(2, device="meta")
        assert rpc.api._get_current_rpc_agent()._get_device_map(rpc.get_worker_info("worker1")) == (
            {torch.device("cpu"): torch.device("cpu")} if os.environ["SCENARIO_MAP"] else {}
        )
        for to in ("worker1", "worker0"):
            missing = f"device mapping is not available for destination {to}"
            raises(RuntimeError, f"Request {missing}", rpc.rpc_sync, to, add, args=(elsewhere, 1))
            raises(RuntimeError, "`set_device_map` on `TensorPipeRpcBackendOptions`", rpc.remote, to, add, args=(elsewhere, 1))
            missing = "Response device mapping is not available for destination worker0"
            raises(RuntimeError, missing, rpc.rpc_sync, to, empty_elsewhere, args=(tensor,))
            assert torch.equal(rpc.rpc_sync(to, add, args=(tensor, 1)), tensor + 1)
        raises(RuntimeError, missing, rpc.remote("worker1", empty_elsewhere, args=(tensor,)).to_here)
    rpc.shutdown()


def work(rank):
    global RANK
    RANK = rank
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    torch_workers.fork(WORKERS, work)
