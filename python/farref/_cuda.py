"""Tensors on CUDA devices, on their way between workers.

Who sends one says where its memory is, and keeps it: the tensor is behind a far reference that travels along. Who gets it and sees the
same GPU maps the memory, and holds the reference as long as it uses the memory. Who does not asks its owner for the elements, through the
same reference. So nobody has to know beforehand what the others see.

Invariants:

- **GU-1** Memory that was lent is kept until nobody can use it any more: until the reference to it is dropped, by who got it or because that
  worker is gone from the group; and, since a process may go on without its group, until no process has it locked (:mod:`farref._cuda_ledger`).
- **GU-2** A reference is dropped when the work has ended that was begun here on the memory: that of the stream it came on, of the one that
  is current where it is dropped and of the default one; or up to the event that the one who used it has named.
- **GU-3** Memory of another process is mapped once, however often it comes, and not unmapped before its last user has let go of it. It
  stays mapped for a moment after that, since what comes once most often comes again; and its owner keeps it until it is unmapped.
- **GU-4** What is done here with memory that came waits for what its sender had begun before it was sent, and for nothing that was begun later.
- **GU-5** Who hands on memory of another process hands on the reference to it, so that its owner knows of all who use it.
- **GU-6** What others say of memory is compared with what there is before it is used.
"""

import collections
import contextlib
import logging
import queue
import sys
import threading
import weakref

from ._cuda_ledger import Entry
from ._cuda_shared import devices, is_kept
from ._errors import CannotBeSent, Deadlock, ReferenceMisused
from ._views import dense, span

_log = logging.getLogger("farref")

# Smaller ones travel in the message: that takes less than mapping them.
SMALL = 64 << 10
# Copies of so many bytes go through page-locked memory.
_LOCKED = 1 << 20
# No memory has so many bytes.
_LARGE = 1 << 48
# Where tensors may arrive that their sender has no opinion of.
ANYWHERE = -1


class Lent:
    """A tensor whose memory others use: on its owner, behind the reference that they hold (GU-1)."""

    __slots__ = ("tensor", "offset", "entry", "signal", "_here", "_pointer", "__weakref__")

    def __init__(self, here, tensor, offset):
        self._here = here
        self.tensor = tensor
        self._pointer = tensor.data_ptr()
        # Where it begins in the allocation that it is in.
        self.offset = offset
        # When it is ready, and where it is said who uses it.
        self.signal = self.entry = None
        self.signal = here.record(tensor.device.index or 0)
        self.entry = here.ledger.open()

    def __del__(self):
        if self.entry is not None:
            self._here.returned(self.tensor, self.signal, self.entry)

    def part(self, place, said=None):
        """The bytes of it that somebody speaks of, when the work is done that makes them. ``said``: who has handed it on keeps the event."""
        if self.tensor.data_ptr() != self._pointer:
            raise ReferenceMisused("a tensor that others use has other memory now: it was resized")
        whole = span(self.tensor).view(sys.modules["torch"].uint8)
        begins = place.offset - self.offset
        if begins < 0 or place.nbytes < 0 or begins + place.nbytes > len(whole):  # GU-6
            raise CannotBeSent(f"{place.nbytes} bytes from {begins} on were asked for, of a tensor of {len(whole)}")
        try:
            self._here.wait(self.tensor.device.index or 0, place.event)  # GU-4
        except RuntimeError as error:
            if said is None or is_kept(said):
                raise CannotBeSent(f"when a tensor is ready cannot be known: {error}") from None
        return whole[begins : begins + place.nbytes]

    def staged(self, place, said=None):
        """The same, for a worker that does not see this GPU."""
        return stage(self.part(place, said))


class Said:
    """An event of who has handed on memory of others: until who gets the memory has waited for it."""

    __slots__ = ("signal", "_here", "__weakref__")

    def __init__(self, here, device):
        self._here = here
        self.signal = here.record(device)

    def __del__(self):
        self._here.recycle(self.signal)


# Where memory is: on which GPU of which host, whose it is, a handle of the allocation and its number, the part of it that is meant, the
# event that it is ready at, and its entry in its owner's ledger.
Place = collections.namedtuple("Place", "host uuid process handle number offset nbytes event entry")
# By the ids of their references. Programs do not see these.
lent = weakref.WeakValueDictionary()
_said = weakref.WeakValueDictionary()


def is_lending(reference):
    """Whether a reference of that id is none of the program's."""
    return reference in lent or reference in _said


# Going out


def stage(tensor):
    """The elements that a dense tensor spans, on the CPU. Waits for the work that makes them."""
    torch = sys.modules["torch"]
    flat = span(tensor)
    if flat.is_cpu or flat.numel() * flat.element_size() < _LOCKED:
        return flat.cpu()
    copied = torch.empty(flat.size(), dtype=flat.dtype, device="cpu", pin_memory=True)
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
    """A reference to a tensor, where its memory is, and a reference to the event if that is not its owner's; None if it cannot be shared."""
    here = devices()
    if here is None:
        return None
    pointer, nbytes, device = tensor.data_ptr(), extent * tensor.element_size(), tensor.device.index
    try:
        used = here.mappings.leases(pointer)
        if used is not None:
            return _hand_on(here, used, pointer, nbytes, worker)
        handle, offset, number = here.export(device, pointer)
        here.releases.begin()
        kept = Lent(here, tensor, offset)
    except (RuntimeError, OSError) as error:
        _log.debug("a tensor is copied, its memory cannot be shared: %s", str(error))
        return None
    far = worker.rref(kept)
    lent[far.id] = kept
    event = here.event(kept.signal)
    return far, Place(here.host, here.uuid(device), here.process, handle, number, offset, nbytes, event, kept.entry), None


