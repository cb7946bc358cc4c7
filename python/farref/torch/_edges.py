"""Where tensors leave the graph of a worker and enter it, and what PyTorch does there: edges, leaves and their hooks."""

import collections
import functools
import threading

import torch


class _Running(threading.local):
    """The part of a pass that runs on a thread, and the streams that gradients have come on which leave it."""

    now = streams = None


running = _Running()


class run_by:
    """Code that runs a part of a pass. All of it runs on this thread, also what PyTorch would do on threads of its devices: functions ask
    which pass they are part of."""

    __slots__ = ("_now", "_before", "_alone")

    def __init__(self, now):
        self._now = now

    def __enter__(self):
        self._before = running.now, running.streams
        running.now, running.streams = self._now, None
        self._alone = None
        if torch.cuda.is_initialized() and hasattr(torch.autograd, "set_multithreading_enabled"):  # since PyTorch 2.0
            self._alone = torch.autograd.set_multithreading_enabled(False)
            self._alone.__enter__()

    def __exit__(self, *raised):
        streams = running.streams
        running.now, running.streams = self._before
        if self._alone is not None:
            self._alone.__exit__(*raised)
            for stream in streams or ():
                # What this thread does with the gradients comes after what has made them.
                torch.cuda.current_stream(stream.device).wait_stream(stream)


def _note_streams(gradients):
    for gradient in gradients:
        if gradient is not None and gradient.is_cuda:
            if running.streams is None:
                running.streams = set()
            running.streams.add(torch.cuda.current_stream(gradient.device))


class Order:
    """When gradients are ready that others than the thread which has made them use: after these events, by device."""

    __slots__ = ("_events",)

    def __init__(self):
        self._events = None

    def follow(self, used=()):
        """What this thread does on its streams comes after that. ``used``: which of them it uses, whose memory is kept for it."""
        for device, event in (self._events or {}).items():
            torch.cuda.current_stream(device).wait_event(event)
        if self._events is not None:
            for gradient in used:
                for part in (gradient._indices(), gradient._values()) if gradient.is_sparse else (gradient,):
                    if part.is_cuda:
                        part.record_stream(torch.cuda.current_stream(part.device))

    def note(self, made):
        """This thread has made these, after it has followed what was made before."""
        for device in {gradient.device for gradient in made if gradient.is_cuda}:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self._events = {**(self._events or {}), device: event}


class Names:
    """Classes of functions by which tensors leave and enter a graph: their names are what PyTorch's have."""

    send = recv = None
    # Classes of functions: of what has come, and of leaves.
    received = leaves = None
    # How tensors are sent and received: ``apply`` without what newer versions of PyTorch look at before, which is not for these.
    apply_send = apply_recv = None
    # A tensor of which nobody looks at more than its place in a graph.
    place = None

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
            cls.received = cls.recv._backward_cls
            cls.apply_send = super(function, cls.send).apply
            cls.apply_recv = super(function, cls.recv).apply
            cls.place = torch.empty(())
            with torch.enable_grad():
                leaf = torch.empty((), requires_grad=True)
                cls.leaves = type(leaf.view_as(leaf).grad_fn.next_functions[0][0])


def _recv_forward(ctx, entrance, arrived):
    ctx.materialize_grads = False
    ctx.arrived = arrived
    tensors, arrived.tensors = arrived.tensors, None
    return tensors


def _recv_backward(ctx, *gradients):
    now = running.now
    if now is None:
        if not hasattr(torch.autograd, "set_multithreading_enabled") and any(gradient is not None and gradient.is_cuda for gradient in gradients):
            raise RuntimeError(
                f"PyTorch {torch.__version__} runs functions of CUDA tensors on threads of its own, where nobody knows of a backward pass over "
                "workers: for gradients of tensors on GPUs farref.torch needs PyTorch 2.0 or newer"
            )
        raise RuntimeError(
            "these tensors came from another worker: use torch.distributed.autograd.backward() in the context that they came in"
        )
    _note_streams(gradients)
    now.received(ctx.arrived, gradients)
    return None, None


def _send_forward(ctx, *tensors):
    if not begins_at_edges():
        ctx.save_for_backward(*tensors)
    # A new one each time: it becomes the function's.
    return torch.empty(())


def _send_backward(ctx, *_):
    raise RuntimeError("tensors that were sent get their gradients from torch.distributed.autograd.backward()")


