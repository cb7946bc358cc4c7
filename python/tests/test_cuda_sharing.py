"""Who holds what when memory of a device is shared, on memory of the CPU: a platform that pretends takes the place of the driver."""

import contextlib
import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from testkit import TEST_TIMEOUT, ended, eventually, run, started

import farref
from farref import _cuda, _cuda_ledger, _cuda_maps, _cuda_shared


@pytest.fixture(scope="module", autouse=True)
def import_torch():
    """Only the process of pytest that runs these tests imports torch, which takes seconds."""
    global torch
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
        assert self._done.wait(TEST_TIMEOUT)

    def query(self):
        return self._done.is_set()


class Signal:
    def __init__(self, handle):
        self.handle = handle


class Pretended:
    """A GPU whose memory is that of this process."""

    def __init__(self, host="here", seen=b"gpu"):
        self.host = host
        self.seen = seen
        self.opened, self.closed, self.waited = [], [], []
        self.work = Event()
        self.refuses = self.deaf = False
        self.recorded, self.recycled, self.settled, self.uses = [], [], [], []
        self.numbers = itertools.count()
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
        signal = self.recycled.pop() if self.recycled else Signal(b"event%d" % next(self.numbers))
        self.recorded.append(signal.handle)
        return signal

    def recycle(self, signal):
        self.recycled.append(signal)

    def wait(self, device, handle, process):
        if self.deaf:
            raise RuntimeError("no such event")
        self.waited.append(handle)

    def done(self, device):
        return Event()

    def aside(self, device):
        return contextlib.nullcontext()

    def settle(self, done, tensor):
        done.synchronize()
        self.settled.append(tensor.data_ptr())

    def follow(self, done, tensor):
        pass

    def used(self, tensor):
        self.uses.append(tensor.data_ptr())

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
    count_looks(lender)
    count_looks(borrower)
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
    """Waits for what also depends on what the collector frees."""

    def holds():
        if not condition():
            gc.collect()
        return condition()

    eventually(holds)


def several_looks(shared, wake=False):
    """Waits until the thread that gives memory back has looked several times more: it would have
    done by now what it must not do. `wake`: it sleeps for long, and is woken for each look."""
    for _ in range(4):
        before = shared.looks
        if wake:
            shared.releases.put("look again")
        eventually(lambda: shared.looks > before)


def count_looks(shared):
    close_idle = shared.mappings.close_idle
    shared.looks = 0

    def counted(before):
        close_idle(before)
        shared.looks += 1

    shared.mappings.close_idle = counted


def lend(cluster, tensor):
    elements = _cuda._lend(tensor, tensor.numel(), cluster["a"])
    return (elements, str(tensor.dtype).removeprefix("torch."), tuple(tensor.size()), tuple(tensor.stride()))


def reads_of(described):
    reads = []
    borrows(described, is_own=True, reads=reads)
    return len(reads)


def borrows(described, **how):
    """Runs on b."""
    current.name = "b"
    try:
        Current.kept.append(_cuda.arrived(*described, 0, **how))
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


def test_gu1_what_a_process_uses_is_kept_though_the_group_has_given_it_up(workers):
    cluster, lender, borrower = workers
    tensor = torch.arange(5.0)
    described = lend(cluster, tensor)
    (far, place, said), *_ = described
    assert cluster["a"].peer("b").call(borrows, described)[1] == tensor.data_ptr()
    # As if b had left: nobody has a reference any more, and b its tensor.
    kept = _cuda.lent[far.id]
    signal, entry = kept.signal, kept.entry
    lender.returned(kept.tensor, signal, entry)
    del kept
    until(lambda: lender.releases.kept)
    several_looks(lender)
    assert lender.releases.kept and signal not in lender._platform.recycled
    # Nobody else begins to use it (LG-2).
    assert not borrower.borrowed.take(place.process, entry)
    assert not _cuda_shared.Shared(Pretended()).borrowed.take(place.process, entry)
    kept = _cuda.lent[far.id]
    kept.entry = None
    del kept, described, far, _
    cluster["a"].peer("b").call(lets_go)
    until(lambda: not lender.releases.kept and signal in lender._platform.recycled)


def test_gu2_memory_is_given_back_when_the_work_on_it_has_ended(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    platform = borrower._platform
    platform.work = Event(is_done=False)
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: borrower.releases._waiting)
    several_looks(borrower)
    assert len(_cuda.lent) == 1 and not platform.closed
    platform.work.end()
    until(lambda: not _cuda.lent)


