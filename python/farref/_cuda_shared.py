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

from ._errors import Error

_log = logging.getLogger("farref")

# Seconds that memory stays mapped which nobody uses.
_KEPT = 0.5
# Seconds between two looks at work that has not ended.
_SHORTEST, _LONGEST = 0.0005, 0.01
# Seconds that a worker that ends waits for work on memory of others.
_PATIENCE = 60.0


class Lease:
    """Memory of another process that is used here, until this is dropped. torch keeps it as long as the memory."""

    def __init__(self, releases, mapped, far, place, stream):
        self._releases = releases
        self._mapped = mapped
        # Where it came, and is used if nothing else is said.
        self._stream = stream
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
        self._releases.put(self._mapped, self.far, self.done, self._stream)


class _Mapped:
    """Memory of another process, and how many use it here."""

    __slots__ = ("base", "size", "device", "users", "since")

    def __init__(self, base, size, device):
        self.base, self.size, self.device = base, size, device
        self.users = 0
        self.since = 0.0


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
            return mapped

    def give_back(self, mapped):
        """One of its users has let go of it."""
        with self._lock:
            mapped.users -= 1
            mapped.since = time.monotonic()

    def has(self, pointer):
        """Whether this is memory of another process."""
        with self._lock:
            return any(mapped.base <= pointer < mapped.base + mapped.size for mapped in self._mapped.values())

    def close_idle(self, before):
        """Unmaps what nobody has used since then."""
        with self._lock:
            for key, mapped in list(self._mapped.items()):
                if not mapped.users and mapped.since <= before:
                    del self._mapped[key]
                    try:
                        self._platform.close(mapped.base, mapped.device)
                    except RuntimeError as error:
                        _log.warning("memory of another process could not be unmapped: %s", str(error))


class _Released:
    """Memory of another process that is not used here any more, as soon as the work on it has ended."""

    __slots__ = ("mapped", "far", "done", "streams", "marks", "said")

    def __init__(self, mapped, far, done, streams):
        self.mapped, self.far = mapped, far
        # At which it has ended, or else what it may be on.
        self.done, self.streams = done, streams
        # Events at which it has ended; None: they are not recorded yet.
        self.marks = None if done is None else [done]
        self.said = False


class Releases:
    """Lets go of memory of others when the work on it has ended (GU-2): on a thread of its own, for that may take its time.

    That thread never waits inside of the driver. So it can end whenever the interpreter does, and nothing of what waits holds up
    the rest.
    """

    def __init__(self, platform, mappings):
        self._platform = platform
        self._mappings = mappings
        # Destructors put into it, whatever they have interrupted.
        self._queue = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()
        self._waiting = []
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

    def put(self, mapped, far, done, stream):
        """Called by destructors: nobody uses it any more, after ``done``, or else after what its stream and this thread's have to do."""
        streams = {stream}
        if done is None:
            try:
                streams.add(self._platform.stream(mapped.device))
            except Exception:
                pass  # the interpreter ends
        self._queue.put(_Released(mapped, far, done, streams))

    def drain(self, patience):
        """Waits until all that nobody uses is given back, and unmapped."""
        if self._thread is not None and self._thread is not threading.current_thread():
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
            before = len(self._waiting)
            is_last = None in found
            # Nothing that was found is to be kept by this function.
            found = None
            self._waiting = [released for released in self._waiting if not self._is_over(released)]
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
        self._mappings.give_back(released.mapped)
        return True

    def _next(self, pause):
        """All that is there now; or nothing, if it is time to look at what waits, or is mapped."""
        found = []
        limit = pause if self._waiting else _KEPT if len(self._mappings) else None
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
        self.mappings = Mappings(platform)
        self.releases = Releases(platform, self.mappings)
        self._unreachable = set()
        # By where they begin: one for each place is enough to hand it on.
        self._leases = weakref.WeakValueDictionary()
        self.is_mapped = self.mappings.has
        for name in ("export", "record", "uuid", "wait", "alias", "aside", "settle", "done", "stream"):
            setattr(self, name, getattr(platform, name))

    def borrow(self, far, place):
        """Memory of another process; None if it cannot be mapped here."""
        if place.host != self.host or place.process == self.process or place.process in self._unreachable:
            return None
        device = self._platform.visible(place.uuid)
        if device is None:
            return None
        try:
            mapped = self.mappings.take((place.process, place.handle, place.number), place.handle, device)
        except RuntimeError as error:
            _log.warning("tensors of %s are copied, their memory cannot be mapped here: %s", far.owner.name, str(error))
            self._unreachable.add(place.process)
            return None
        try:
            self.releases.begin()
            lease = Lease(self.releases, mapped, far, place, self.stream(device))
        except BaseException:
            self.mappings.give_back(mapped)
            raise
        self._leases[lease.pointer] = lease
        return lease

    def handed_on(self, pointer, nbytes):
        """A reference to memory of another process that is used here, for a third, and where it is (GU-5). None if there is nobody who
        keeps it for that one: its owner is gone."""
        found = self._leases.get(pointer)
        for lease in [found] if found is not None else list(self._leases.values()):
            begins = pointer - lease.pointer
            if 0 <= begins and begins + nbytes <= lease.place.nbytes and _is_kept(lease.far):
                event = self.record(lease.device)
                return lease.far, lease.place._replace(offset=lease.place.offset + begins, nbytes=nbytes, event=event)
        return None


def _is_kept(far):
    try:
        return far.owner.is_alive
    except Error:
        return False


def _forked():
    global _devices, _devices_lock
    _devices, _devices_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)
