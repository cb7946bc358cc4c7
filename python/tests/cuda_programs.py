"""Programs with tensors on a CUDA device, for ``test_cuda.py``: those of farref's own, and those of torch.distributed.rpc.

``cuda_programs.py program workers place`` runs one. Its workers are forked off from this process, which has imported torch and done
nothing else; its last words are how they ended.
"""

import gc
import os
import pathlib
import signal
import sys
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch_workers
from testkit import TEST_TIMEOUT, eventually

import farref
from farref import _cuda

RANK, WORKERS, PLACE = None, int(sys.argv[2]), sys.argv[3]
MIB = 1 << 20
# What one worker keeps for others.
KEPT = []


def raises(kind, text, function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


def free():
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info()[0]


def same(value):
    return value


def told(tensor):
    """What a worker sees of a tensor."""
    return str(tensor.device), str(tensor.dtype), tuple(tensor.shape), tuple(tensor.stride()), tensor.cpu()


def add(tensor, number):
    tensor += number
    torch.cuda.synchronize()


def keep(tensor):
    KEPT.append(tensor)


def forget():
    KEPT.clear()
    gc.collect()


def half(tensor):
    return tensor[len(tensor) // 2 :]


def kept_sum():
    return KEPT[0].sum().item()


def mapped():
    return len(_cuda.devices().mappings)


def makes(number, elements):
    return torch.full((elements,), float(number), device="cuda")


def ones(elements):
    return torch.ones(elements)


def slow(elements, number):
    """A tensor that is not there yet when it is returned, on a stream of its own."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        made = torch.zeros(elements, device="cuda")
        torch.cuda._sleep(200_000_000)
        made += number
    torch.cuda.current_stream().wait_stream(stream)
    made.record_stream(torch.cuda.current_stream())
    return made


def tensors():
    """Of all types, sizes and forms."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64):
        for elements in (0, 1, 1000, 1 << 18):
            yield (torch.arange(elements, device="cuda") % 7).to(dtype)
    square = torch.rand(1000, 1000, device="cuda")
    yield square.t()
    yield square[::2]
    yield square[3:700, 5:9]
    yield square[:, 1]
    yield square[0].expand(100, 1000)
    yield torch.rand(2000, 2000, device="cuda")[:, ::40]
    yield torch.rand(8, 3, 64, 64, device="cuda").to(memory_format=torch.channels_last)
    yield torch.tensor(3.5, device="cuda")
    yield torch.rand(1 << 16, dtype=torch.complex64, device="cuda").conj()


# Of farref's own


def joined(**settings):
    return farref.join(name=f"worker{RANK}", rank=RANK, world_size=WORKERS, rendezvous=f"file://{PLACE}", **settings)


def values():
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            for tensor in tensors():
                device, dtype, shape, _, elements = peer.call(told, tensor)
                assert (device, dtype, shape) == ("cuda:0", str(tensor.dtype), tuple(tensor.shape))
                assert torch.equal(elements, tensor.cpu())
                back = peer.call(same, tensor)
                assert back.device == tensor.device and torch.equal(back, tensor)
                del back
            some = {"a": [torch.ones(3, device="cuda"), torch.ones(MIB, device="cuda")], "b": (torch.zeros(2), "text")}
            back = peer.call(same, some)
            assert torch.equal(back["a"][1], some["a"][1]) and back["b"][0].is_cpu and back["b"][1] == "text"
            rref = peer.remote(makes, 4, MIB)
            assert rref.to_here().sum().item() == 4 * MIB
            assert peer.call(same, torch.ones(3, device="cuda", requires_grad=True)).requires_grad
            del back, rref
            gc.collect()


def shared():
    """What is large is the same memory on both sides, mapped once; and what comes home is the one that left."""
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            large, small = torch.zeros(MIB, device="cuda"), torch.zeros(8, device="cuda")
            assert large.data_ptr() == peer.call(same, large).data_ptr()
            numbered = torch.arange(MIB, device="cuda")
            assert torch.equal(peer.call(half, numbered), half(numbered))
            assert peer.call(half, numbered).data_ptr() == half(numbered).data_ptr()
            peer.call(add, large, 1)
            peer.call(add, small, 1)
            assert large.sum().item() == MIB and small.sum().item() == 0
            parts = list(torch.zeros(8, MIB, device="cuda"))
            for part in parts:
                peer.call(keep, part)
            assert peer.call(mapped) <= 2
            peer.call(forget)
            eventually(lambda: not _cuda.lent, "memory is still lent")
            eventually(lambda: peer.call(mapped) == 0, "memory is still mapped")
            made = peer.call(makes, 5, MIB)
            # Not its own memory: a copy goes on.
            peer.call(add, made, 1)
            assert made.sum().item() in (5 * MIB, 6 * MIB)
            assert peer.call(told, made)[4].sum().item() == made.sum().item()
            del made


def order():
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            for number in range(5):
                sent = slow(MIB, number)
                assert peer.call(told, sent)[4].eq(number).all()
                assert peer.call(slow, MIB, number).eq(number).all()
                assert peer.call(slow, 100, number).eq(number).all()


def maps():
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            for elements in (10, MIB):
                farref.map_devices("worker1", {0: "cpu"})
                device, *_, seen = peer.call(told, torch.ones(elements, device="cuda"))
                assert device == "cpu" and seen.sum() == elements
                farref.map_devices("worker1", {0: 7})
                raises(farref.CannotBeSent, "cuda:7 of 'worker1', which has 1 CUDA device", peer.call, told, torch.ones(elements, device="cuda"))
                farref.map_devices("worker1", {})


def elsewhere():
    """As if the workers were on different hosts: everything is copied."""
    with joined() as me:
        torch.cuda.init()
        if RANK == 1:
            _cuda.devices().host = "another"
        me.peer(f"worker{1 - RANK}").call(same, 0)
        if RANK == 0:
            peer = me.peer("worker1")
            for _ in range(2):
                tensor = torch.rand(MIB, device="cuda")
                device, *_, seen = peer.call(told, tensor)
                assert device == "cuda:0" and torch.equal(seen, tensor.cpu())
                assert torch.equal(peer.call(same, tensor), tensor)
            # Not on the stream that the elements are read on.
            with torch.cuda.stream(torch.cuda.Stream()):
                sent = torch.zeros(MIB, device="cuda")
                torch.cuda._sleep(400_000_000)
                sent += 3
                assert peer.call(told, sent)[4].eq(3).all()
            assert peer.call(mapped) == 0
            del sent, tensor


def rounds():
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            for number in range(20):
                peer.call(same, torch.full((MIB,), float(number), device="cuda"))
            time.sleep(2)
            before = free(), peer.call(free)
            for number in range(1000):
                back = peer.call(same, torch.full((MIB,), float(number), device="cuda"))
                assert number % 100 or back.sum().item() == number * MIB
                del back
            eventually(lambda: not _cuda.lent, "memory is still lent")
            eventually(lambda: peer.call(mapped) == 0 == mapped(), "memory is still mapped")
            after = free(), peer.call(free)
            print("free before", before, "after a thousand rounds", after, flush=True)
            assert min(after) >= min(before) - 4 * MIB, (before, after)


def killed_user():
    me = joined(peer_timeout=3)
    if RANK == 0:
        peer = me.peer("worker1")
        peer.call(keep, torch.ones(256 * MIB, device="cuda"))
        assert len(_cuda.lent) == 1 and torch.cuda.memory_allocated() >= 1024 * MIB
        os.kill(peer.call(os.getpid), signal.SIGKILL)
        eventually(lambda: not _cuda.lent, "memory of the dead is still lent")
        eventually(lambda: torch.cuda.memory_allocated() < 1024 * MIB, "memory of the dead is still kept")
        me.crash()
    else:
        me.serve()


def killed_owner():
    me = joined(peer_timeout=3)
    if RANK == 0:
        owner = me.peer("worker1")
        made = owner.call(makes, 2, 64 * MIB)
        os.kill(owner.call(os.getpid), signal.SIGKILL)
        eventually(lambda: not owner.is_alive, "it is not gone")
        assert made.sum().item() == 2 * 64 * MIB
        assert me.me.call(same, made).sum().item() == 2 * 64 * MIB
        del made
        gc.collect()
        eventually(lambda: mapped() == 0, "memory is still mapped")
        assert torch.ones(4, device="cuda").sum().item() == 4
        me.crash()
    else:
        me.serve()


def say(what):
    """Tells the other process, which is in no group with this one any more."""
    pathlib.Path(f"{PLACE}.{what}").touch()


def heard(what):
    eventually(pathlib.Path(f"{PLACE}.{what}").exists, f"nobody said {what}")


def not_written_to(me, pid=None):
    """Rank 0: memory that is still used by a process which the group has given up is not used for anything else."""
    eventually(lambda: not _cuda.lent, "the group has not given it up")
    eventually(lambda: _cuda.devices().releases.kept, "nothing is kept")
    others = [torch.zeros(64 * MIB, device="cuda") for _ in range(2)]
    torch.cuda.synchronize()
    if pid is not None:
        os.kill(pid, signal.SIGCONT)
    say("write")
    heard("written")
    torch.cuda.synchronize()
    assert all(other.sum().item() == 0 for other in others)
    say("forget")
    eventually(lambda: not _cuda.devices().releases.kept, "it is still kept")
    del others
    me.crash()


def writes(me):
    """Rank 1: uses memory after its time in the group."""
    heard("write")
    KEPT[0] += 1
    torch.cuda.synchronize()
    say("written")
    heard("forget")
    forget()
    eventually(lambda: mapped() == 0, "memory is still mapped")


def left_user():
    me = joined()
    if RANK == 0:
        me.peer("worker1").call(keep, torch.ones(64 * MIB, device="cuda"))
        say("leave")
        not_written_to(me)
    else:
        heard("leave")
        me.leave()
        writes(me)


def stopped_user():
    me = joined(peer_timeout=3)
    if RANK == 0:
        peer = me.peer("worker1")
        peer.call(keep, torch.ones(64 * MIB, device="cuda"))
        pid = peer.call(os.getpid)
        os.kill(pid, signal.SIGSTOP)
        not_written_to(me, pid)
    else:
        writes(me)
        if me.is_member:
            me.crash()


def begin_capture():
    """Another thread captures a graph, until it is told to end."""
    weights = torch.ones(8, device="cuda")
    graph, begun, end = torch.cuda.CUDAGraph(), threading.Event(), threading.Event()
    outcome = []

    def capture():
        try:
            with torch.cuda.graph(graph):
                doubled = weights * 2
                begun.set()
                assert end.wait(TEST_TIMEOUT)
                doubled = doubled + 1
            graph.replay()
            outcome.append(doubled.sum().item())
        except Exception as error:
            outcome.append(repr(error))

    thread = threading.Thread(target=capture)
    thread.start()
    assert begun.wait(TEST_TIMEOUT)
    KEPT.append((thread, end, outcome))


def end_capture():
    thread, end, outcome = KEPT.pop()
    end.set()
    thread.join()
    return outcome[0]


def drop_first():
    del KEPT[0]
    gc.collect()


def captured():
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            peer.call(keep, torch.ones(MIB, device="cuda"))
            peer.call(begin_capture)
            peer.call(drop_first)
            time.sleep(1)
            assert peer.call(end_capture) == 24
            eventually(lambda: not _cuda.lent, "memory is still lent")


def most():
    """What comes back can be given to others at once, though it takes most of the device."""
    with joined() as me:
        if RANK == 0:
            peer = me.peer("worker1")
            peer.call(mapped)
            large = int(0.6 * torch.cuda.mem_get_info()[0])
            sent = torch.empty(large, dtype=torch.uint8, device="cuda")
            peer.call(keep, sent)
            del sent
            peer.call(forget)
            eventually(lambda: not _cuda.lent, "memory is still lent")
            torch.cuda.empty_cache()
            torch.empty(large + (2 << 20), dtype=torch.uint8, device="cuda")


def sum_of(tensor):
    return tensor.sum().item()


def events():
    """What was sent is waited for, and nothing that its sender has begun since."""
    with joined(threads=1) as me:
        if RANK == 0:
            peer = me.peer("worker1")
            peer.call(sum_of, torch.ones(MIB, device="cuda"))
            sent, later = torch.ones(MIB, device="cuda"), torch.ones(MIB, device="cuda")
            torch.cuda.synchronize()
            busy = peer.start(time.sleep, 1)
            first = peer.start(sum_of, sent)
            torch.cuda._sleep(8_000_000_000)
            second = peer.start(sum_of, later)
            busy.result()
            assert first.result() == MIB
            # What was begun after it was sent is still at it.
            assert not torch.cuda.current_stream().query()
            assert second.result() == MIB
            del busy, first, second


def ends_at_work():
    """A program ends while its device works on what it has dropped: the interpreter ends well."""
    me = joined(peer_timeout=3)
    if RANK == 0:
        heard("ended")
        eventually(lambda: not _cuda.lent and not _cuda.devices().releases.kept, "memory of one that has ended is still lent")
        me.crash()
    else:
        made = me.peer("worker0").call(makes, 2, MIB)
        torch.cuda._sleep(8_000_000_000)
        made += 1
        del made
        gc.collect()
        say("ended")
        me.crash()


# Of torch.distributed.rpc


def init(device_map={0: 0}, timeout=TEST_TIMEOUT):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{PLACE}", rpc_timeout=timeout)
    if device_map:
        for rank in range(WORKERS):
            options.set_device_map(f"worker{rank}", device_map)
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORKERS, rpc_backend_options=options)


def torch_values():
    init()
    if RANK == 0:
        for tensor in tensors():
            device, dtype, shape, _, elements = rpc.rpc_sync("worker1", told, args=(tensor,))
            assert (device, dtype, shape) == ("cuda:0", str(tensor.dtype), tuple(tensor.shape))
            assert torch.equal(elements, tensor.cpu())
            back = rpc.rpc_async("worker1", same, args=(tensor,)).wait()
            assert back.device == tensor.device and torch.equal(back, tensor)
        some = {"a": [torch.ones(3, device="cuda"), torch.ones(MIB, device="cuda")], "b": (torch.zeros(2), "text")}
        back = rpc.rpc_sync("worker1", same, args=(some,))
        assert torch.equal(back["a"][1], some["a"][1]) and back["b"][0].is_cpu and back["b"][1] == "text"
        for elements in (10, MIB):
            assert rpc.remote("worker1", makes, args=(4, elements)).to_here().sum().item() == 4 * elements
            assert rpc.rpc_sync("worker0", makes, args=(4, elements)).sum().item() == 4 * elements
            # What arrives is a copy, and can be changed.
            sent = torch.zeros(elements, device="cuda")
            rpc.rpc_sync("worker1", add, args=(sent, 1))
            assert sent.sum().item() == 0
            rpc.rpc_sync("worker1", keep, args=(sent,))
            rpc.rpc_sync("worker1", same, args=(sent,)).add_(1)
            assert sent.sum().item() == rpc.rpc_sync("worker1", kept_sum) == 0
            rpc.rpc_sync("worker1", forget)
        sparse = torch.eye(600, device="cuda").to_sparse()
        assert torch.equal(rpc.rpc_sync("worker1", same, args=(sparse,)).to_dense(), sparse.to_dense())
        eventually(lambda: not _cuda.lent, "memory is still lent")
    rpc.shutdown()


def torch_order():
    init()
    if RANK == 0:
        aside = torch.cuda.Stream()
        for number in range(4):
            for elements in (10, MIB):
                sent = slow(elements, number)
                assert rpc.rpc_sync("worker1", told, args=(sent,))[4].eq(number).all()
                pending = rpc.rpc_async("worker1", slow, args=(elements, number))
                with torch.cuda.stream(aside):
                    assert pending.wait().eq(number).all().item()
                assert pending.wait().eq(number).all().item()
                more = rpc.rpc_async("worker1", slow, args=(elements, number)).then(lambda made: made.value() + 1)
                with torch.cuda.stream(aside):
                    assert more.wait().eq(number + 1).all().item()
    rpc.shutdown()


def torch_refused():
    init(None)
    if RANK == 0:
        needs = "`set_device_map` on `TensorPipeRpcBackendOptions`"
        for elements in (10, MIB):
            raises(RuntimeError, needs, rpc.rpc_sync, "worker1", same, args=(torch.ones(elements, device="cuda"),))
            raises(RuntimeError, "Response device mapping is not available", rpc.rpc_sync, "worker1", makes, args=(1, elements))
            raises(RuntimeError, "for destination worker0", rpc.remote("worker1", makes, args=(1, elements)).to_here)
        assert rpc.rpc_sync("worker1", same, args=(torch.ones(2),)).sum() == 2
    rpc.shutdown()


def torch_to_the_cpu():
    init({0: "cpu"})
    if RANK == 0:
        for elements in (10, MIB):
            device, *_, seen = rpc.rpc_sync("worker1", told, args=(torch.ones(elements, device="cuda"),))
            assert device == "cpu" and seen.sum().item() == elements
            with torch.device("cuda"):
                # As after set_default_device(): what is copied on the way is on the CPU nevertheless.
                assert rpc.rpc_sync("worker1", sum_of, args=(torch.ones(elements),)) == elements
            back = rpc.rpc_sync("worker1", ones, args=(elements,))
            assert back.is_cuda and back.sum().item() == elements
            weights = torch.rand(elements, device="cuda", requires_grad=True)
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [rpc.rpc_sync("worker1", torch.mul, args=(weights, 3)).sum()])
                gradient = dist_autograd.get_gradients(context)[weights]
            assert gradient.is_cuda and gradient.eq(3).all()
    rpc.shutdown()


