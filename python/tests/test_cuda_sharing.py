"""Who holds what when memory of a device is shared, on memory of the CPU: a platform that pretends takes the place of the driver."""

import contextlib
import ctypes
import gc
import threading
import time
import weakref

import pytest

import farref
from farref import _cuda, _cuda_maps, _cuda_shared

torch = pytest.importorskip("torch")


class Event:
    """Work that is done when somebody says so."""

    def __init__(self, is_done=True):
        self._done = threading.Event()
        if is_done:
            self.end()

    def end(self):
        self._done.set()

    def synchronize(self):
        assert self._done.wait(60)

    def query(self):
        return self._done.is_set()


class Pretended:
    """A GPU whose memory is that of this process."""

    def __init__(self, host="here", seen=b"gpu"):
        self.host = host
        self.seen = seen
        self.opened, self.closed, self.waited = [], [], []
        self.work = Event()
        self.refuses = False
        # What it says when somebody asks for its work.
        self.error, self.broken = None, False

    def uuid(self, device):
        return b"gpu"

    def visible(self, uuid):
        return 0 if uuid == self.seen else None

    def export(self, device, pointer):
        # Allocations of a MiB.
        base = pointer >> 20 << 20
        return base.to_bytes(8, "big"), pointer - base, 1

    def open(self, handle, device):
        if self.refuses:
            raise RuntimeError("no such handle")
        self.opened.append(handle)
        return int.from_bytes(handle, "big"), 1 << 20

    def close(self, base, device):
        self.closed.append(base.to_bytes(8, "big"))

    def alias(self, lease):
        memory = (ctypes.c_ubyte * lease.place.nbytes).from_address(lease.pointer)
        memory._lease = lease
        return torch.frombuffer(memory, dtype=torch.uint8)

    def record(self, device):
        return b"event"

    def wait(self, device, handle):
        self.waited.append(handle)

    def done(self, device):
        return Event()

    def aside(self, device):
        return contextlib.nullcontext()

    def settle(self, done, tensor):
        done.synchronize()

    def stream(self, device):
        return "stream"

    def begin_thread(self):
        pass

    def marks(self, device, streams):
        if self.error is not None:
            raise RuntimeError(self.error)
        return [self.work]

    def is_broken(self, device):
        return self.broken


@pytest.fixture
def workers(cluster, monkeypatch):
    """Worker a lends, worker b borrows: each has its own platform."""
    lender, borrower = _cuda_shared.Shared(Pretended()), _cuda_shared.Shared(Pretended())
    here = {"a": lender, "b": borrower}
    monkeypatch.setattr(_cuda, "devices", lambda: here[current.name])
    # On the CPU, which is what the pretended device is.
    monkeypatch.setattr(_cuda, "_device", lambda target: torch.device("cpu"))
    monkeypatch.setattr(_cuda_shared, "_KEPT", 0.05)
    current.name = "a"
    yield cluster, lender, borrower
    current.kept.clear()
    gc.collect()
    until(lambda: not _cuda.lent)


class Current(threading.local):
    """Whose code runs on this thread: that of a, but for what b is called for."""

    name = "a"
    kept = []


current = Current()


def until(condition):
    for _ in range(1000):
        if condition():
            return
        gc.collect()
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def lend(cluster, tensor):
    elements = _cuda._lend(tensor, tensor.numel(), cluster["a"])
    return (elements, str(tensor.dtype).removeprefix("torch."), tuple(tensor.size()), tuple(tensor.stride()))


def borrows(described, is_own=False):
    """Runs on b."""
    current.name = "b"
    try:
        Current.kept.append(_cuda.arrived(*described, 0, is_own=is_own))
        return Current.kept[-1].tolist(), Current.kept[-1].data_ptr()
    finally:
        current.name = "a"


def lets_go():
    Current.kept.clear()
    gc.collect()


