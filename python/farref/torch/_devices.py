"""Tensors in PyTorch's calls: which device they go to, and how those travel that are on CUDA devices.

Where they go is what PyTorch's device maps say: those of the caller for calls, and the other way round for answers. Gradients go where their
tensors came from, which the receiver knows (:meth:`_edges.Sent.at_home`). What arrives is a copy, as with PyTorch: who changes it
changes nothing of the sender's. How it gets there is farref's matter (:mod:`farref._cuda`): on the same GPU it is copied once, there.
"""

import threading

import torch
from farref import _cuda

from . import _agent, _tensors


def _refused(tensor, to, is_answer):
    """The error of a tensor that no map says anything about, in PyTorch's words."""
    if not isinstance(to, str):
        to = _agent.get_current_rpc_agent().get_worker_info(to).name
    return RuntimeError(
        "TensorPipe RPC backend only supports CPU tensors by default, please move your tensors to CPU before sending them over RPC, "
        "or call `set_device_map` on `TensorPipeRpcBackendOptions` to explicitly configure device mapping. "
        f"{'Response' if is_answer else 'Request'} device mapping is not available for destination {to} for device {tensor.device} "
        "but received a tensor on that device."
    )


def pack(tensors, to, maps=None, is_answer=False):
    """Tensors for a worker, by its name or id. ``maps``: which devices they go to."""
    if maps is not None:
        return _mapped(tensors, to, maps, is_answer)
    try:
        return [_tensors.packed(tensor) for tensor in tensors]
    except _tensors.NotOnCpu as error:
        raise _refused(error.args[0], to, is_answer) from None


def pack_gradients(gradients):
    """The same for gradients, which find their devices by themselves."""
    return [_tensors.packed(gradient) if gradient.is_cpu else _of_gradient(gradient) for gradient in gradients]


def pack_gradient(gradient):
    """A gradient that is pickled by itself."""
    return _tensors.Packed(gradient) if gradient.is_cpu else _of_gradient(gradient)


def _of_gradient(gradient):
    # Another thread goes on with it than the one that it comes to, maybe.
    return _Moved(gradient, _cuda.ANYWHERE, True)


def _mapped(tensors, to, maps, is_answer):
    if not isinstance(to, str):
        to = _agent.get_current_rpc_agent().get_worker_info(to).name
    way = maps.get(to) or {}
    packed = []
    for tensor in tensors:
        target = way.get(tensor.device)
        if target is None and not tensor.is_cpu:
            raise _refused(tensor, to, is_answer)
        if tensor.is_cpu and (target is None or target.type == "cpu"):
            packed.append(_tensors.packed(tensor))
        else:
            # Whoever waits for an answer may use it on any stream.
            packed.append(_Moved(tensor, None if target.type == "cpu" else target.index, is_answer))
    return packed


class _Moved:
    """A tensor that is going to be pickled, and to arrive on a device. What is unpickled is the tensor, there. ``is_settled``: on whatever
    stream it is used."""

    __slots__ = ("tensor", "target", "is_settled")

    def __init__(self, tensor, target, is_settled):
        self.tensor = tensor
        self.target = target
        self.is_settled = is_settled

    def _part(self, tensor):
        return _Moved(tensor, self.target, self.is_settled)

    def __reduce_ex__(self, protocol):
        tensor = self.tensor
        if tensor.layout is not torch.strided:
            return _tensors.reduced_parts(tensor, self._part)
        if tensor.is_quantized:
            raise RuntimeError(_tensors.QUANTIZED)
        # Nobody maps what is to be on the CPU.
        keeper = None if self.target is None else _agent.get_current_rpc_agent()._worker
        return _arrived, (*_cuda.described(tensor, keeper), self.target, self.is_settled, tensor.requires_grad)


class _Local(threading.local):
    """What is signalled when the arguments have been read of the call that this thread carries out; None: there is nothing to wait for."""

    reads = None


local = _Local()


def wait_until_read():
    """Before a call is answered: its caller may change its arguments then."""
    reads, local.reads = local.reads, None
    for read in reads:
        read.synchronize()


def _arrived(elements, dtype, size, stride, target, is_settled, wants):
    if not is_settled and local.reads is None:
        local.reads = []
    tensor = _cuda.arrived(elements, dtype, size, stride, target, is_own=True, is_settled=is_settled, reads=local.reads)
    return tensor.requires_grad_() if wants else tensor
