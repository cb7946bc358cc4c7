"""Tensors on CUDA devices, on their way between workers.

Who sends one says where its memory is, and keeps it: the tensor is behind a far reference that travels along. Who gets it and sees the
same GPU maps the memory, and holds the reference as long as it uses the memory. Who does not asks its owner for the elements, through the
same reference. So nobody has to know beforehand what the others see.

Invariants:

- **GU-1** Memory that was lent is kept until the reference to it is dropped: by who got it, or because that worker is gone.
- **GU-2** A reference is dropped when the work has ended that was begun here on the memory: that of the device, or up to the event that
  the one who used it has named.
- **GU-3** Memory of another process is mapped once, however often it comes, and not unmapped before its last user has let go of it. It
  stays mapped for a moment after that, since what comes once most often comes again.
- **GU-4** What is done here with memory that came waits for what its sender had begun before it was sent.
- **GU-5** Who hands on memory of another process hands on the reference to it, so that its owner knows of all who use it.
"""

import atexit
import collections
import contextlib
import importlib.util
import logging
import os
import queue
import secrets
import sys
import threading
import time
import weakref

from ._errors import CannotBeSent, Deadlock, Error, NotMember

_log = logging.getLogger("farref")

# Smaller ones travel in the message: that takes less than mapping them.
SMALL = 64 << 10
# A view is copied before it is sent if so many bytes of others would come along.
_SPARED = 8192
# Copies of so many bytes go through page-locked memory.
_LOCKED = 1 << 20
# Seconds that memory stays mapped which nobody uses.
_KEPT = 1.0
# Where tensors may arrive that their sender has no opinion of.
ANYWHERE = -1


class Lent:
    """A tensor whose memory others use: on its owner, behind the reference that they hold (GU-1)."""

    __slots__ = ("tensor", "offset", "__weakref__")

    def __init__(self, tensor, offset):
        self.tensor = tensor
        # Where it begins in the allocation that it is in.
        self.offset = offset

    def part(self, place):
        """The bytes of it that somebody speaks of, when the work is done that makes them."""
        devices().wait(self.tensor.device.index, place.event)  # GU-4
        begins = place.offset - self.offset
        return _span(self.tensor).view(sys.modules["torch"].uint8)[begins : begins + place.nbytes]

    def staged(self, place):
        """The same, for a worker that does not see this GPU."""
        return stage(self.part(place))


# Where memory is: on which GPU of which host, whose it is, a handle of the allocation and its number, the part of it that is meant, and a
# handle of the event that it is ready at.
Place = collections.namedtuple("Place", "host uuid process handle number offset nbytes event")
# By the ids of their references.
lent = weakref.WeakValueDictionary()


# Going out


