"""Distributed autograd: contexts, and what of a call belongs to them."""

import collections
import itertools
import secrets
import threading

import torch
from farref import _core, _errors

from . import _edges, _tensors



class _Local(threading.local):
    """The context of a thread, or None."""

    context = None


_local = _Local()
_BITS = 48
_lock = threading.Lock()
_contexts = {}
# Contexts that are over: a message of theirs that is late does not bring them back. The latest so many.
_over = collections.OrderedDict()
_OVER = 1 << 14
_worker = _numbers = _messages = _ends = _passes = None


class DistAutogradContext:
    """What a worker knows of one context."""

    def __init__(self, number):
        self._number = number
        self._tensors = {}
        self._received = {}
        self._known = set()
        self._gradients = {}
        # Threads add to them on streams of their own.
        self._order = _edges.Order()
        # Passes that come by here, by their numbers; and how many are run at once, without more ado.
        self._parts = {}
        self._passing = 0
        self._lock = threading.Lock()

    def _context_id(self):
        """Which it is."""
        return self._number

    def _recv_functions(self):
        """Functions that tensors have come through, by message."""
        return dict(self._received)

    def _send_functions(self):
        """Functions that tensors have left through, by message."""
        return {message: sent.node for message, sent in list(self._tensors.items())}

    def _known_worker_ids(self):
        """Workers that were called in it, or answered."""
        return set(self._known)

    def add(self, gradients):
        """Gradients of leaves, for those who ask for them."""
        on_devices = torch.cuda.is_initialized()
        with self._lock:
            if on_devices:
                self._order.follow()
            for leaf, gradient in gradients:
                before = self._gradients.get(leaf)
                if before is None:
                    self._gradients[leaf] = gradient
                elif before.is_sparse and not gradient.is_sparse:
                    self._gradients[leaf] = gradient + before
                else:
                    self._gradients[leaf] = before + gradient
            if on_devices:
                self._order.note([gradient for _, gradient in gradients])

    def gradients(self):
        """Those of leaves, for this thread and its streams."""
        with self._lock:
            self._order.follow(self._gradients.values())
            return dict(self._gradients)

    def is_passing(self):
        """Whether a backward pass goes through this worker."""
        with self._lock:
            return self._passing > 0 or any(part.is_under_way for part in self._parts.values())


# The context that code runs in


def current_id():
    """The context of this thread, or None."""
    return _local.context


class within:
    """Code that belongs to a context, or to none."""

    __slots__ = ("_context_id", "_before")

    def __init__(self, context_id):
        self._context_id = context_id

    def __enter__(self):
        self._before = _local.context
        _local.context = self._context_id

    def __exit__(self, *_):
        _local.context = self._before


class passing(within):
    """Code that runs a whole backward pass of a context."""

    __slots__ = ("_context",)

    def __init__(self, context):
        self._context, self._context_id = context, context._number

    def __enter__(self):
        with self._context._lock:
            self._context._passing += 1
        super().__enter__()

    def __exit__(self, *_):
        super().__exit__()
        with self._context._lock:
            self._context._passing -= 1


def entered(grad):
    """Code that runs for a message."""
    if not grad:
        return within(None)
    _known(grad[0])
    return within(grad[0])


def _known(context_id):
    """The context, which begins here with the first message of it; None if it is over."""
    with _lock:
        found = _contexts.get(context_id)
        if found is None and context_id not in _over:
            found = _contexts[context_id] = DistAutogradContext(context_id)
        return found


# Messages


def leaving(tensors, to, forced, later=False):
    """What a message says of its context, if there is one and it says anything: context, message, sender, and which of the
    tensors want gradients. ``later``: the caller sees to what is :func:`left <_edges.make_left>` to be done."""
    context_id = current_id()
    if context_id is None:
        return None
    # Whether or not it is computed without gradients here: what comes back was computed elsewhere.
    wanting = [tensor for tensor in tensors or () if tensor.requires_grad]
    if not wanting and not forced:
        return None
    with _lock:
        context = _contexts.get(context_id)
    if context is None:
        return None
    message = (_worker << _BITS) | next(_messages)
    if wanting:
        context._tensors[message] = _edges.Sent(wanting, later)
    context._known.add(to)
    return context_id, message


def arriving(packed, grad, sender):
    """The tensors of a message, as part of the graph."""
    wanting = [
        place
        for place, tensor in enumerate(packed)
        if (tensor[3] if type(tensor) is tuple else tensor.requires_grad)
    ]
    if not wanting:
        return _tensors.unpack(packed)
    context_id, message = grad
    context = _known(context_id)
    if context is None:
        return _tensors.unpack(packed)
    tensors = [_tensors.unpacked(tensor) if type(tensor) is tuple else tensor.detach() for tensor in packed]
    plain = tuple([tensors[place] for place in wanting])
    entered, function = _edges.receive(_edges.Arrived(message, sender, plain))
    context._received[message] = function
    for place, tensor in zip(wanting, entered):
        tensors[place] = tensor
    return tensors


# What PyTorch's layer calls


