"""Memory of CUDA devices that this process has of others: who uses it here, when it is given back, and to whom it is handed on.

The invariants are those of :mod:`farref._cuda`.
"""

import atexit
import importlib.util
import logging
import os
import queue
import sys
import threading
import time
import weakref

from ._cuda_ledger import Borrowed, Ledger
from ._errors import CannotBeSent, Error

_log = logging.getLogger("farref")

# Seconds that memory stays mapped which nobody uses.
_KEPT = 0.5
# Seconds between two looks at work that has not ended.
_SHORTEST, _LONGEST = 0.0005, 0.01
# The same for memory that processes use which are not in the group any more.
_OFTEN = 0.1
# So many bytes stay mapped at most that nobody uses, besides the latest.
_IDLE = 512 << 20
# Seconds after which it is tried again to map memory of a process; and of so many that is remembered.
_AGAIN, _MOST = 60.0, 256
# Seconds that a worker that ends waits for work on memory of others.
_PATIENCE = 60.0


class Lease:
    """Memory of another process that is used here, until this is dropped. torch keeps it as long as the memory."""

    def __init__(self, shared, mapped, far, place):
        self._shared = shared
        self._mapped = mapped
        # Where it came, and is used if nothing else is said.
        self._stream = shared.stream(mapped.device)
        self.far = far
        self.place = place
        self.device = mapped.device
        self.pointer = mapped.base + place.offset
        # After which it is not used any more, if that is known.
        self.done = None
        self.__cuda_array_interface__ = {
            "shape": (place.nbytes,),
            "typestr": "|u1",
            "data": (self.pointer, False),
            "strides": None,
            "version": 2,
        }

    def __del__(self):
        # Nobody uses it any more, after ``done``, or else after what its stream and this thread's have to do.
        streams = {self._stream}
        if self.done is None:
            try:
                streams.add(self._shared.stream(self.device))
            except Exception:
                pass  # the interpreter ends
        self._shared.releases.put(_Released(self._shared, self._mapped, self.far, self.place, self.done, streams))


class _Mapped:
    """Memory of another process, and how many use it here."""

    __slots__ = ("base", "size", "device", "users", "since", "last", "leases")

    def __init__(self, base, size, device):
        self.base, self.size, self.device = base, size, device
        self.users = 0
        self.since = 0.0
        # The one that nobody has used it since: its owner keeps it until it is unmapped (GU-3).
        self.last = None
        self.leases = weakref.WeakSet()


class Mappings:
    """What of other processes is mapped here (GU-3). ``platform`` opens and closes."""

    def __init__(self, platform):
        self._platform = platform
        self._lock = threading.Lock()
        self._mapped = {}

    def __len__(self):
        return len(self._mapped)

    def take(self, key, handle, device):
        """The memory, for one more user."""
        with self._lock:
            mapped = self._mapped.get(key)
            if mapped is None:
                mapped = self._mapped[key] = _Mapped(*self._platform.open(handle, device), device)
            mapped.users += 1
            last, mapped.last = mapped.last, None
        if last is not None:
            last.let_go()
        return mapped

    def give_back(self, mapped, released):
        """One of its users has let go of it: the reference is dropped, unless it is the last that keeps the memory."""
        with self._lock:
            mapped.users -= 1
            if not mapped.users:
                mapped.since = time.monotonic()
                mapped.last, released = released, None
        if released is not None:
            released.let_go()

    def lent(self, lease):
        """A lease of this memory is used."""
        with self._lock:
            lease._mapped.leases.add(lease)

    def leases(self, pointer):
        """What is used of the memory of another process that this is in; None if it is in none."""
        with self._lock:
            for mapped in self._mapped.values():
                if mapped.base <= pointer < mapped.base + mapped.size:
                    return list(mapped.leases)
        return None

    def close_idle(self, before):
        """Unmaps what nobody has used since then, and what is too much of it. Then its owner gets to know."""
        closed = []
        with self._lock:
            idle = [(mapped.since, key, mapped) for key, mapped in self._mapped.items() if not mapped.users]
            idle.sort(key=lambda one: one[0], reverse=True)
            bytes_kept = 0
            for number, (since, key, mapped) in enumerate(idle):
                # The latest one is most likely to come again, however large it is.
                bytes_kept += mapped.size if number else 0
                if since > before and bytes_kept <= _IDLE:
                    continue
                del self._mapped[key]
                try:
                    self._platform.close(mapped.base, mapped.device)
                except RuntimeError as error:
                    _log.warning("memory of another process could not be unmapped: %s", str(error))
                closed.append(mapped.last)
        for last in closed:
            if last is not None:
                last.let_go()


