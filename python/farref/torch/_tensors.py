"""Tensors on their way: what describes them is pickled, their memory travels beside the pickle."""

import ctypes
import pickle

import torch
from farref import _core
from farref._views import dense

QUANTIZED = "quantized tensors cannot be sent: send tensor.int_repr(), its scale and its zero point"


class Packed:
    """A tensor that is going to be pickled. What is unpickled is the tensor again."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol):
        tensor = self.tensor
        if tensor.layout is torch.strided:
            return _dense, _described(tensor, tensor.requires_grad)
        return reduced_parts(tensor, Packed)


def reduced_parts(tensor, packed):
    """How a tensor is pickled that consists of others. ``packed``: how those are."""
    wants = tensor.requires_grad
    tensor = tensor.detach()
    if tensor.layout is torch.sparse_coo:
        parts = packed(tensor._indices()), packed(tensor._values())
        return _coo, (*parts, tuple(tensor.size()), tensor.is_coalesced(), wants)
    if tensor.layout is torch.sparse_csr:
        parts = packed(tensor.crow_indices()), packed(tensor.col_indices()), packed(tensor.values())
        return _csr, (*parts, tuple(tensor.size()), wants)
    raise RuntimeError(f"tensors of layout {tensor.layout} cannot be sent: make them strided or sparse_coo")


# Smaller ones are copied into the message: that is cheaper than lending their memory.
_SMALL = 4096

# Types of elements, with their bytes: in messages they are places in this list.
_KINDS = _core.torch_elements()
# PyTorch imports this before it can make tensors, but it has these.
_DTYPES = [getattr(torch, name, None) for name, _ in _KINDS]
_PLACES = {dtype: place for place, dtype in enumerate(_DTYPES) if dtype is not None}
# Those of which tensors have nothing to be looked at but their memory.
_PLAIN = {dtype: (place, _KINDS[place][1]) for dtype, place in _PLACES.items() if not dtype.is_complex}
_strided = torch.strided


class NotOnCpu(Exception):
    """Of a tensor on another device, which does not travel in this way."""


def packed(tensor):
    """A tensor on the CPU: plain values, and memory that is lent."""
    if not tensor.is_cpu:
        raise NotOnCpu(tensor)
    plain = _PLAIN.get(tensor.dtype)
    if plain is None or tensor.layout is not _strided or not tensor.is_contiguous() or tensor.is_neg():
        place = _PLACES.get(tensor.dtype)
        if place is None or tensor.layout is not _strided:
            return Packed(tensor)
        return place, *_described(tensor, tensor.requires_grad)[1:]
    place, width = plain
    nbytes = tensor.numel() * width
    if 0 < nbytes < _SMALL:
        return place, tensor.shape, None, tensor.requires_grad, _core.torch_bytes(tensor.data_ptr(), nbytes)
    memory = pickle.PickleBuffer(_memory(tensor, nbytes)) if nbytes else None
    return place, tuple(tensor.shape), None, tensor.requires_grad, memory


def unpack(packed):
    """The tensors again."""
    tensors = []
    for tensor in packed:
        if type(tensor) is tuple:
            wants, tensor = tensor[3], unpacked(tensor)
            if wants:
                tensor.requires_grad_()
        tensors.append(tensor)
    return tensors


def unpacked(packed):
    """One of them, as a plain value of no graph."""
    place, size, stride, _, memory = packed
    if place is None:
        return torch._C._from_dlpack(memory)
    dtype = _DTYPES[place]
    if dtype is None:
        raise RuntimeError(f"a tensor of {_KINDS[place][0]} has come, which this version of PyTorch does not have")
    if stride is not None or memory is None:
        return _dense(dtype, size, stride, False, memory)
    if type(memory) is bytes:
        memory = bytearray(memory)
    # Not a view, which could not be changed in place where autograd knows of it.
    return torch.frombuffer(memory, dtype=dtype).view(size).detach()


def _memory(tensor, nbytes):
    memory = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
    memory._tensor = tensor.detach()  # kept as long as its memory is lent
    return memory


def _described(tensor, wants):
    if tensor.is_quantized:
        raise RuntimeError(QUANTIZED)
    tensor, extent = dense(tensor)
    memory = pickle.PickleBuffer(_memory(tensor, extent * tensor.element_size())) if extent else None
    return tensor.dtype, tuple(tensor.size()), tensor.stride(), wants, memory


def _dense(dtype, size, stride, wants, memory):
    if memory is None:
        tensor = torch.empty(size, dtype=dtype) if stride is None else torch.empty_strided(size, stride, dtype=dtype)
    else:
        tensor = torch.frombuffer(memory, dtype=dtype).as_strided(size, stride).detach()
    return tensor.requires_grad_() if wants else tensor


def _coo(indices, values, size, coalesced, wants):
    tensor = torch.sparse_coo_tensor(indices, values, size)._coalesced_(coalesced)
    return tensor.requires_grad_() if wants else tensor


def _csr(rows, columns, values, size, wants):
    tensor = torch.sparse_csr_tensor(rows, columns, values, size)
    return tensor.requires_grad_() if wants else tensor
