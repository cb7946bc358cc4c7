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

import collections
import contextlib
import logging
import queue
import sys
import threading
import weakref

from ._cuda_shared import devices
from ._errors import Deadlock

_log = logging.getLogger("farref")

# Smaller ones travel in the message: that takes less than mapping them.
SMALL = 64 << 10
# A view is copied before it is sent if so many bytes of others would come along.
_SPARED = 8192
# Copies of so many bytes go through page-locked memory.
_LOCKED = 1 << 20
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
