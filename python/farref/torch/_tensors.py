"""Tensors on their way: what describes them is pickled, their memory travels beside the pickle."""

import ctypes
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


def pack(tensors, to):
    """Tensors for a worker."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            raise RuntimeError(
                "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before "
                "sending them over RPC, or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure "
                f"device mapping. Request device mapping is not available for destination {to}"
            )
    return [Packed(tensor) for tensor in tensors]


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
    memory = (ctypes.c_ubyte * (extent * width)).from_address(tensor.data_ptr())
    memory._tensor = tensor  # kept as long as its memory is lent
    return tensor.dtype, size, stride, wants, pickle.PickleBuffer(memory)


def _dense(dtype, size, stride, wants, memory):
    if memory is None:
        tensor = torch.empty_strided(size, stride, dtype=dtype)
    else:
        tensor = torch.frombuffer(memory, dtype=dtype).as_strided(size, stride)
    return tensor.requires_grad_() if wants else tensor


def _coo(indices, values, size, coalesced, wants):
    tensor = torch.sparse_coo_tensor(indices, values, size)._coalesced_(coalesced)
    return tensor.requires_grad_() if wants else tensor


def _csr(rows, columns, values, size, wants):
    tensor = torch.sparse_csr_tensor(rows, columns, values, size)
    return tensor.requires_grad_() if wants else tensor