class _Released:
    """Memory of another process that is not used here any more, as soon as the work on it has ended."""

    __slots__ = ("_shared", "mapped", "far", "_place", "done", "streams", "marks", "said")

    def __init__(self, shared, mapped, far, place, done, streams):
        self._shared, self.mapped, self.far, self._place = shared, mapped, far, place
        # At which it has ended, or else what it may be on.
        self.done, self.streams = done, streams
        # Events at which it has ended; None: they are not recorded yet.
        self.marks = None if done is None else [done]
        self.said = False

    def let_go(self):
        """Tells its owner, by both ways (GU-1)."""
        self._shared.borrowed.give_back(self._place.process, self._place.entry)
        self.far = self.mapped = None


class Kept:
    """Memory of this process that a process may still use which is not in the group any more."""

    __slots__ = ("tensor", "signal", "entry")

    def __init__(self, tensor, signal, entry):
        self.tensor, self.signal, self.entry = tensor, signal, entry


class Releases:
    """Lets go of memory of others when the work on it has ended (GU-2): on a thread of its own, for that may take its time.

    That thread never waits inside of the driver. So it can end whenever the interpreter does, and nothing of what waits holds up
    the rest.
    """

    def __init__(self, platform, mappings, is_unused):
        self._platform = platform
        self._mappings = mappings
        self._is_unused = is_unused
        # Destructors put into it, whatever they have interrupted.
        self._queue = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()
        self._waiting = []
        self.kept = []
        # Who waits until nothing waits here.
        self._drained = []

    def begin(self):
        """Called before there is anything to be released."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="farref-cuda", daemon=True)
                    thread.start()
                    self._thread = thread
                    atexit.register(self.end)

    def put(self, item):
        """Called by destructors: something is to be given back, or to be kept."""
        self._queue.put(item)

    def drain(self, patience):
        """Waits until all that nobody uses is given back, and unmapped."""
        # It has ended if the interpreter ends.
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            drained = threading.Event()
            self._queue.put(drained)
            if not drained.wait(patience):
                _log.warning("memory of other processes is still worked on after %g seconds", patience)

    def end(self):
        """Before the interpreter ends. What is still worked on then is given back by the end of the process."""
        self._queue.put(None)
        self._thread.join(2.0)

    def _run(self):
        self._platform.begin_thread()
        pause = _SHORTEST
        while True:
            found = self._next(pause)
            self._waiting += [item for item in found if isinstance(item, _Released)]
            self._drained += [item for item in found if isinstance(item, threading.Event)]
            self.kept += [item for item in found if isinstance(item, Kept)]
            before = len(self._waiting)
            is_last = None in found
            # Nothing that was found is to be kept by this function.
            found = None
            self._waiting = [released for released in self._waiting if not self._is_over(released)]
            self.kept = [kept for kept in self.kept if not self._is_unused(kept)]
            pause = _SHORTEST if len(self._waiting) < before else min(2 * pause, _LONGEST)
            is_drained = not self._waiting and self._drained
            self._mappings.close_idle(time.monotonic() - (0 if is_drained else _KEPT))
            if is_drained:
                for drained in self._drained:
                    drained.set()
                self._drained = []
            if is_last:
                return

    def _is_over(self, released):
        """Gives it back if the work on it has ended (GU-2). An error does not say that it has: not if somebody captures a graph."""
        platform, device = self._platform, released.mapped.device
        try:
            if released.marks is None:
                released.marks = platform.marks(device, released.streams)
            if released.marks is None or not all(mark.query() for mark in released.marks):
                return False
        except RuntimeError as error:
            if not platform.is_broken(device):
                if not released.said:
                    released.said = True
                    _log.warning("memory of another process is not given back yet, its device says: %s", str(error))
                if released.done is None:
                    released.marks = None
                return False
            # Nothing runs on it any more.
            _log.warning("memory of another process is given back, its device is out of order: %s", str(error))
        self._mappings.give_back(released.mapped, released)
        return True

    def _next(self, pause):
        """All that is there now; or nothing, if it is time to look at what waits, or is mapped."""
        found = []
        limit = pause if self._waiting else _OFTEN if self.kept else _KEPT if len(self._mappings) else None
        try:
            found.append(self._queue.get(timeout=limit))
            while True:
                found.append(self._queue.get_nowait())
        except queue.Empty:
            return found


# This process's devices


_devices = None
_devices_lock = threading.Lock()


def devices():
    """What of devices can be shared from here; None: nothing."""
    global _devices
    if _devices is None:
        with _devices_lock:
            if _devices is None:
                _devices = _found()
    return _devices or None


def drain():
    """Before a worker ends: waits for what nobody uses any more to be given back, so that it does not count as held."""
    if _devices:
        _devices.releases.drain(_PATIENCE)


def _found():
    torch = sys.modules.get("torch")
    # torch makes tensors of others' memory with numpy's help.
    if torch is None or not torch.cuda.is_available() or importlib.util.find_spec("numpy") is None:
        return False
    from . import _cuda_devices

    try:
        return Shared(_cuda_devices.Platform())
    except (OSError, RuntimeError, AttributeError) as error:
        _log.warning("memory of CUDA devices is copied between processes, and not shared: %s", str(error))
        return False


class Shared:
    """Memory that this process lends, and what it has of others. ``platform`` is what it is done with."""

    def __init__(self, platform):
        self._platform = platform
        self.host = platform.host
        # Tells this process from all others, also from one that had its number before.
        self.process = os.urandom(16)
        self.ledger = Ledger(self.process)
        self.borrowed = Borrowed()
        self.mappings = Mappings(platform)
        self.releases = Releases(platform, self.mappings, self._is_unused)
        # Until when nothing is mapped of these processes.
        self._unreachable = {}
        for name in ("export", "uuid", "alias", "aside", "settle", "follow", "used", "done", "stream"):
            setattr(self, name, getattr(platform, name))

    # Order

    def record(self, device):
        """Something that is signalled after all that this thread's stream has to do: one of its own, until it is recycled."""
        return self._platform.record(device)

    def recycle(self, signal):
        """Nobody is told of it any more."""
        self._platform.recycle(signal)

    def event(self, signal):
        """What others are told of it."""
        return self.process + signal.handle

    def wait(self, device, event):
        """This thread's stream waits for an event. RuntimeError: it cannot."""
        process = event[:16]
        self._platform.wait(device, event[16:], None if process == self.process else process)

    # Lending

    def returned(self, tensor, signal, entry):
        """Called by destructors: the group knows of nobody any more who uses this. Some may nevertheless (GU-1)."""
        if entry.pid != os.getpid():
            return  # this process was forked off, and has lent nothing
        self.ledger.close(entry)
        kept = Kept(tensor, signal, entry)
        if not self._is_unused(kept):
            self.releases.put(kept)

    def _is_unused(self, kept):
        if not self.ledger.is_unused(kept.entry):
            return False
        self.ledger.forget(kept.entry)
        self.recycle(kept.signal)
        return True

    # Borrowing

    def borrow(self, far, place):
        """Memory of another process; None if it cannot be mapped here."""
        if place.host != self.host or place.process == self.process or self._is_unreachable(place.process):
            return None
        device = self._platform.visible(place.uuid)
        if device is None:
            return None
        try:
            if not self.borrowed.take(place.process, place.entry):
                return None  # who has lent it says what has become of it
            try:
                mapped = self.mappings.take((place.process, place.handle, place.number), place.handle, device)
            except BaseException:
                self.borrowed.give_back(place.process, place.entry)
                raise
        except (RuntimeError, OSError, ValueError) as error:
            _log.warning("tensors of %s are copied, their memory cannot be mapped here: %s", far.owner.name, str(error))
            if len(self._unreachable) >= _MOST:
                self._unreachable.clear()
            self._unreachable[place.process] = time.monotonic() + _AGAIN
            return None
        try:
            if place.offset + place.nbytes > mapped.size:
                raise CannotBeSent(
                    f"a tensor of {far.owner.name} came that is said to be in {place.nbytes} bytes of its memory from {place.offset} on, "
                    f"and there are {mapped.size}"
                )
            self.releases.begin()
            lease = Lease(self, mapped, far, place)
        except BaseException:
            self.mappings.give_back(mapped, _Released(self, mapped, far, place, None, ()))
            # There may be no thread yet that does this.
            self.mappings.close_idle(time.monotonic())
            raise
        self.mappings.lent(lease)
        return lease

    def _is_unreachable(self, process):
        until = self._unreachable.get(process)
        return until is not None and time.monotonic() < until

    def handed_on(self, leases, pointer, nbytes):
        """Of what is used here of another process, what this is a part of, and where that is (GU-5). None if there is nobody who keeps
        it for a third: its owner is gone."""
        for lease in leases:
            begins = pointer - lease.pointer
            if 0 <= begins and begins + nbytes <= lease.place.nbytes and is_kept(lease.far):
                return lease.far, lease.place._replace(offset=lease.place.offset + begins, nbytes=nbytes), lease.device
        if any(is_kept(lease.far) for lease in leases):
            _log.warning("memory of another process is copied and not handed on: what it came in is not used here any more")
        return None


def is_kept(far):
    """Whether the worker is there that a reference leads to."""
    try:
        return far.owner.is_alive
    except Error:
        return False


def _forked():
    global _devices, _devices_lock
    if _devices:
        _devices.borrowed.forked()
    _devices, _devices_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