class Layer(torch.nn.Module):
    def __init__(self, seed, width):
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(width, width).cuda()

    def forward(self, x):
        return self.linear(x).relu()

    def gradients(self, context):
        found = dist_autograd.get_gradients(context)
        return [found[parameter] for parameter in self.linear.parameters()]


def torch_autograd_aside():
    """The same on a stream of the program's own, while the default one is busy."""
    torch_autograd(aside=True)


def torch_autograd(aside=False):
    """Gradients are those of one process: through two workers, a skip, and small and large tensors."""
    init()
    stream = torch.cuda.Stream() if aside else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        if RANK == 0:
            torch_gradients(aside)
    rpc.shutdown()


def torch_gradients(aside):
    for width in (16, 512):
        x = torch.rand(64, width, device="cuda", requires_grad=True)
        local = [Layer(seed, width) for seed in (1, 2)]
        hidden = local[0](x)
        (local[1](hidden) + hidden * x).sum().backward()
        far = [rpc.remote(f"worker{rank}", Layer, args=(rank, width)) for rank in (1, 2)]
        for _ in range(3):
            with dist_autograd.context() as context:
                hidden = far[0].rpc_sync().forward(x)
                loss = (far[1].rpc_sync().forward(hidden) + hidden * x).sum()
                if aside:
                    with torch.cuda.stream(torch.cuda.default_stream()):
                        torch.cuda._sleep(200_000_000)
                dist_autograd.backward(context, [loss])
                gradient = dist_autograd.get_gradients(context)[x]
                assert gradient.is_cuda and torch.allclose(gradient, x.grad, rtol=1e-4, atol=1e-5)
                for layer, there in zip(local, far):
                    found = there.rpc_sync().gradients(context)
                    for one, parameter in zip(found, layer.linear.parameters()):
                        assert one.is_cuda and torch.allclose(one, parameter.grad, rtol=1e-4, atol=1e-5)
    del far, there


