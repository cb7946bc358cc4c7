"""Tensors on their way: what describes them is pickled, their memory travels beside the pickle."""

import ctypes
import functools
import pickle

import torch

# A view is copied before it is sent if so many bytes of others would come along.
_SPARED = 8192


class Packed:
    """A tensor that is going to be pickled. What is unpickled is the tensor again."""

    __slots__ = ("tensor",)

    def __init__(self, tensor):
        self.tensor = tensor

    def __reduce_ex__(self, protocol):
        tensor = self.tensor
        wants = tensor.requires_grad
        tensor = tensor.detach()
        if tensor.layout is torch.strided:
            return _dense, _described(tensor, wants)
        if tensor.layout is torch.sparse_coo:
            parts = Packed(tensor._indices()), Packed(tensor._values())
            return _coo, (*parts, tuple(tensor.size()), tensor.is_coalesced(), wants)
        if tensor.layout is torch.sparse_csr:
            parts = Packed(tensor.crow_indices()), Packed(tensor.col_indices()), Packed(tensor.values())
            return _csr, (*parts, tuple(tensor.size()), wants)
        raise RuntimeError(f"tensors of layout {tensor.layout} cannot be sent: make them strided or sparse_coo")


# Smaller ones are copied into the message: that is cheaper than lending their memory.
_SMALL = 4096


def pack(tensors, to):
    """Tensors for a worker: plain values, and memory that is lent."""
    return [_packed(tensor, to) for tensor in tensors]


def _packed(tensor, to):
    if tensor.device.type != "cpu":
        raise RuntimeError(
            "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before "
            "sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure "
            f"device mapping. Request device mapping is not available for destination {to}"
        )
    if tensor.layout is not torch.strided:
        return Packed(tensor)
    if not tensor.is_contiguous() or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        dtype, size, stride, wants, memory = _described(tensor.detach(), tensor.requires_grad)
        return _name(dtype), size, stride, wants, memory
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        memory = None
    elif nbytes < _SMALL:
        memory = ctypes.string_at(tensor.data_ptr(), nbytes)
    else:
        memory = pickle.PickleBuffer(_memory(tensor, nbytes))
    return _name(tensor.dtype), tuple(tensor.shape), None, tensor.requires_grad, memory


def unpack(packed):
    """The tensors again."""
    return [_unpacked(*tensor) if type(tensor) is tuple else tensor for tensor in packed]


def _unpacked(name, size, stride, wants, memory):
    dtype = getattr(torch, name)
    if stride is not None or memory is None:
        return _dense(dtype, size, stride, wants, memory)
    if type(memory) is bytes:
        memory = bytearray(memory)
    tensor = torch.frombuffer(memory, dtype=dtype)
    if len(size) != 1:
        tensor = tensor.view(size)
    return tensor.requires_grad_() if wants else tensor


@functools.lru_cache(maxsize=None)
def _name(dtype):
    return str(dtype).removeprefix("torch.")


def _memory(tensor, nbytes):
    memory = (ctypes.c_ubyte * nbytes).from_address(tensor.data_ptr())
    memory._tensor = tensor.detach()  # kept as long as its memory is lent
    return memory


def _described(tensor, wants):
    if tensor.is_quantized:
        raise RuntimeError("quantized tensors cannot be sent: send tensor.int_repr(), its scale and its zero point")
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    size, stride, width = tuple(tensor.size()), tensor.stride(), tensor.element_size()
    if 0 in size:
        return tensor.dtype, size, stride, wants, None
    extent = 1 + sum((length - 1) * step for length, step in zip(size, stride))
    if (extent - tensor.numel()) * width >= _SPARED and extent >= 2 * tensor.numel():
        tensor = tensor.contiguous()
        stride, extent = tensor.stride(), tensor.numel()
    return tensor.dtype, size, stride, wants, pickle.PickleBuffer(_memory(tensor, extent * width))


def _dense(dtype, size, stride, wants, memory):
    if memory is None:
        tensor = torch.empty(size, dtype=dtype) if stride is None else torch.empty_strided(size, stride, dtype=dtype)
    else:
        tensor = torch.frombuffer(memory, dtype=dtype).as_strided(size, stride)
    return tensor.requires_grad_() if wants else tensor


def _coo(indices, values, size, coalesced, wants):
    tensor = torch.sparse_coo_tensor(indices, values, size)._coalesced_(coalesced)
    return tensor.requires_grad_() if wants else tensor


def _csr(rows, columns, values, size, wants):
    tensor = torch.sparse_csr_tensor(rows, columns, values, size)
    return tensor.requires_grad_() if wants else tensor
