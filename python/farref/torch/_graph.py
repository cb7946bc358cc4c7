"""The graph of one worker in a backward pass: PyTorch's, run in as few parts as the gradients allow.

Where tensors have left a worker in a message there is a ``SendRpcBackward``, where they came in a ``RecvRpcBackward``. Gradients
come in for the loss and for what was sent, and go on for what was received, or stay with the leaves.

Invariants:

- **GR-1** What was sent is remembered as the edges of the graph that the tensors had then: changes in place since do not matter.
- **GR-2** Nothing is run before all gradients that it can get in the pass are there: a function and a hook see sums, never parts of
  them. ``sends`` whose gradients may still come block all that they reach; what no such send reaches is run.
- **GR-3** What a run computes for functions that are blocked is kept, and goes on from there: each function is run once. PyTorch
  can keep gradients at a function only if it leads to no other at which some are kept. Where skips and parameters cross so that it
  does, functions are run twice, on the same sums: for what others wait for, and at the end for the leaves. And where PyTorch cannot
  keep them at all (before 2.5 it can only at what was sent), they are run once for each message that others wait for.
"""

import collections

import torch

from . import _edges
from ._edges import before_of


def _leads_to_another(nodes):
    """Whether one of these leads to another."""
    seen, left = set(), [before for node in nodes for before in before_of(node)]
    while left:
        node = left.pop()
        if node in nodes:
            return True
        if node not in seen:
            seen.add(node)
            left.extend(before_of(node))
    return False


class _Whole:
    """A run of the whole graph."""

    __slots__ = ("went_out",)

    def __init__(self):
        self.went_out = {}

    def keeps_at(self, node):
        """Called in a run: nothing is kept."""
        return False

    def received(self, arrived, gradients):
        """Called in a run: gradients of what was received."""
        self.went_out[arrived.message] = gradients


def run_whole(begin, leaves, received, retain):
    """Runs the whole graph, whose ends these are, when all gradients are there, each with what PyTorch begins at. Returns the gradients
    of the leaves, which are not :func:`their own <_edges.own>` yet, and what was received with gradients."""
    begin = list(begin)
    if not begin or not (leaves or received):
        return [], [(arrived, (None,) * arrived.number) for arrived in received]
    run = _Whole()
    entries, gradients = zip(*begin)
    found = _run(run, entries, gradients, (*leaves, *[arrived.entrance for arrived in received]), retain)
    went_out = run.went_out
    out = [(arrived, went_out.get(arrived.message) or (None,) * arrived.number) for arrived in received]
    return found[: len(leaves)], out


def _run(now, entries, gradients, inputs, retain):
    """What torch.autograd.grad() does when it has looked at its arguments. Leaves that were frozen since they were used get nothing:
    nobody looks for those before."""
    wanting = tuple([wants for wants in inputs if getattr(wants, "requires_grad", True)])  # an edge has no such thing
    if len(wanting) < len(inputs):
        found = iter(_run(now, entries, gradients, wanting, retain) if wanting else ())
        return [next(found) if getattr(wants, "requires_grad", True) else None for wants in inputs]
    with _edges.run_by(now):
        return torch.autograd.Variable._execution_engine.run_backward(
            entries,
            gradients,
            retain,
            False,  # create_graph
            inputs,
            True,  # allow_unreachable
            accumulate_grad=False,
        )