def torch_read():
    """When a call is answered its arguments have been read, whatever else the callee's device has to do."""
    init()
    if RANK == 0:
        sent = torch.ones(MIB, device="cuda")
        rpc.rpc_sync("worker1", sum_of, args=(sent,))
        rpc.rpc_sync("worker1", sleep_on_gpu)
        rpc.rpc_sync("worker1", keep, args=(sent,))
        sent.zero_()
        torch.cuda.synchronize()
        assert rpc.rpc_sync("worker1", kept_sum) == MIB
        rpc.rpc_sync("worker1", forget)
    rpc.shutdown()


def sleep_on_gpu():
    torch.cuda._sleep(1_000_000_000)


def torch_to_itself():
    """What a worker sends to itself from another stream, and drops, is there until it was copied."""
    init()
    if RANK == 0:
        with torch.cuda.stream(torch.cuda.Stream()):
            rpc.rpc_sync("worker0", sum_of, args=(torch.ones(MIB, device="cuda"),))
            with torch.cuda.stream(torch.cuda.default_stream()):
                torch.cuda._sleep(1_000_000_000)
            pending = []
            for number in range(20):
                pending.append(rpc.rpc_async("worker0", keep_numbered, args=(number, torch.full((MIB,), float(number), device="cuda"))))
                # Takes the memory, if it is free.
                torch.full((MIB,), -1.0, device="cuda")
            for one in pending:
                one.wait()
        torch.cuda.synchronize()
        assert all(tensor.eq(number).all().item() for number, tensor in KEPT)
        forget()
    rpc.shutdown()