@functools.lru_cache(maxsize=None)
def begins_at_edges():
    """Whether PyTorch can begin at any edge of a graph, without a tensor that has it."""
    try:
        with torch.enable_grad():
            leaf = torch.ones((), requires_grad=True)
            edge = torch.autograd.graph.GradientEdge((leaf * 1).grad_fn, 0)
            torch.autograd.grad((edge,), (leaf,), (torch.ones(()),))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return True


class Arrived:
    """Tensors that a message has brought, and where their gradients are to go."""

    __slots__ = ("message", "sender", "entrance", "number", "tensors")

    def __init__(self, message, sender, tensors):
        self.message = message
        self.sender = sender
        # The leaf behind them: a pass that has run up to it has run the function.
        self.entrance = None
        self.number = len(tensors)
        # Until they are part of the graph.
        self.tensors = tensors


# Leaves for what is going to be received: made while an answer is waited for.
_entrances = []


# Gradients of losses, made likewise.
_ones = []
_float = torch.float32


def prepare_to_receive():
    """Called when a message is on its way that is answered with tensors, maybe."""
    if torch.is_inference_mode_enabled():
        return
    if not _entrances:
        _entrances.append(torch.empty((), requires_grad=True))
    if not _ones:
        _ones.append(torch.ones((), dtype=_float, device="cpu"))


def gradient_of(root):
    """The gradient that a backward pass begins with."""
    if root.dtype is _float and root.is_cpu and not root.dim():
        try:
            return _ones.pop()
        except IndexError:
            pass
    return torch.ones_like(root)


def _entrance():
    try:
        return _entrances.pop()
    except IndexError:
        return torch.empty((), requires_grad=True)


def receive(arrived):
    """The tensors, as outputs of a function of the graph; and that function."""
    arrived.entrance = _entrance()
    if torch.is_grad_enabled():
        outputs = Names.apply_recv(arrived.entrance, arrived)
    else:
        with torch.enable_grad():
            outputs = Names.apply_recv(arrived.entrance, arrived)
    return outputs, outputs[0].grad_fn


def _nothing_of(tensor):
    """What is saved of a tensor besides its place in the graph."""


def _place(_):
    """What PyTorch makes a tensor with that place of: nobody looks at its memory."""
    return Names.place


# What has left and has no function yet. Whoever makes one has the lock: destructors that run meanwhile may come here, too.
_left = collections.deque()
_making = threading.RLock()


def make_left():
    """Sees to it that whatever has left has its function: called before code of the program runs that could change those tensors."""
    if _left:
        with _making:
            while _left:
                sent = _left[0]
                try:
                    sent._make()
                    sent.look_ahead()
                except RuntimeError:
                    pass  # who asks for it is told
                # Not before: others look whether there are any, without the lock.
                if _left and _left[0] is sent:
                    _left.popleft()


class Sent:
    """Tensors that have left in a message. ``later``: their function is made when that has gone out, while its receiver is at it."""

    __slots__ = ("_output", "_tensors", "_entries", "_ends", "_devices")

    def __init__(self, tensors, later=False):
        self._output = self._entries = self._ends = None
        self._tensors = tensors
        self._devices = None
        if later:
            _left.append(self)
        else:
            self._make()

    def _make(self):
        if self._output is not None:
            return
        if torch.is_grad_enabled():
            self._output = _sent(self._tensors)
        else:
            with torch.enable_grad():
                self._output = _sent(self._tensors)
        # Else it stays None: the CPU.
        if not all([tensor.is_cpu for tensor in self._tensors]):
            self._devices = [tensor.device for tensor in self._tensors]
        self._tensors = None

    @property
    def node(self):
        """The function that they have left through."""
        if self._output is None:
            make_left()
            self._make()
        return self._output.grad_fn

    @property
    def edges(self):
        """Where their gradients go on: functions, and which of their outputs."""
        return self.node.next_functions

    def entries(self):
        """What PyTorch begins at, for each."""
        if self._entries is None:
            if begins_at_edges():
                self._entries = [torch.autograd.graph.GradientEdge(node, number) for node, number in self.edges]
            else:
                self._entries = self.node.saved_tensors
        return self._entries

    def at_home(self, gradients):
        """Gradients, each on the device that its tensor has left. Their function is made by now: they have come through it."""
        if self._devices is not None:
            return [gradient if gradient is None else gradient.to(to) for gradient, to in zip(gradients, self._devices)]
        if all([gradient is None or gradient.is_cpu for gradient in gradients]):
            return gradients
        return [gradient if gradient is None else gradient.cpu() for gradient in gradients]

    def ends(self):
        """Where they lead to in the end."""
        if self._ends is None:
            self._ends = ends_of([node for node, _ in self.edges])
        return self._ends

    def look_ahead(self):
        """Looks up what a pass will need, when there is time, and if it does not take long: nothing of that changes any more."""
        self.entries()
        self._ends = ends_of([node for node, _ in self.edges], _FEW)