def dense(tensor):
    """A plain tensor of the same elements, which is most of the memory that it spans; and how many elements it spans."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    size, stride = tensor.size(), tensor.stride()
    if 0 in size:
        return tensor, 0
    extent = 1 + sum((length - 1) * step for length, step in zip(size, stride))
    if (extent - tensor.numel()) * tensor.element_size() >= _SPARED and extent >= 2 * tensor.numel():
        tensor = tensor.contiguous()
        extent = tensor.numel()
    return tensor, extent


def _span(tensor):
    """All that a dense tensor spans, as elements in a row."""
    extent = 1 + sum((length - 1) * step for length, step in zip(tensor.size(), tensor.stride()))
    return tensor.as_strided((extent,), (1,), tensor.storage_offset())


def stage(tensor):
    """The elements that a dense tensor spans, on the CPU. Waits for the work that makes them."""
    torch = sys.modules["torch"]
    flat = _span(tensor)
    if flat.is_cpu or flat.numel() * flat.element_size() < _LOCKED:
        return flat.cpu()
    copied = torch.empty(flat.size(), dtype=flat.dtype, pin_memory=True)
    copied.copy_(flat, non_blocking=True)
    torch.cuda.current_stream(flat.device).synchronize()
    return copied


def described(tensor, worker=None):
    """What a tensor is, for a pickle: its elements or where they are, their type, size and stride.

    ``worker``: who sends it, and can keep it; None: the elements go along.
    """
    tensor, extent = dense(tensor)
    about = str(tensor.dtype).removeprefix("torch."), tuple(tensor.size()), tuple(tensor.stride())
    if extent == 0:
        return None, *about
    if worker is not None and tensor.is_cuda and extent * tensor.element_size() >= SMALL:
        place = _lend(tensor, extent, worker)
        if place is not None:
            return place, *about
    return stage(tensor), *about


def _lend(tensor, extent, worker):
    """A reference to a tensor, and where its memory is; None if it cannot be shared."""
    here = devices()
    if here is None:
        return None
    pointer, nbytes, device = tensor.data_ptr(), extent * tensor.element_size(), tensor.device.index
    try:
        if here.is_mapped(pointer):
            return here.handed_on(pointer, nbytes)
        handle, offset, number = here.export(device, pointer)
        event = here.record(device)
    except (RuntimeError, OSError) as error:
        _log.debug("a tensor is copied, its memory cannot be shared: %s", str(error))
        return None
    kept = Lent(tensor, offset)
    far = worker.rref(kept)
    lent[far.id] = kept
    return far, Place(here.host, here.uuid(device), here.process, handle, number, offset, nbytes, event)


# Coming in


def arrived(elements, dtype, size, stride, target, is_own=False, is_settled=False):
    """A tensor that came.

    ``target``: on which device it is to be, by number; None: on the CPU. ``is_own``: in memory of its own, whatever it came in.
    ``is_settled``: when this returns it is there, and otherwise it is on the current stream.
    """
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"a tensor of {dtype} came, which torch {torch.__version__} does not have")
    if elements is None:
        return torch.empty_strided(size, stride, dtype=kind, device=_device(0 if target == ANYWHERE else target))
    if not isinstance(elements, tuple):
        return _uploaded(elements, size, stride, target)
    far, place = elements
    if far.is_owner:
        own = far.local_value().part(place).view(kind).as_strided(size, stride).detach()
        if target != ANYWHERE and own.device != _device(target):
            return own.to(_device(target))
        own = own.clone() if is_own else own
        if is_settled:
            torch.cuda.current_stream(own.device).synchronize()
        return own
    here = None if target is None else devices()
    lease = here and here.borrow(far, place)
    if not lease:
        return _uploaded(_pulled(far, place).view(kind), size, stride, target)
    if target == ANYWHERE:
        target = lease.device
    with here.aside(lease.device) if is_settled else contextlib.nullcontext():
        here.wait(lease.device, place.event)  # GU-4
        made = here.alias(lease).view(kind).as_strided(size, stride).detach()
        if not is_own and lease.device == target:
            return made
        own = made.clone() if lease.device == target else made.to(_device(target))
        lease.done = here.done(lease.device)
    if is_settled:
        here.settle(lease.done, own)
    return own


def _device(target):
    torch = sys.modules["torch"]
    return torch.device("cpu") if target is None else torch.device("cuda", target)


def _uploaded(flat, size, stride, target):
    torch = sys.modules["torch"]
    if target == ANYWHERE:
        target = torch.cuda.current_device() if torch.cuda.is_available() else None
    # Not a view, which could not be changed in place where autograd knows of it.
    return flat.to(_device(target)).as_strided(size, stride).detach()


def _pulled(far, place):
    """The bytes, from who has them."""
    far = far.timeout(None)
    try:
        return far.call.staged(place)
    except Deadlock:
        # This is an event loop, which stands still meanwhile. What it waits for does not need it.
        pulled = queue.SimpleQueue()
        threading.Thread(target=lambda: pulled.put(_outcome(far, place)), daemon=True).start()
        found, error = pulled.get()
        if error is not None:
            raise error from None
        return found


def _outcome(far, place):
    try:
        return far.call.staged(place), None
    except Exception as error:
        return None, error


class Lease:
    """Memory of another process that is used here, until this is dropped. torch keeps it as long as the memory."""

    def __init__(self, releases, mapped, far, place):
        self._releases = releases
        self._mapped = mapped
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
        self._releases.put(self._mapped, self.far, self.done)


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


class Releases:
    """Lets go of memory of others when the work on it has ended (GU-2): on a thread of its own, for that may take its time."""

    def __init__(self, platform, mappings):
        self._platform = platform
        self._mappings = mappings
        # Destructors put into it, whatever they have interrupted.
        self._queue = queue.SimpleQueue()
        self._thread = None
        self._lock = threading.Lock()

    def begin(self):
        """Called before there is anything to be released."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="farref-cuda", daemon=True)
                    self._thread.start()
                    atexit.register(self.end)

    def put(self, mapped, far, done):
        self._queue.put((mapped, far, done))

    def end(self):
        """Before the interpreter ends."""
        self._queue.put(None)
        self._thread.join(2.0)

    def _run(self):
        while True:
            released = self._next()
            if None in released:
                return
            try:
                for done in [done for _, _, done in released if done is not None]:
                    done.synchronize()
                for device in {mapped.device for mapped, _, done in released if done is None}:
                    self._platform.synchronize(device)
            except RuntimeError as error:
                # The device is out of order, and nothing runs on it any more.
                _log.warning("memory of another process is given back, and its device says: %s", str(error))
            for mapped, _, _ in released:
                self._mappings.give_back(mapped)
            del released
            self._mappings.close_idle(time.monotonic() - _KEPT)

    def _next(self):
        """All that is there now; or nothing, if it is time to look at what is mapped."""
        found = []
        try:
            found.append(self._queue.get(timeout=_KEPT if len(self._mappings) else None))
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
        self.process = secrets.token_bytes(16)
        self.mappings = Mappings(platform)
        self.releases = Releases(platform, self.mappings)
        self._unreachable = set()
        # By where they begin: one for each place is enough to hand it on.
        self._leases = weakref.WeakValueDictionary()
        self.is_mapped = self.mappings.has
        for name in ("export", "record", "uuid", "wait", "alias", "aside", "settle", "done"):
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
        self.releases.begin()
        lease = Lease(self.releases, mapped, far, place)
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