def keep_numbered(number, tensor):
    KEPT.append((number, tensor))


def torch_rounds():
    init()
    if RANK == 0:
        for number in range(20):
            rpc.rpc_sync("worker1", same, args=(torch.full((MIB,), float(number), device="cuda"),))
        time.sleep(2)
        before = free(), rpc.rpc_sync("worker1", free)
        for number in range(1000):
            back = rpc.rpc_sync("worker1", same, args=(torch.full((MIB,), float(number), device="cuda"),))
            assert number % 100 or back.sum().item() == number * MIB
        del back
        eventually(lambda: not _cuda.lent, "memory is still lent")
        eventually(lambda: rpc.rpc_sync("worker1", mapped) == 0 == mapped(), "memory is still mapped")
        after = free(), rpc.rpc_sync("worker1", free)
        print("free before", before, "after a thousand rounds", after, flush=True)
        assert min(after) >= min(before) - 4 * MIB, (before, after)
    rpc.shutdown()


def torch_killed():
    init(timeout=30)
    if RANK == 0:
        pid = rpc.rpc_sync("worker1", os.getpid)
        sent = torch.ones(64 * MIB, device="cuda")
        pending = [rpc.rpc_async("worker1", slow_sum, args=(sent,)) for _ in range(4)]
        del sent
        os.kill(pid, signal.SIGKILL)
        for one in pending:
            raises(RuntimeError, "", one.wait)
        del pending, one
        eventually(lambda: not _cuda.lent, "memory of the dead is still lent")
        eventually(lambda: torch.cuda.memory_allocated() < 256 * MIB, "memory of the dead is still kept")
    rpc.shutdown()


def slow_sum(tensor):
    time.sleep(1)
    return tensor.sum()


def work(rank):
    global RANK
    RANK = rank
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    torch_workers.fork(WORKERS, work)
