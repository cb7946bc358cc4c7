"""Tensors and arrays in values: what they are is in the pickle, their elements are beside it.

A tensor is pickled as a call of :func:`tensor`, which Rust workers know as well: a tensor of theirs arrives here in this way.
"""

import copyreg
import ctypes
import pickle
import sys

from . import _core, _cuda_maps
from ._errors import CannotBeSent

# Arrays of these have the memory of tensors, with elements of as many bytes.
_MEMORY = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}


def tensor(memory, dtype, shape, requires_grad=False):
    """A tensor that came: one of torch's where that is installed, and an array of numpy's otherwise.

    ``requires_grad``: None if it is one of Rust's, and needs gradients there.
    """
    if requires_grad is None and _core._came_in_context():
        raise CannotBeSent(
            "a tensor that needs gradients came from Rust inside of a context: contexts do not cross languages, so none would "
            "find their way back. Send it detached (`tensor.detach().into()`), or outside of the context"
        )
    if isinstance(memory, bytes):
        memory = bytearray(memory)  # a small one, in the pickle: what arrives can be written to
    try:
        import torch
    except ImportError:
        return _array(memory, dtype, shape)
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TypeError(f"a tensor of {dtype} came, which torch {torch.__version__} does not have")
    if 0 in shape:
        made = torch.empty(shape, dtype=kind)
    else:
        made = torch.frombuffer(memory, dtype=kind).reshape(shape)
    return made.requires_grad_() if requires_grad else made


def _array(memory, dtype, shape):
    try:
        import numpy
    except ImportError:
        raise TypeError("a tensor came, and this worker has neither torch nor numpy") from None
    try:
        kind = numpy.dtype(dtype)
    except TypeError:
        raise TypeError(f"a tensor of {dtype} came, which numpy does not have: install torch") from None
    return numpy.frombuffer(memory, dtype=kind).reshape(shape)


def _reduced_tensor(given):
    torch = sys.modules["torch"]
    if given.layout is not torch.strided or given.device.type != "cpu" or given.is_quantized or vars(given):
        if given.is_cuda and given.layout is torch.strided and not given.is_quantized and not vars(given):
            return _cuda_maps.reduced(given)
        return given.__reduce_ex__(5)  # as torch does it
    plain = given.detach().resolve_conj().resolve_neg().contiguous()
    item, shape = plain.element_size(), tuple(plain.shape)
    if 0 in shape:
        memory = b""
    else:
        element = _MEMORY.get(item, ctypes.c_uint64)
        lent = (element * (plain.numel() * item // ctypes.sizeof(element))).from_address(plain.data_ptr())
        lent._tensor = plain  # kept as long as its memory is lent
        memory = pickle.PickleBuffer(lent)
    described = memory, str(plain.dtype).removeprefix("torch."), shape
    return tensor, (*described, True) if given.requires_grad else described


def _reduced_array(array):
    flags = array.flags
    if not (flags.c_contiguous or flags.f_contiguous or array.dtype.hasobject):
        array = array.copy(order="C")
    return array.__reduce_ex__(5)


# Where a type is whose objects are pickled here in another way than by themselves.
_TYPES = [("torch", "Tensor", _reduced_tensor), ("numpy", "ndarray", _reduced_array)]
_reducers = None
_known = None


def reducers():
    """How objects are pickled that are not pickled as by everybody else; none if there can be no such object."""
    global _reducers, _known
    # Nobody has an object of what has not been imported; and what others have said of how to pickle things counts.
    known = len(copyreg.dispatch_table), "torch" in sys.modules, "numpy" in sys.modules
    if known != _known:
        found = {}
        for module, name, reduced in _TYPES:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is None and module in sys.modules:
                return found or None  # somebody is importing it
            if kind is not None:
                found[kind] = reduced
        _reducers, _known = {**copyreg.dispatch_table, **found} if found else None, known
    return _reducers
