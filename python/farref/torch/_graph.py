"""Backward passes through the graphs of all workers that took part in a context.

Each worker has its own graph, PyTorch's. Where tensors have left it in a message there is a ``SendRpcBackward``, where they came
in a ``RecvRpcBackward``. A pass runs on a worker from tensors whose gradients are known (roots, or what was sent) to the leaves;
each ``RecvRpcBackward`` that it meets sends gradients on, to the worker that the tensors came from, which runs its pass and
answers when it is through. Passes are linear in the gradients: those that arrive one after the other are added up, and nobody
has to know beforehand how many will come. So results that were never used hold nothing up.
"""

import collections
import functools
import threading

import torch
from farref import _core, _errors

from . import _agent, _tensors

_running = threading.local()


class _Names:
    """Classes of functions by which tensors leave and enter a graph: their names are what PyTorch's have."""

    send = recv = None

    @classmethod
    def make(cls):
        if cls.send is None:
            function = torch.autograd.Function
            cls.recv = type(
                "torch::distributed::autograd::RecvRpc",
                (function,),
                {"forward": staticmethod(_recv_forward), "backward": staticmethod(_recv_backward)},
            )
            cls.send = type(
                "torch::distributed::autograd::SendRpc",
                (function,),
                {"forward": staticmethod(_send_forward), "backward": staticmethod(_send_backward)},
            )


def _recv_forward(ctx, entrance, arrived):
    ctx.set_materialize_grads(False)
    ctx.arrived = arrived
    return tuple(arrived.take())


def _recv_backward(ctx, *gradients):
    now = getattr(_running, "now", None)
    if now is None:
        raise RuntimeError(
            "these tensors came from another worker: use torch.distributed.autograd.backward() in the context that they came in"
        )
    now.send_on(ctx.arrived, gradients)
    return None, None


def _send_forward(ctx, *tensors):
    return torch.zeros(())


def _send_backward(ctx, *_):
    raise RuntimeError("tensors that were sent get their gradients from torch.distributed.autograd.backward()")


class Arrived:
    """Tensors that a message has brought, and where their gradients are to go."""

    def __init__(self, context, message, sender, tensors):
        self.context = context
        self.message = message
        self.sender = sender
        self._tensors = tensors

    def take(self):
        tensors, self._tensors = self._tensors, None
        return tensors


class Sent:
    """Tensors that have left in a message: a pass goes on here with the gradients that come back."""

    def __init__(self, tensors):
        _Names.make()
        with torch.enable_grad():
            # Kept: the function lives as long as what it has returned.
            self._output = _Names.send.apply(*tensors)
        self.tensors = tensors

    @property
    def node(self):
        """The function that they have left through."""
        return self._output.grad_fn


def receive(arrived):
    """The tensors, as outputs of a function of the graph; and that function."""
    _Names.make()
    with torch.enable_grad():
        entrance = torch.zeros((), requires_grad=True)
        entrance._farref_entrance = True
        outputs = _Names.recv.apply(entrance, arrived)
    return list(outputs), outputs[0].grad_fn


def _leaves(tensors):
    """The tensors that these were computed from, and that want gradients."""
    leaves, seen, left = {}, set(), []
    for tensor in tensors:
        if tensor.grad_fn is None:
            leaves[id(tensor)] = tensor
        else:
            left.append(tensor.grad_fn)
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves[id(variable)] = variable
        left.extend(before for before, _ in node.next_functions if before is not None)
    return list(leaves.values())


def _own(leaves, gradients):
    """The gradients of leaves that are the program's, each with memory of its own."""
    kept = [
        (leaf, gradient)
        for leaf, gradient in zip(leaves, gradients)
        if gradient is not None and not hasattr(leaf, "_farref_entrance")
    ]
    memory = collections.Counter(_address(gradient) for _, gradient in kept)
    for leaf, gradient in kept:
        if not _is_contiguous(gradient) or memory[_address(gradient)] > 1:
            gradient = gradient.clone()
        yield leaf, _hooked(leaf, gradient)


def _address(gradient):
    return gradient._values().data_ptr() if gradient.layout is torch.sparse_coo else gradient.data_ptr()


def _is_contiguous(gradient):
    if gradient.layout is torch.sparse_coo:
        return gradient._values().is_contiguous() and gradient._indices().is_contiguous()
    return gradient.is_contiguous()


@functools.lru_cache(maxsize=None)
def _hooks_have_run():
    """Whether torch.autograd.grad() runs the hooks of the leaves that it is asked for: versions of PyTorch differ."""
    ran = []
    leaf = torch.ones((), requires_grad=True)
    leaf.register_hook(ran.append)
    torch.autograd.grad(leaf * 1, leaf)
    return bool(ran)


def _hooked(leaf, gradient):
    if leaf._backward_hooks and not _hooks_have_run():
        for hook in list(leaf._backward_hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return gradient


class Pass:
    """One worker's part of a backward pass, for gradients that have come together."""

    def __init__(self, context, retain_graph):
        self._context = context
        self._retain = retain_graph
        self._lock = threading.Lock()
        # The worker's own part, and all that it has sent on.
        self._left = 1
        self._error = None
        self._through = threading.Event()

    def run(self, tensors, gradients):
        """From these tensors to the leaves, here and on all workers that are reached. Returns when all are through."""
        known = [(tensor, gradient) for tensor, gradient in zip(tensors, gradients) if gradient is not None]
        if not known:
            return
        tensors, gradients = zip(*known)
        leaves = _leaves(tensors)
        before, _running.now = getattr(_running, "now", None), self
        try:
            found = torch.autograd.grad(tensors, leaves, gradients, retain_graph=True, allow_unused=True)
        except Exception as error:
            with self._lock:
                self._error = self._error or error
            found = ()
        finally:
            _running.now = before
        self._context.add(_own(leaves, found))
        self._ended(None)
        self._through.wait()
        if self._error is not None:
            raise self._error

    def send_on(self, arrived, gradients):
        """Gradients of tensors that came from another worker."""
        agent = _agent.get_current_rpc_agent()
        to = agent.get_worker_info(arrived.sender)
        packed = [None if gradient is None else _tensors.Packed(gradient) for gradient in gradients]
        with self._lock:
            self._left += 1
        agent._count("_calls", 1)
        message = (arrived.context, arrived.message, packed, self._retain)
        try:
            # However long it takes: a worker that is gone is noticed.
            _core.start_deferred(agent._peer(to), None, serve, message, lambda _, error: self._answered(agent, to, error))
        except _errors.Error as error:
            self._answered(agent, to, error)

    def _answered(self, agent, to, error):
        agent._count("_calls", -1)
        if error is not None:
            # Each worker on the way says where it was.
            error = RuntimeError(f"Error on Node {to.id}: {error}")
        self._ended(error)

    def _ended(self, error):
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left == 0:
                self._through.set()


def serve(completion, context_id, message, gradients, retain_graph):
    """Gradients of tensors that were sent from here."""
    from . import _grad

    _agent.started()
    context = _grad.retrieve_context(context_id)
    sent = context._tensors.get(message)
    if sent is None:
        raise RuntimeError(f"Could not find send function for autograd message id: {message}")
    with _grad.within(context_id), context.passing():
        Pass(context, retain_graph).run(sent.tensors, gradients)
    completion.sent(None)