def test_gu1_memory_is_kept_until_who_uses_it_has_let_go_of_it(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    tensor = torch.arange(5.0)
    pointer, gone = tensor.data_ptr(), weakref.ref(tensor)
    described = lend(cluster, tensor)
    assert b.call(borrows, described) == ([0, 1, 2, 3, 4], pointer)
    del described
    gc.collect()
    # The tensor that was lent is another object of the same memory, and it is there.
    assert len(_cuda.lent) == 1
    b.call(lets_go)
    until(lambda: not _cuda.lent)
    del tensor
    assert gone() is None


def test_gu2_memory_is_given_back_when_the_work_on_it_has_ended(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    platform = borrower._platform
    platform.work = Event(is_done=False)
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    time.sleep(0.3)
    assert len(_cuda.lent) == 1 and not platform.closed
    platform.work.end()
    until(lambda: not _cuda.lent)


def test_gu2_a_copy_gives_it_back_when_it_is_made_and_not_with_the_device(workers):
    cluster, lender, borrower = workers
    borrower._platform.work = Event(is_done=False)
    tensor = torch.arange(5.0)
    elements, pointer = cluster["a"].peer("b").call(borrows, lend(cluster, tensor), True)
    assert elements == tensor.tolist() and pointer != tensor.data_ptr()
    until(lambda: not _cuda.lent)
    borrower._platform.work.end()


def test_gu2_an_error_of_the_device_is_no_end_of_the_work(workers, caplog):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    platform = borrower._platform
    platform.error = "somebody captures a graph"
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: "captures a graph" in caplog.text)
    time.sleep(0.2)
    assert len(_cuda.lent) == 1 and not platform.closed
    platform.error = None
    until(lambda: not _cuda.lent)
    assert caplog.text.count("captures a graph") == 1


def test_gu2_a_device_that_is_out_of_order_works_on_nothing(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    borrower._platform.error, borrower._platform.broken = "an illegal address", True
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: not _cuda.lent)


def test_gu2_work_on_one_does_not_hold_up_another(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    slow = borrower._platform.work = Event(is_done=False)
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: borrower.releases._waiting)
    borrower._platform.work = Event()
    b.call(borrows, lend(cluster, torch.arange(6.0)))
    assert len(_cuda.lent) == 2
    b.call(lets_go)
    until(lambda: len(_cuda.lent) == 1)
    slow.end()
    until(lambda: not _cuda.lent)


def test_a_worker_that_ends_gives_back_first_what_it_has_let_go_of(workers, monkeypatch):
    cluster, lender, borrower = workers
    monkeypatch.setattr(_cuda_shared, "_devices", borrower)
    monkeypatch.setattr(_cuda_shared, "_KEPT", 60)
    platform = borrower._platform
    platform.work = Event(is_done=False)
    b = cluster["a"].peer("b")
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    ending = threading.Thread(target=cluster["c"].leave)
    ending.start()
    time.sleep(0.2)
    assert ending.is_alive() and cluster["c"].is_member
    platform.work.end()
    ending.join(60)
    assert platform.closed == platform.opened
    until(lambda: not _cuda.lent)


def test_what_was_let_go_of_together_with_the_end_is_given_back(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    platform, releases = borrower._platform, borrower.releases
    platform.work = Event(is_done=False)
    b.call(lets_go)
    until(lambda: releases._waiting)
    platform.work.end()
    releases.end()
    assert not releases._thread.is_alive() and not releases._waiting


def test_a_thread_that_does_not_start_leaves_nothing_behind(workers, monkeypatch):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")

    def no_thread(*args, **kwargs):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(_cuda_shared.threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            b.call(borrows, lend(cluster, torch.arange(5.0)))
    assert borrower.releases._thread is None
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: not _cuda.lent and sorted(borrower._platform.closed) == sorted(borrower._platform.opened))


def test_gu3_an_allocation_is_mapped_once_and_unmapped_after_its_last_user(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    platform = borrower._platform
    pool = torch.arange(64.0)
    for part in pool.split(8):
        b.call(borrows, lend(cluster, part))
    allocations = {lender.export(0, part.data_ptr())[0] for part in pool.split(8)}
    assert sorted(platform.opened) == sorted(allocations) and not platform.closed
    last = Current.kept[-1]
    b.call(lets_go)
    until(lambda: len(_cuda.lent) == 1)
    time.sleep(0.3)
    assert lender.export(0, last.data_ptr())[0] not in platform.closed
    assert last.tolist() == pool[-8:].tolist()
    del last
    until(lambda: sorted(platform.closed) == sorted(allocations))


def test_gu4_who_gets_memory_waits_for_the_event_it_came_with(workers):
    cluster, lender, borrower = workers
    cluster["a"].peer("b").call(borrows, lend(cluster, torch.arange(5.0)))
    assert borrower._platform.waited == [b"event"]


def hands_on(cluster_name):
    """Runs on b: a part of what it has, for others."""
    current.name = "b"
    try:
        part = Current.kept[0][1:4]
        far, place = _cuda._lend(part, part.numel(), None)
        return (far, place), "float32", (3,), (1,)
    finally:
        current.name = "a"


def test_gu5_memory_that_is_handed_on_comes_home_as_what_it_is(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    tensor = torch.arange(5.0)
    b.call(borrows, lend(cluster, tensor))
    described = b.call(hands_on, "b")
    b.call(lets_go)
    # b has let go of it, and what is handed on keeps it.
    time.sleep(0.3)
    assert len(_cuda.lent) == 1
    home = _cuda.arrived(*described, 0)
    assert home.tolist() == [1, 2, 3] and home.data_ptr() == tensor[1:].data_ptr()
    del described


@pytest.mark.parametrize("change", [{"host": "there"}, {"seen": b"another"}])
def test_who_does_not_see_the_gpu_gets_the_elements(workers, change):
    cluster, lender, borrower = workers
    for name, value in change.items():
        setattr(borrower._platform, name, value)
    borrower.host = borrower._platform.host
    tensor = torch.arange(5.0)
    elements, pointer = cluster["a"].peer("b").call(borrows, lend(cluster, tensor))
    assert elements == tensor.tolist() and pointer != tensor.data_ptr()
    assert not borrower._platform.opened
    # GU-4: who reads them waited for what makes them.
    assert lender._platform.waited == [b"event"]
    until(lambda: not _cuda.lent)


def test_who_cannot_map_it_gets_the_elements_and_does_not_try_again(workers, caplog):
    cluster, lender, borrower = workers
    borrower._platform.refuses = True
    for _ in range(3):
        assert cluster["a"].peer("b").call(borrows, lend(cluster, torch.arange(5.0)))[0] == [0, 1, 2, 3, 4]
    assert caplog.text.count("no such handle") == 1
    until(lambda: not _cuda.lent)


# Where tensors arrive


@pytest.fixture
def maps(monkeypatch):
    monkeypatch.setattr(_cuda_maps, "_maps", {})


class Me:
    name = "me"


@pytest.fixture
def me(monkeypatch):
    from farref import _worker

    monkeypatch.setattr(_worker, "worker", lambda: Me)


def test_a_tensor_arrives_on_the_device_with_its_number_or_where_a_map_says(maps, me):
    assert _cuda_maps._target(1, "peer", {}, 2) == 1
    assert _cuda_maps._target(1, "peer", {"me": 0, "another": 1}, 2) == 0
    assert _cuda_maps._target(1, "peer", {"me": None}, 0) is None


def test_what_comes_back_goes_the_other_way(maps, me):
    farref.map_devices("peer", {0: 1, "cuda:1": "cpu"})
    assert _cuda_maps._target(1, "peer", {}, 2) == 0
    assert _cuda_maps._target(1, "another", {}, 2) == 1


def test_a_device_that_is_not_there_is_an_error_that_names_both_workers(maps, me):
    with pytest.raises(farref.CannotBeSent, match="cuda:1 of 'peer' was to arrive on cuda:1 of 'me', which has 1 CUDA device"):
        _cuda_maps._target(1, "peer", {}, 1)


@pytest.mark.parametrize("devices", [{"cpu": 0}, {0: 1, 1: 1}, {0: "gpu"}, {-1: 0}])
def test_a_map_that_says_nothing_sensible_is_refused(maps, devices):
    with pytest.raises(ValueError):
        farref.map_devices("peer", devices)
    assert not _cuda_maps._maps