def _sent(tensors):
    """What keeps the function alive: what it has returned."""
    if begins_at_edges():
        return Names.apply_send(*tensors)
    # What is saved so is given back as new tensors with the edges of now (GR-1), and without memory.
    with torch.autograd.graph.saved_tensors_hooks(_nothing_of, _place):
        return Names.apply_send(*tensors)


def arrived_of(node):
    """What came in through a function, if anything did."""
    return node.arrived if type(node) is Names.received else None


def leaf_of(node):
    return node.variable if type(node) is Names.leaves else None


# So many functions are looked at for a pass that may never be.
_FEW = 64


def ends_of(left, most=None):
    """Where functions lead to in the end: leaves, and what was received. None if there are more than so many functions."""
    leaves, received, seen = [], [], set()
    of_leaves, of_received = Names.leaves, Names.received
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        if most is not None and len(seen) > most:
            return None
        kind = type(node)
        if kind is of_leaves:
            leaves.append(node.variable)
        elif kind is of_received:
            received.append(node.arrived)
        else:
            for before, _ in node.next_functions:
                if before is not None:
                    left.append(before)
    return leaves, received


def before_of(node):
    return [before for before, _ in node.next_functions if before is not None]


def own(leaves, gradients):
    """The gradients of leaves, each with memory of its own."""
    kept = [(leaf, gradient) for leaf, gradient in zip(leaves, gradients) if gradient is not None]
    memory = [_address(gradient) for _, gradient in kept]
    shared = () if len(set(memory)) == len(memory) else {of for of, number in collections.Counter(memory).items() if number > 1}
    own = []
    for (leaf, gradient), address in zip(kept, memory):
        if address in shared or not _is_contiguous(gradient):
            gradient = gradient.clone()
        own.append((leaf, _hooked(leaf, gradient) if leaf._backward_hooks else gradient))
    return own


def _address(gradient):
    return gradient._values().data_ptr() if gradient.layout is torch.sparse_coo else gradient.data_ptr()


def _is_contiguous(gradient):
    if gradient.layout is torch.sparse_coo:
        return gradient._values().is_contiguous() and gradient._indices().is_contiguous()
    return gradient.is_contiguous()


@functools.lru_cache(maxsize=None)
def hooks_have_run():
    """Whether torch.autograd.grad() runs the hooks of the leaves that it is asked for: versions of PyTorch differ."""
    ran = []
    with torch.enable_grad():
        leaf = torch.ones((), requires_grad=True)
        leaf.register_hook(ran.append)
        torch.autograd.grad(leaf * 1, leaf)
    return bool(ran)


def prepare():
    """Called before the first message. From then on hooks of tensors do not run where a run ends with a part of a gradient, as in some
    versions of PyTorch they would."""
    Names.make()
    begins_at_edges()
    plain = torch.Tensor.register_hook
    if not hooks_have_run() or hasattr(plain, "_farref"):
        return

    @functools.wraps(plain)
    def register_hook(self, hook):
        # Those of leaves are looked at when it comes to that.
        return plain(self, hook if self.is_leaf else functools.partial(_unless_kept, hook))

    register_hook._farref = True
    torch.Tensor.register_hook = register_hook


def _unless_kept(hook, gradient):
    now = running.now
    if now is not None and now.keeps_at(torch._C._current_autograd_node()):
        return None
    return hook(gradient)


def has_hooks(leaf):
    return leaf is not None and bool(leaf._backward_hooks)


def _hooked(leaf, gradient):
    if not hooks_have_run():
        for hook in list(leaf._backward_hooks.values()):
            changed = hook(gradient)
            gradient = gradient if changed is None else changed
    return gradient