def test_gu2_a_copy_gives_it_back_when_it_is_made_and_not_with_the_device(workers):
    cluster, lender, borrower = workers
    borrower._platform.work = Event(is_done=False)
    tensor = torch.arange(5.0)
    elements, pointer = cluster["a"].peer("b").call(borrows, lend(cluster, tensor), is_own=True)
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
    several_looks(borrower)
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
    monkeypatch.setattr(_cuda_shared, "_KEPT", TEST_TIMEOUT)
    platform = borrower._platform
    platform.work = Event(is_done=False)
    b = cluster["a"].peer("b")
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    [ending] = started(cluster["c"].leave)
    eventually(lambda: borrower.releases._drained)
    several_looks(borrower)
    assert ending.is_alive() and cluster["c"].is_member
    platform.work.end()
    ended(ending)
    assert platform.closed == platform.opened
    until(lambda: not _cuda.lent)


def test_what_was_let_go_of_together_with_the_end_is_given_back(workers, monkeypatch):
    cluster, lender, borrower = workers
    releases = borrower.releases
    monkeypatch.setattr(releases, "begin", lambda: None)
    b = cluster["a"].peer("b")
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    (mapped,) = borrower.mappings._mapped.values()
    until(lambda: releases._queue.qsize() == 1)
    assert mapped.users == 1
    releases.put(None)
    # What its thread does.
    releases._run()
    assert mapped.users == 0
    borrower.mappings.close_idle(time.monotonic())


def test_a_worker_that_ends_later_than_that_thread_does_not_wait_for_it(workers, caplog):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    b.call(lets_go)
    until(lambda: not _cuda.lent)
    borrower.releases.end()
    ended(borrower.releases._thread)
    borrower.releases.drain(TEST_TIMEOUT)
    assert "still worked on" not in caplog.text