# Where tensors arrive, in programs of farref's own


_maps = {}


def map_devices(peer: str, devices: dict) -> None:
    """Says where tensors of this worker's CUDA devices arrive on the worker of that name, from now on.

    ``devices``: for a device here (a number, ``"cuda:1"``, a ``torch.device``) the device there, or ``"cpu"``. What that worker sends back
    from those devices arrives on these. Devices that are not named arrive on the one with the same number.

    >>> import farref
    >>> farref.map_devices("evaluator", {0: 1, 1: "cpu"})
    """
    known = {_number(here): _number(there) for here, there in devices.items()}
    if None in known:
        raise ValueError("tensors on the CPU arrive on the CPU: name a CUDA device, such as 0 or \"cuda:0\"")
    there = [device for device in known.values() if device is not None]
    if len(set(there)) != len(there):
        raise ValueError(f"two devices would arrive on one of {peer!r}: what comes back would not know where to go: {devices}")
    _maps[peer] = known


def _number(device):
    """The number of a CUDA device; None: the CPU."""
    text = str(device)
    if text == "cpu":
        return None
    number = text.removeprefix("cuda:") if text != "cuda" else "0"
    if not number.isdecimal():
        raise ValueError(f"{device!r} is no device: give a number, \"cuda:0\" or \"cpu\"")
    return int(number)


def reduced(given):
    """A tensor of a CUDA device, for a pickle of farref's own."""
    from ._worker import worker

    try:
        sender = worker()
    except NotMember:
        sender = None
    source = given.device.index
    told = {peer: known[source] for peer, known in _maps.items() if source in known}
    name = None if sender is None else sender.name
    return tensor, (*described(given, sender), source, name, told, given.requires_grad)


def tensor(elements, dtype, size, stride, source, sender, told, requires_grad):
    """A tensor that came, in a program of farref's own: most often it is in its sender's memory."""
    import torch

    target = _target(source, sender, told, torch.cuda.device_count() if torch.cuda.is_available() else 0)
    made = arrived(elements, dtype, size, stride, target)
    return made.requires_grad_() if requires_grad else made


def _target(source, sender, told, count):
    from ._worker import worker

    try:
        me = worker().name
    except NotMember:
        me = None
    if me in told:
        target = told[me]
    else:
        back = {there: here for here, there in _maps.get(sender, {}).items()}
        target = back.get(source, source)
    if target is not None and target >= count:
        raise CannotBeSent(
            f"a tensor on cuda:{source} of {sender!r} was to arrive on cuda:{target} of {me!r}, which has {count} CUDA devices: "
            f"say on {sender!r} where it is to arrive, with farref.map_devices({me!r}, {{{source}: ..}}), on a device of {me!r} or on \"cpu\""
        )
    return target