def init(worker_id):
    """Called before the process joins a group."""
    # Which need this.
    from . import _passes as passes
    from ._ends import Ends

    global _worker, _numbers, _messages, _ends, _passes
    _passes = passes
    if not 0 <= worker_id < 1 << 16:
        raise RuntimeError("worker_id needs to be in the range [0, 65535]")
    _edges.prepare()
    _worker = worker_id
    # Whoever had this id before, in another group or another process, had other numbers.
    _numbers, _messages = (itertools.count(secrets.randbits(_BITS - 1)) for _ in range(2))
    if _ends is not None:
        _ends.close()
    _ends = Ends()
    with _lock:
        # Those of a group that this process was in before.
        _contexts.clear()
        _over.clear()


def new_context():
    """Begins a context on this thread."""
    if _worker is None:
        raise RuntimeError(
            "Need to initialize distributed autograd using torch.distributed.autograd.init()"
        )
    if current_id() is not None:
        raise RuntimeError("Already have an autograd context id for this thread.")
    number = (_worker << _BITS) | next(_numbers)
    context = DistAutogradContext(number)
    with _lock:
        _contexts[number] = context
    _local.context = number
    return context


def _end(context_id):
    with _lock:
        found = _contexts.pop(context_id, None)
        _over[context_id] = None
        if len(_over) > _OVER:
            _over.popitem(last=False)
    return found


def release_context(context_id):
    """Ends a context, here and on all workers that took part in it."""
    context = _end(context_id)
    if context is None:
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")
    if current_id() == context_id:
        _local.context = None
    _tell_of_end(context)


def _tell_of_end(context, told_by=None):
    for known in context._known - {_worker, told_by}:
        _ends.tell(known, context._number)


def serve_ends(context_ids, told_by):
    """Told by another worker that contexts are over."""
    for context_id in context_ids:
        _end_here(context_id, told_by)


def departed(agent, worker):
    """A worker is gone. Its contexts are over; and of those of others somebody else may know only through it that this worker has
    taken part."""
    with _lock:
        contexts = list(_contexts.values())
    for context in contexts:
        opened_by = context._number >> _BITS
        if opened_by == worker:
            _end_here(context._number)
        elif opened_by != agent._info.id:
            _take_part(agent, opened_by, context._number)


def _take_part(agent, opened_by, context_id):
    def then(is_there, error):
        if error is None and not is_there:
            _end_here(context_id)

    try:
        peer = agent._peer(agent.get_worker_info(opened_by))
        _core.start_deferred(peer, None, serve_part, (context_id, agent._info.id), then)
    except (_errors.Error, RuntimeError):
        pass  # it is gone too, and that is going to be told


def serve_part(completion, context_id, worker):
    """Told by another worker that it takes part in a context of this one's. Answers whether there is such a context."""
    with _lock:
        context = _contexts.get(context_id)
        if context is not None:
            context._known.add(worker)
    completion.sent(context is not None)


def _end_here(context_id, told_by=None):
    context = _end(context_id)
    if context is not None:
        _tell_of_end(context, told_by)


def get_max_id():
    """The largest id that a context of this worker may have."""
    return (_worker << _BITS) | ((1 << _BITS) - 1)


def retrieve_context(context_id):
    """A context by its id."""
    with _lock:
        found = _contexts.get(context_id)
    if found is None:
        raise RuntimeError(f"Could not find autograd context with id: {context_id}")
    return found


def is_valid_context(context_id):
    """Raises if there is no such context."""
    retrieve_context(context_id)


def current_context():
    """The context of this thread."""
    if current_id() is None:
        raise RuntimeError(
            "Current thread doesn't have a valid autograd context. Please wrap your code using: "
            "`with torch.distributed.autograd.context() as context_id` to generate a valid context"
        )
    return retrieve_context(current_id())


def backward(context_id, roots, retain_graph=False):
    """Kicks off the distributed backward pass using the provided roots. It goes through all workers that the roots depend on,
    and returns when it is through; the gradients are in the context (:func:`get_gradients`)."""
    if not isinstance(context_id, int) or not isinstance(roots, (list, tuple)):
        raise TypeError(
            "backward(): incompatible function arguments: backward(context_id: int, roots: List[Tensor], "
            "retain_graph: bool = False) is wanted"
        )
    context = retrieve_context(context_id)
    if not roots:
        raise RuntimeError("No tensors provided for gradient computation.")
    for root in roots:
        if not root.requires_grad:
            raise RuntimeError("requires_grad not set on root")
        if root.numel() != 1:
            raise RuntimeError(f"{root} is not a scalar, all roots need to be scalar")
        if root.grad_fn is None:
            raise RuntimeError(f"{root} does not have a valid gradient function.")
    _passes.backward(context, roots, [_edges.gradient_of(root) for root in roots], retain_graph)


def get_gradients(context_id):
    """Retrieves a map from Tensor to the appropriate gradient for that Tensor accumulated in the provided context."""
    return retrieve_context(context_id).gradients()


def debug_info():
    """Numbers, as PyTorch names them."""
    with _lock:
        contexts = list(_contexts.values())
    passes = sum(context.is_passing() for context in contexts)
    return {"num_current_backward_passes": passes, "num_autograd_contexts": len(contexts)}