class Graph:
    """The graph of this worker in one pass."""

    def __init__(self, sends, retain):
        self._retain = retain
        self._sends = sends
        # Messages whose gradients may come.
        self._unfed = dict(sends)
        # Those of them whose gradients will come.
        self._expected = set()
        self._reached = set()
        # How many edges of what is blocked lead to a function. Others are not blocked (GR-2).
        self._blocked = None
        # Gradients to go on with: what PyTorch begins at, the function there, the gradient.
        self._pending = []
        self._order = _edges.Order()
        # The same for leaves, once they cannot be run together with the others (GR-3).
        self._behind = None
        # What was received, is reached and has not been run, by its function; and what of it is not blocked.
        self._received = {}
        self._ready = set()
        self._told = set()
        # Leaves that are reached and have not been run, by their functions.
        self._leaves = {}
        self._entries = {}
        self._went_out = {}
        # Functions at which this run keeps parts of gradients.
        self._keeps_at = ()

    @property
    def waits(self):
        """Whether there are gradients that it could not go on with."""
        return bool(self._pending)

    # Gradients come in

    def begin(self, roots, gradients):
        """The pass begins here. Returns what was received and will get gradients."""
        for root, gradient in zip(roots, gradients):
            self._goes_on(root, root.grad_fn, gradient)
        return self._reach([root.grad_fn for root in roots])

    def expect(self, messages):
        """These will get gradients. Returns what was received and, because of that, will get some too."""
        found = []
        for message in messages:
            sent = self._sends.get(message)
            if sent is None:
                raise RuntimeError(f"Could not find send function for autograd message id: {message}")
            if message in self._unfed and message not in self._expected:
                self._expected.add(message)
                found += self._reach([node for node, _ in sent.edges])
        return found

    def feed(self, message, gradients):
        """The gradients of a message that they were expected for."""
        self._expected.remove(message)
        sent = self._unfed.pop(message)
        for entry, (node, _), gradient in zip(sent.entries(), sent.edges, sent.at_home(gradients)):
            if gradient is not None:
                self._goes_on(entry, node, gradient)
        self._unblock(sent)

    def _goes_on(self, *pending):
        self._pending.append(pending)
        if self._behind is not None:
            self._behind.append(pending)

    def expect_no_more(self):
        """Gradients will come for nothing but what they are expected for."""
        for message in [message for message in self._unfed if message not in self._expected]:
            self._unblock(self._unfed.pop(message))

    def _reach(self, left):
        found = []
        while left:
            node = left.pop()
            if node in self._reached:
                continue
            self._reached.add(node)
            arrived = _edges.arrived_of(node)
            if arrived is not None:
                self._received[node] = arrived
                found.append(arrived)
                if self._is_free(node):
                    self._ready.add(node)
                continue
            leaf = _edges.leaf_of(node)
            if leaf is not None:
                self._leaves[node] = leaf
            left.extend(before_of(node))
        return found

    # What is blocked

    def _is_free(self, node):
        return self._blocked is not None and node not in self._blocked

    def _block(self):
        """Looks at what is blocked, when the first gradients are here."""
        blocked = self._blocked = collections.Counter()
        left = [node for sent in self._unfed.values() for node, _ in sent.edges]
        while left:
            node = left.pop()
            blocked[node] += 1
            if blocked[node] == 1:
                left.extend(before_of(node))
        if not _edges.begins_at_edges():
            for sent in self._sends.values():
                self._entries.update((edge, (sent, index)) for index, edge in enumerate(sent.edges))
        self._ready.update(node for node in self._received if node not in blocked)

    def _unblock(self, sent):
        if self._blocked is None:
            return
        left = [node for node, _ in sent.edges]
        while left:
            node = left.pop()
            self._blocked[node] -= 1
            if self._blocked[node] == 0:
                del self._blocked[node]
                if node in self._received:
                    self._ready.add(node)
                left.extend(before_of(node))

    # Runs

    def advance(self):
        """Runs what can be run, if that is of use to anybody: gradients of leaves, and of what was received."""
        if not torch.cuda.is_initialized():
            return self._advance()
        # Another thread may have run the parts before, on streams of its own, and another may go on.
        self._order.follow([gradient for _, _, gradient in self._pending])
        try:
            return self._advance()
        finally:
            self._order.note([gradient for _, _, gradient in (*self._pending, *(self._behind or ()))])

    def _advance(self):
        if self._unfed and self._blocked is None:
            self._block()
        if not self._unfed:
            return self._run_all()
        if self._ready:
            return self._run_free()
        return [], []

    def _run_all(self):
        """Nothing more comes."""
        pending, self._pending = self._pending, []
        behind, self._behind = self._behind, None
        received = list(self._received.values())
        self._received.clear()
        leaves = list(self._leaves.values())
        self._leaves.clear()
        self._ready.clear()
        if behind is None:
            return self._run(pending, received, leaves, self._retain)
        _, out = self._run(pending, received, (), True)
        own, _ = self._run(behind, (), leaves, self._retain)
        return own, out

    def _run_free(self):
        """Others wait for what is free; the rest of the graph may be blocked."""
        ready, self._ready = self._ready, set()
        kept = None
        if self._behind is None:
            ends = {node for node in self._leaves if node not in self._blocked}
            region, needed = self._region(ready | ends)
            kept = self._kept(needed)
        if kept is None:
            # GR-3
            if self._behind is None:
                self._behind = list(self._pending)
            ends = set()
            region, needed = self._region(ready)
            kept = self._kept(needed)
        received = [self._received.pop(node) for node in ready]
        self._told |= ready
        if kept is None:
            free = [pending for pending in self._pending if pending[1] in region]
            return self._run(free, received, (), True)
        leaves = [self._leaves.pop(node) for node in ends & needed]
        pending = [pending for pending in self._pending if pending[1] in needed]
        self._pending = [pending for pending in self._pending if pending[1] not in needed]
        retain = self._retain or self._behind is not None
        return self._run(pending, received, leaves, retain, kept)

    def _region(self, ends):
        """What pending gradients reach and is not blocked; and those of it that lead to one of these."""
        order, seen = [], set()
        left = [(node, False) for _, node, _ in self._pending if node not in self._blocked]
        while left:
            node, is_through = left.pop()
            if is_through:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                left.append((node, True))
                left.extend((before, False) for before in before_of(node) if before not in self._blocked and before not in seen)
        needed = set()
        for node in order:
            if node in ends or any(before in needed for before in before_of(node)):
                needed.add(node)
        return seen, needed

    def _kept(self, needed):
        """The edges by which gradients leave what is run: what PyTorch goes on at, and the function there. None: that cannot be."""
        edges = {
            edge
            for node in needed
            if _edges.arrived_of(node) is None
            for edge in node.next_functions
            if edge[0] is not None and edge[0] not in needed and edge[0] not in self._told
        }
        if self._behind is not None:
            edges = {edge for edge in edges if _edges.leaf_of(edge[0]) is None}
        if not edges:
            return []
        # PyTorch would run a function at which gradients are kept, if one leads to another; and in some versions hooks of leaves.
        if len(edges) > 1 and _leads_to_another({node for node, _ in edges}):
            return None
        if _edges.hooks_have_run() and any(_edges.has_hooks(_edges.leaf_of(node)) for node, _ in edges):
            return None
        kept = [(self._entry(edge), edge[0]) for edge in edges]
        return None if any(entry is None for entry, _ in kept) else kept

    def _entry(self, edge):
        if _edges.begins_at_edges():
            return torch.autograd.graph.GradientEdge(*edge)
        leaf = _edges.leaf_of(edge[0])
        if leaf is not None:
            return leaf
        sent, index = self._entries.get(edge, (None, None))
        return None if sent is None else sent.entries()[index]

    def _run(self, pending, received, leaves, retain, kept=()):
        """Runs up to these. Returns leaves with gradients, and what was received with gradients."""
        found = ()
        if pending and (received or leaves):
            self._keeps_at = {node for _, node in kept}
            try:
                entries, _, gradients = zip(*pending)
                inputs = (*leaves, *(entry for entry, _ in kept), *(arrived.entrance for arrived in received))
                found = _run(self, entries, gradients, inputs, retain)
            finally:
                self._keeps_at = ()
        for (entry, node), gradient in zip(kept, found[len(leaves) :]):
            if gradient is not None:
                self._pending.append((entry, node, gradient))
        went_out, self._went_out = self._went_out, {}
        out = [(arrived, went_out.get(arrived.message) or (None,) * arrived.number) for arrived in received]
        return _edges.own(leaves, found), out

    def keeps_at(self, node):
        """Called in a run: whether only a part of a gradient has come to this function, and is kept."""
        return node in self._keeps_at

    def received(self, arrived, gradients):
        """Called in a run: gradients of what was received."""
        self._went_out[arrived.message] = gradients