def test_a_thread_that_does_not_start_leaves_nothing_behind(workers, monkeypatch):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")

    def no_thread(*args, **kwargs):
        raise RuntimeError("can't start new thread")

    described = lend(cluster, torch.arange(5.0))
    with monkeypatch.context() as patch:
        patch.setattr(_cuda_shared.threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            b.call(borrows, described)
    del described
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
    several_looks(borrower)
    assert lender.export(0, last.data_ptr())[0] not in platform.closed
    assert last.tolist() == pool[-8:].tolist()
    del last
    until(lambda: sorted(platform.closed) == sorted(allocations))


def test_gu3_the_owner_keeps_memory_until_it_is_unmapped(workers, monkeypatch):
    cluster, lender, borrower = workers
    monkeypatch.setattr(_cuda_shared, "_KEPT", TEST_TIMEOUT)
    b = cluster["a"].peer("b")
    platform = borrower._platform
    lent_then = []
    monkeypatch.setattr(platform, "close", lambda base, device: lent_then.append(len(_cuda.lent)))
    b.call(borrows, lend(cluster, torch.arange(5.0)))
    (mapped,) = borrower.mappings._mapped.values()
    b.call(lets_go)
    until(lambda: not mapped.users)
    assert len(_cuda.lent) == 1 and not lent_then
    monkeypatch.setattr(_cuda_shared, "_KEPT", 0.05)
    borrower.releases.put("look again")
    until(lambda: not _cuda.lent)
    # When it was unmapped the owner still had it.
    assert lent_then == [1]


def test_gu3_of_what_nobody_uses_no_more_is_kept_than_the_latest_and_some(workers, monkeypatch):
    cluster, lender, borrower = workers
    monkeypatch.setattr(_cuda_shared, "_KEPT", TEST_TIMEOUT)
    monkeypatch.setattr(_cuda_shared, "_IDLE", 1 << 20)
    b = cluster["a"].peer("b")
    platform = borrower._platform
    # Each is in two MiB of its own.
    pools = [torch.zeros(1 << 20) for _ in range(4)]
    for pool in pools:
        b.call(borrows, lend(cluster, pool[1 << 19 :][:5]))
        b.call(lets_go)
        until(lambda: all(not mapped.users for mapped in borrower.mappings._mapped.values()))
    until(lambda: len(platform.closed) == 2 and len(_cuda.lent) == 2)
    # And it stays so.
    several_looks(borrower, wake=True)
    assert platform.closed == platform.opened[:2] and len(_cuda.lent) == 2
    borrower.releases.drain(TEST_TIMEOUT)


def test_gu4_who_gets_memory_waits_for_the_event_it_came_with(workers):
    cluster, lender, borrower = workers
    cluster["a"].peer("b").call(borrows, lend(cluster, torch.arange(5.0)))
    assert borrower._platform.waited == lender._platform.recorded != []


def hands_on(begin=1, end=4):
    """Runs on b: a part of what it has, for others."""
    current.name = "b"
    try:
        part = Current.kept[0][begin:end]
        return _cuda._lend(part, part.numel(), farref.worker()), "float32", (end - begin,), (1,)
    finally:
        current.name = "a"


def test_gu5_memory_that_is_handed_on_comes_home_as_what_it_is(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    tensor = torch.arange(5.0)
    b.call(borrows, lend(cluster, tensor))
    described = b.call(hands_on)
    b.call(lets_go)
    # b has let go of it, and what is handed on keeps it.
    until(lambda: not len(borrower.mappings))
    assert len(_cuda.lent) == 1
    home = _cuda.arrived(*described, 0)
    assert home.tolist() == [1, 2, 3] and home.data_ptr() == tensor[1:].data_ptr()
    del described


@pytest.mark.parametrize("shorter", [False, True])
def test_gu5_memory_that_came_twice_is_handed_on_as_what_it_is(workers, shorter):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    tensor = torch.arange(5.0)
    b.call(borrows, lend(cluster, tensor))
    b.call(borrows, lend(cluster, tensor[:2] if shorter else tensor))
    if not shorter:
        del Current.kept[1]
        until(lambda: len(_cuda.lent) == 1)
    described = b.call(hands_on, 0, 5)
    assert _cuda.arrived(*described, 0).data_ptr() == tensor.data_ptr()
    del described


def test_gu4_each_lending_has_an_event_of_its_own_until_it_is_over(workers):
    cluster, lender, borrower = workers
    b = cluster["a"].peer("b")
    lent = [lend(cluster, torch.arange(5.0)) for _ in range(3)]
    assert len(set(lender._platform.recorded)) == 3 and not lender._platform.recycled
    b.call(borrows, lent[0])
    described = b.call(hands_on)
    assert len(borrower._platform.recorded) == 1 and not borrower._platform.recycled
    _cuda.arrived(*described, 0)
    assert lender._platform.waited == borrower._platform.recorded
    del described
    # Who has it waited: the event is for others now.
    until(lambda: len(borrower._platform.recycled) == 1)
    del lent
    b.call(lets_go)
    until(lambda: len(lender._platform.recycled) == 3)
    lend(cluster, torch.arange(5.0))
    assert len(set(lender._platform.recorded)) == 3


def test_gu4_who_cannot_wait_for_the_event_asks_the_owner(workers, caplog):
    cluster, lender, borrower = workers
    borrower._platform.deaf = True
    tensor = torch.arange(5.0)
    elements, pointer = cluster["a"].peer("b").call(borrows, lend(cluster, tensor))
    assert elements == tensor.tolist() and pointer != tensor.data_ptr()
    assert lender._platform.waited == lender._platform.recorded and "no such event" in caplog.text


def test_gu4_what_one_had_begun_who_is_gone_is_not_waited_for(workers, monkeypatch):
    cluster, lender, borrower = workers
    borrower._platform.deaf = True
    monkeypatch.setattr(_cuda, "is_kept", lambda far: False)
    tensor = torch.arange(5.0)
    assert cluster["a"].peer("b").call(borrows, lend(cluster, tensor)) == (tensor.tolist(), tensor.data_ptr())


def test_what_comes_home_is_used_on_the_stream_that_it_came_to(workers):
    cluster, lender, borrower = workers
    tensor = torch.arange(5.0)
    home = _cuda.arrived(*lend(cluster, tensor), 0, is_own=True)
    assert home.tolist() == tensor.tolist() and lender._platform.uses == [tensor.data_ptr()]


def test_who_changes_a_tensor_after_its_call_is_told_when_it_was_read(workers):
    cluster, lender, borrower = workers
    described = lend(cluster, torch.arange(5.0))
    assert cluster["a"].peer("b").call(reads_of, described) == 1
    assert reads_of(described) == 1
    del described


@pytest.mark.parametrize(
    "wrong",
    [
        {"nbytes": 1 << 40},
        {"offset": 1 << 20},
        {"offset": -8},
        {"nbytes": 0},
        {"nbytes": "20"},
        {"process": b"short"},
        {"entry": (1, 2)},
        {"entry": _cuda_ledger.Entry(1, 2, 1 << 70, 3)},
        {"handle": None},
    ],
)
def test_gu6_a_place_that_makes_no_sense_is_an_error_and_leaves_nothing_behind(workers, wrong):
    cluster, lender, borrower = workers
    (far, place, said), *about = lend(cluster, torch.arange(5.0))
    with pytest.raises(farref.CannotBeSent):
        cluster["a"].peer("b").call(borrows, ((far, place._replace(**wrong), said), *about))
    with pytest.raises(farref.CannotBeSent):
        _cuda.arrived((far, place._replace(**wrong), said), *about, 0)
    del far, said
    until(lambda: not _cuda.lent and sorted(borrower._platform.closed) == sorted(borrower._platform.opened))


def test_gu6_a_form_that_is_not_in_the_memory_is_an_error(workers):
    cluster, lender, borrower = workers
    described = lend(cluster, torch.arange(5.0))
    with pytest.raises(farref.CannotBeSent, match="20 bytes came"):
        cluster["a"].peer("b").call(borrows, (*described[:2], (6,), (1,)))
    # At home there is more around it.
    described = lend(cluster, torch.arange(100.0)[:5])
    with pytest.raises(farref.CannotBeSent, match="20 bytes came"):
        _cuda.arrived(*described[:2], (6,), (1,), 0)
    del described


def test_a_tensor_that_was_resized_meanwhile_is_an_error(workers):
    cluster, lender, borrower = workers
    borrower._platform.seen = b"another"
    tensor = torch.arange(5.0)
    described = lend(cluster, tensor)
    tensor.resize_(1 << 16)
    with pytest.raises(farref.ReferenceMisused, match="resized"):
        cluster["a"].peer("b").call(borrows, described)
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
    assert lender._platform.waited == lender._platform.recorded != []
    until(lambda: not _cuda.lent)


def test_who_cannot_map_it_gets_the_elements_and_does_not_try_again_for_a_while(workers, caplog, monkeypatch):
    cluster, lender, borrower = workers
    borrower._platform.refuses = True
    for _ in range(3):
        assert cluster["a"].peer("b").call(borrows, lend(cluster, torch.arange(5.0)))[0] == [0, 1, 2, 3, 4]
    assert caplog.text.count("no such handle") == 1
    until(lambda: not _cuda.lent)
    # After a while it does.
    monkeypatch.setattr(_cuda_shared.time, "monotonic", lambda now=time.monotonic: now() + 100)
    borrower._platform.refuses = False
    tensor = torch.arange(5.0)
    assert cluster["a"].peer("b").call(borrows, lend(cluster, tensor))[1] == tensor.data_ptr()


# The ledger, between processes


LENDS = """
import os, sys
from farref import _cuda_ledger
borrowed = _cuda_ledger.Borrowed()
owner, entry = bytes.fromhex(sys.argv[1]), _cuda_ledger.Entry(*map(int, sys.argv[2:]))
print(borrowed.take(owner, entry), flush=True)
for line in sys.stdin:
    borrowed.give_back(owner, entry)
    print("back", flush=True)
"""


@pytest.fixture
def ledger():
    """A ledger, one lending, and processes that use it."""
    owner = bytes(range(16))
    ledger = _cuda_ledger.Ledger(owner)
    entry = ledger.open()
    users = []

    def use():
        users.append(
            subprocess.Popen([sys.executable, "-c", LENDS, owner.hex(), *map(str, entry)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        return users[-1], users[-1].stdout.readline().strip()

    yield ledger, entry, use
    for user in users:
        user.kill()
        user.wait()


def test_lg1_what_another_process_uses_is_used_until_it_gives_it_back(ledger):
    ledger, entry, use = ledger
    assert ledger.is_unused(entry)
    user, took = use()
    assert took == "True" and not ledger.is_unused(entry)
    print("give back", file=user.stdin, flush=True)
    assert user.stdout.readline() == "back\n" and ledger.is_unused(entry)


def test_lg1_what_a_killed_process_used_is_unused_when_it_has_ended(ledger):
    ledger, entry, use = ledger
    user, _ = use()
    user.send_signal(signal.SIGSTOP)
    eventually(lambda: _cuda_ledger._of_process(user.pid)[0] == "T")
    ledger.close(entry)
    assert not ledger.is_unused(entry)
    user.kill()
    until(lambda: ledger.is_unused(entry))
    assert _cuda_ledger.has_ended(user.pid, 0)


def test_a_process_that_was_forked_off_gives_back_nothing(workers):
    cluster, lender, borrower = workers
    described = lend(cluster, torch.arange(5.0))
    entry = described[0][1].entry
    forked = os.fork()
    if forked == 0:
        kept = _cuda.lent[described[0][0].id]
        lender.returned(kept.tensor, kept.signal, kept.entry)
        os._exit(0)
    os.waitpid(forked, 0)
    assert borrower.borrowed.take(lender.process, entry)
    borrower.borrowed.give_back(lender.process, entry)
    del described


def test_lg2_what_is_over_is_not_taken(ledger):
    ledger, entry, use = ledger
    ledger.close(entry)
    assert use()[1] == "False" and ledger.is_unused(entry)
    ledger.forget(entry)
    again = ledger.open()
    assert again.place == entry.place and use()[1] == "False"


def test_lg3_nothing_is_unused_while_a_process_ends(ledger, monkeypatch):
    ledger, entry, use = ledger
    user, _ = use()
    ending = [True]
    monkeypatch.setattr(_cuda_ledger, "has_ended", lambda pid, began: not (pid == user.pid and ending[0]))
    user.kill()
    user.wait()
    assert not ledger.is_unused(entry)
    ending.clear()
    ending.append(False)
    assert ledger.is_unused(entry)
    # Its line is free again.
    assert not any(os.pread(ledger._file, 16, _cuda_ledger._LIST))


def test_lg3_a_process_that_has_become_another_program_holds_nothing_up(ledger, monkeypatch):
    ledger, entry, use = ledger
    user, _ = use()
    monkeypatch.setattr(_cuda_ledger, "_TEARDOWN", TEST_TIMEOUT)
    monkeypatch.setattr(_cuda_ledger, "has_ended", lambda pid, began: False)
    assert not ledger.is_unused(entry)
    # As exec() does: its files are closed, and it goes on.
    user.kill()
    user.wait()
    assert not ledger.is_unused(entry)
    monkeypatch.setattr(_cuda_ledger, "_TEARDOWN", 0)
    assert ledger.is_unused(entry)


def test_a_ledger_that_is_not_the_owners_is_not_used(ledger):
    ledger, entry, use = ledger
    with pytest.raises(OSError, match="another process"):
        _cuda_ledger.Borrowed().take(bytes(16), entry)


# What of it PyTorch's layer does, in a process of its own, which has that layer


def in_pytorchs_layer(program):
    run([sys.executable, "-c", program])


def test_a_call_of_pytorchs_layer_is_answered_when_its_arguments_were_read():
    in_pytorchs_layer("""
import farref.torch
import torch
from farref.torch import _calls, _devices

happened = []

class Read:
    def synchronize(self):
        happened.append("read")

class Layer:
    def deserialize(pickle, tensors):
        _devices.local.reads = [Read()]
    def _run_function(function):
        happened.append("ran")
        return "answer"

_calls._internal = lambda: Layer
assert _calls._run(b"", None, None, 0) == "answer"
assert happened == ["ran", "read"] and _devices.local.reads is None, happened
""")


def test_gradients_are_used_after_what_has_made_them_on_whatever_thread():
    in_pytorchs_layer("""
import threading
import farref.torch
import torch
from farref.torch import _grad

happened = []
me = threading.local()

class Stream:
    def wait_event(self, event):
        happened.append((me.name, "waits for", event.of))

class Event:
    def record(self, stream):
        self.of = me.name

class Gradient:
    is_cuda, is_sparse, device = True, False, "cuda:0"
    def __add__(self, other):
        happened.append((me.name, "adds"))
        return self
    def record_stream(self, stream):
        happened.append((me.name, "uses"))

torch.cuda.is_initialized = lambda: True
torch.cuda.current_stream = lambda device: Stream()
torch.cuda.Event = Event
context = _grad.DistAutogradContext(1)

def run(name, function, *args):
    def named():
        me.name = name
        function(*args)
    thread = threading.Thread(target=named)
    thread.start()
    thread.join()

run("first", context.add, [("leaf", Gradient())])
run("second", context.add, [("leaf", Gradient())])
run("third", context.gradients)
assert happened == [
    ("second", "waits for", "first"), ("second", "adds"), ("third", "waits for", "second"), ("third", "uses")
], happened
""")


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


def test_a_map_can_be_added_while_others_look_at_them(maps):
    looking = iter(_cuda_maps._maps.items())
    farref.map_devices("first", {0: 0})
    looking = iter(_cuda_maps._maps.items())
    next(looking)
    farref.map_devices("second", {0: 0})
    assert list(looking) == [] and len(_cuda_maps._maps) == 2


def test_a_tensor_without_elements_arrives_on_a_worker_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    assert _cuda.arrived(None, "float32", (0, 3), (3, 1), _cuda.ANYWHERE).is_cpu