def _hand_on(here, used, pointer, nbytes, worker):
    found = here.handed_on(used, pointer, nbytes)
    if found is None:
        return None
    far, place, device = found
    kept = Said(here, device)
    said = worker.rref(kept)
    _said[said.id] = kept
    return far, place._replace(event=here.event(kept.signal)), said


# Coming in


def arrived(elements, dtype, size, stride, target, is_own=False, is_settled=False, reads=None):
    """A tensor that came.

    ``target``: on which device it is to be, by number; None: on the CPU. ``is_own``: in memory of its own, whatever it came in.
    ``is_settled``: when this returns it is there, and otherwise it is on the current stream. ``reads`` gets what is signalled when the
    sender's memory has been read, if that is not known yet.
    """
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"a tensor of {dtype} came, which torch {torch.__version__} does not have")
    if elements is None:
        return torch.empty_strided(size, stride, dtype=kind, device=_device(_somewhere(target)))
    if not isinstance(elements, tuple):
        return _uploaded(elements, size, stride, target)
    far, place, said = elements
    _check(far, place)
    if far.is_owner:
        return _came_home(far.local_value().part(place, said), kind, size, stride, target, is_own, is_settled, reads)
    here = None if target is None else devices()
    lease = here and here.borrow(far, place)
    if lease:
        with here.aside(lease.device) if is_own or target not in (ANYWHERE, lease.device) else contextlib.nullcontext():
            if _waits(here, lease, said):
                return _made(here, lease, kind, size, stride, target, is_own, is_settled, reads)
    return _uploaded(_pulled(far, place, said).view(kind), size, stride, target)


def _made(here, lease, kind, size, stride, target, is_own, is_settled, reads):
    """A tensor in memory of another process, or, on the current stream, which is one aside then, a copy of it."""
    made = _formed(here.alias(lease), kind, size, stride)
    if target == ANYWHERE:
        target = lease.device
    if not is_own and lease.device == target:
        return made
    own = made.clone() if lease.device == target else made.to(_device(target))
    lease.done = here.done(lease.device)
    if is_settled:
        here.settle(lease.done, own)
        return own
    here.follow(lease.done, own)
    if reads is not None:
        reads.append(lease.done)
    return own


def _came_home(memory, kind, size, stride, target, is_own, is_settled, reads):
    """A tensor in memory of this process."""
    here = devices()
    own = _formed(memory, kind, size, stride)
    # Its block may not be used for anything else before this stream has done with it.
    here.used(own)
    device = own.device.index or 0
    if target != ANYWHERE and own.device != _device(target):
        own = own.to(_device(target))
    elif is_own:
        own = own.clone()
    if is_settled:
        here.done(device).synchronize()
        if own.is_cuda:
            here.done(own.device.index).synchronize()
    elif reads is not None:
        reads.append(here.done(device))
    return own


def _formed(memory, kind, size, stride):
    try:
        formed = memory.view(kind).as_strided(size, stride).detach()
        # torch compares with all of the storage, of which this may be a part.
        if span(formed).numel() * formed.element_size() > memory.numel():
            raise RuntimeError("they are too few")
        return formed
    except (RuntimeError, TypeError) as error:
        raise CannotBeSent(f"{memory.numel()} bytes came that are said to be a tensor of {kind}, {size}, {stride}: {error}") from None


def _check(far, place):
    """What is used of a place is what it is to be (GU-6). Whether it is inside of what there is, is looked at when that is known."""
    if isinstance(place, Place) and isinstance(place.entry, Entry):
        numbers = place.offset, place.nbytes, *place.entry
        texts = place.uuid, place.process, place.handle, place.event
        if all(isinstance(number, int) and 0 <= number < _LARGE for number in numbers) and all(isinstance(text, bytes) for text in texts):
            if place.nbytes and len(place.process) == 16:
                return
    raise CannotBeSent(f"a tensor of {far.owner.name} came, and where its memory is makes no sense: {place}")


def _waits(here, lease, said):
    """This thread's stream waits for what the sender had begun (GU-4). False if it cannot: the owner of the memory is to be asked for it."""
    try:
        here.wait(lease.device, lease.place.event)
    except RuntimeError as error:
        # What one has begun who is gone has ended with it.
        if is_kept(lease.far if said is None else said):
            _log.warning("a tensor is copied, when it is ready cannot be waited for here: %s", str(error))
            return False
    return True


def _device(target):
    torch = sys.modules["torch"]
    return torch.device("cpu") if target is None else torch.device("cuda", target)


def _somewhere(target):
    torch = sys.modules["torch"]
    if target != ANYWHERE:
        return target
    return torch.cuda.current_device() if torch.cuda.is_available() else None


def _uploaded(flat, size, stride, target):
    # Not a view, which could not be changed in place where autograd knows of it.
    return flat.to(_device(_somewhere(target))).as_strided(size, stride).detach()


def _pulled(far, place, said):
    """The bytes, from who has them. It may take as long as a call may."""
    try:
        return far.call.staged(place, said)
    except Deadlock:
        # This is an event loop, which stands still meanwhile. What it waits for does not need it.
        pulled = queue.SimpleQueue()
        threading.Thread(target=lambda: pulled.put(_outcome(far, place, said)), daemon=True).start()
        found, error = pulled.get()
        if error is not None:
            raise error from None
        return found


def _outcome(far, place, said):
    try:
        return far.call.staged(place, said), None
    except Exception as error:
        return None, error
