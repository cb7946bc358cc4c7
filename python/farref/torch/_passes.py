"""Backward passes through the graphs of all workers that took part in a context.

Workers tell each other, in one message, which of the tensors that came from there will get gradients, and the gradients that are
known. From the loss on each looks how far its graph reaches, so that whoever sent something hears of it before its gradients come.
Results that the loss does not depend on are heard of by nobody.

Invariants:

- **PS-1** A worker answers the message that draws it into a pass when it is at rest: when it neither computes nor has messages that
  are not answered. All others it answers at once. So the one that began knows when all are at rest (Dijkstra and Scholten).
- **PS-2** A part of a graph is run when the gradients are there of all that reaches it (GR-2). As long as it is not known which
  sends get gradients, all may. When all workers are at rest it is known: those that nobody has heard of get none. Who waits for such
  is told by the one that began, and every message says so from then on. So a pass is at rest twice at most.
- **PS-3** A message has one gradient message, and to a worker there is one for all that become known together.
- **PS-4** No thread waits for a pass but that of the program which began it, which waits for one of the workers that it has drawn in
  instead of being told, and one there.
- **PS-5** The first error on any worker is that of the pass. A worker that is gone is an error if gradients go through it, and otherwise
  is not noticed.
- **PS-6** Where all gradients that can come to a worker come at once, and it is known at once where they go on (from the program to one
  other worker, or no further), nobody keeps account of the pass there: the graph is run. So it is with one remote layer.
"""

import collections
import itertools
import pickle
import struct
import threading

from farref import _core

from . import _agent, _devices, _edges, _grad, _graph, _tensors

_numbers = itertools.count()
_rests = itertools.count()
# Passes that have begun here and are not over, by their numbers.
_begun = set()

# What a worker is told: whether no sends will be heard of but those that were, which will get gradients, and the gradients of
# such by message. ``roots``: it begins here, with these and their gradients. ``tell``: these are to hear that no more will be.
_Parcel = collections.namedtuple("_Parcel", "is_known expected gradients roots tell", defaults=((), ()))


class Part:
    """One worker's part in one pass. What is said of it holds under the context's lock."""

    def __init__(self, context, number, retain, over_below):
        self._context = context
        self._number = number
        self._retain = retain
        # Passes of the same worker's with lower numbers are over.
        self._over_below = over_below
        self._agent = _agent.get_current_rpc_agent()
        self._graph = _graph.Graph(dict(context._tensors), retain)
        self._lock = context._lock
        self._inbox = []
        # Whether a thread is at the graph.
        self._is_busy = False
        self._unanswered = 0
        # Whoever has drawn this worker in, until it is at rest.
        self._parent = None
        self._error = None
        # Which workers behind had gradients, at their latest rest, that they could not go on with.
        self._waiting = {}
        self._has_waited = False
        # The program's thread, if the pass has begun here, and what it is going to send.
        self._root = self._last = None
        self._is_known = False

    @property
    def is_under_way(self):
        """Whether somebody waits for it to be at rest."""
        return self._parent is not None

    def _work(self):
        """Goes on as long as something has come."""
        with _grad.within(self._context._number):
            while True:
                with self._lock:
                    parcels, self._inbox = self._inbox, []
                    if not parcels:
                        self._is_busy = False
                        at_rest = self._at_rest()
                        break
                try:
                    if self._error is None:
                        self._advance(parcels)
                except BaseException as error:
                    # Of a hook, maybe. Whoever waits for this worker has to be told.
                    self._error = self._error or error
        at_rest()

    def _advance(self, parcels):
        graph = self._graph
        expected, told = collections.defaultdict(list), set()
        found = []
        for parcel in parcels:
            if parcel.roots:
                found += graph.begin(*parcel.roots)
            # Messages may be served in another order than they were sent in.
            found += graph.expect([*parcel.expected, *(message for message, _ in parcel.gradients)])
            told.update(parcel.tell)
            self._is_known = self._is_known or parcel.is_known
        for parcel in parcels:
            for message, gradients in parcel.gradients:
                graph.feed(message, gradients)
        if self._is_known:
            graph.expect_no_more()
        leaves, out = graph.advance()
        self._context.add(leaves)
        gradients, now = collections.defaultdict(list), set()
        for arrived, of in out:
            gradients[arrived.sender].append((arrived.message, of))
            now.add(arrived.message)
        for arrived in found:
            if arrived.message not in now:
                expected[arrived.sender].append(arrived.message)
        for to in told | expected.keys() | gradients.keys():
            self._send(to, _Parcel(self._is_known, expected[to], gradients[to]))

    def _send(self, to, parcel):
        agent = self._agent
        if to == agent._info.id:
            with self._lock:
                self._inbox.append(parcel)
            return
        with self._lock:
            self._unanswered += 1
        try:
            said = self._context._number, self._number, self._retain, self._over_below, parcel
            if threading.current_thread() is self._root and self._last is None:
                self._last = to, said
                return
            tell(agent, to, said, lambda waiting, error: self._answered(to, waiting, error))
        except Exception as error:
            self._answered(to, None, error)

    def wait_for_last(self):
        """Called by the program's thread, which has nothing else to do: waits for one of the answers itself."""
        while self._last is not None:
            (to, said), self._last = self._last, None
            try:
                waiting, error = ask(self._agent, to, said), None
            except Exception as raised:
                waiting, error = None, raised
            self._answered(to, waiting, error)

    def _answered(self, by, waiting, error):
        with self._lock:
            self._unanswered -= 1
            _merge(self._waiting, waiting or {})
            if error is not None and self._error is None:
                self._error = _on_the_way(by, error)
            at_rest = self._at_rest()
        at_rest()

    def _at_rest(self):
        """What is to be done, without the lock, if it is (PS-1)."""
        if self._is_busy or self._unanswered or self._inbox or self._parent is None:
            return _nothing
        parent, self._parent = self._parent, None
        error, waiting = self._error, self._waiting
        self._waiting = {}
        if self._graph.waits or self._has_waited:
            self._has_waited = True
            _merge(waiting, {self._agent._info.id: (next(_rests), self._graph.waits)})
        if error is not None:
            return lambda: parent.raised(error)
        return lambda: parent.sent(waiting)


def _nothing():
    pass


def _merge(waiting, others):
    """What workers have said at their rests: the latest of each counts."""
    for worker, said in others.items():
        waiting[worker] = max(said, waiting.get(worker, said))


def _deliver(context, number, retain, over_below, parcel, parent):
    with context._lock:
        part = context._parts.get(number)
        if part is None:
            for former in [former for former in context._parts if former[0] == number[0] and former[1] < over_below]:
                del context._parts[former]
            part = context._parts[number] = Part(context, number, retain, over_below)
        part._inbox.append(parcel)
        is_first = part._parent is None
        if is_first:
            part._parent = parent
        is_mine, part._is_busy = not part._is_busy, True
        if parcel.roots or parcel.tell:
            part._root = threading.current_thread()
    if not is_first:
        parent.sent(None)
    if is_mine:
        part._work()
    return part


# Messages: to be told of the answer, or to wait for it. The latter is faster, and gradients go as the tensors of calls do.


def tell(agent, to, said, then):
    """Tells a worker. ``then`` gets the answer: who has gradients there that it could not go on with."""
    *said, parcel = said
    gradients = [
        (message, [None if gradient is None else _devices.pack_gradient(gradient) for gradient in of])
        for message, of in parcel.gradients
    ]
    peer = agent._peer(agent.get_worker_info(to))
    _core.start_deferred(peer, None, serve, (*said, parcel.is_known, parcel.expected, gradients), then)


def serve(completion, context_id, number, retain, over_below, is_known, expected, gradients):
    """Told by another worker of a pass."""
    _agent.started()
    context = _grad.retrieve_context(context_id)
    _deliver(context, tuple(number), retain, over_below, _Parcel(is_known, expected, gradients), completion)


# What most often is said, besides gradients: one message that has them all. It begins as no pickle does.
_ONE = struct.Struct("<BQIQ?Q?Q")
_IS_ONE = 1


def ask(agent, to, said, meanwhile=None):
    """Tells a worker, calls ``meanwhile``, and returns the answer."""
    *said, parcel = said
    info = agent.get_worker_info(to)
    tensors, gradients = [], []
    for message, of in parcel.gradients:
        gradients.append((message, [gradient is not None for gradient in of]))
        tensors += [gradient for gradient in of if gradient is not None]
    if len(gradients) == 1 and not parcel.expected and all(gradients[0][1]):
        context_id, number, retain, over_below = said
        said = _ONE.pack(_IS_ONE, context_id, *number, retain, over_below, parcel.is_known, gradients[0][0])
    else:
        said = pickle.dumps((*said, parcel.is_known, parcel.expected, gradients))
    beside = (_devices.pack_gradients(tensors), None, None) if tensors else None
    answer = _core.torch_gradients(agent._worker, info._name, agent._info._id, said, beside, meanwhile)
    return pickle.loads(answer) if answer else None


_NOTHING = b"", None, None


def serve_gradients(said, beside, _, sender):
    """Told by another worker, which waits: this thread does, too."""
    _agent.started()
    _edges.make_left()
    tensors = () if beside is None else _tensors.unpack(beside[0])
    if said[0] == _IS_ONE:
        _, context_id, worker, number, retain, over_below, is_known, message = _ONE.unpack(said)
        number, expected, gradients = (worker, number), (), [(message, tensors)]
    else:
        context_id, number, retain, over_below, is_known, expected, gradients = pickle.loads(said)
        tensors = iter(tensors)
        gradients = [(message, [next(tensors) if is_there else None for is_there in of]) for message, of in gradients]
    context = _grad.retrieve_context(context_id)
    if not expected and _is_all(context, number, gradients) and _run_at_once(context, gradients, retain):
        return _NOTHING
    rest = _Rest()
    _deliver(context, number, retain, over_below, _Parcel(is_known, expected, gradients), rest)
    waiting = rest.wait()
    return (pickle.dumps(waiting), None, None) if waiting else _NOTHING


def _is_all(context, number, gradients):
    """Whether these are all the gradients that can come here in a pass (PS-6)."""
    with context._lock:
        return (
            number not in context._parts
            and len(context._tensors) == len(gradients)
            and all([message in context._tensors for message, _ in gradients])
        )


def _run_at_once(context, gradients, retain):
    """Runs the whole graph of this worker, if it ends here (PS-6)."""
    sends = [context._tensors[message] for message, _ in gradients]
    if len(sends) == 1:
        leaves, received = sends[0].ends()
    else:
        leaves, received = _edges.ends_of([node for sent in sends for node, _ in sent.edges])
    if received:
        return False
    begin = [
        (entry, gradient)
        for sent, (_, of) in zip(sends, gradients)
        for entry, gradient in zip(sent.entries(), sent.at_home(of))
        if gradient is not None
    ]
    with _grad.passing(context):
        found, _ = _graph.run_whole(begin, leaves, (), retain)
        context.add(_edges.own(leaves, found))
    return True


def _on_the_way(by, error):
    """Each worker on the way says where it was."""
    said = RuntimeError(f"Error on Node {by}: {error}")
    said.__cause__ = error
    return said


class _Rest:
    """What the program waits for."""

    __slots__ = ("_is_over", "_event", "_error", "_waiting")

    def __init__(self):
        self._is_over = False
        # There if somebody waits: most often it is over before.
        self._event = self._error = self._waiting = None

    def sent(self, waiting):
        self._waiting = waiting
        self._end()

    def raised(self, error):
        self._error = error
        self._end()

    def _end(self):
        # Who waits looks at this after it has left its event.
        self._is_over = True
        if self._event is not None:
            self._event.set()

    def wait(self):
        if not self._is_over:
            event = self._event = threading.Event()
            if not self._is_over:
                event.wait()
        if self._error is not None:
            raise self._error
        return self._waiting


def backward(context, roots, gradients, retain):
    """From these roots to the leaves, here and on all workers that they depend on. Returns when all are through."""
    agent = _agent.get_current_rpc_agent()
    me = agent._info._id
    number = next(_numbers)
    _begun.add(number)
    try:
        waiting = None
        if not context._tensors:
            # Nothing was sent, so nothing can come back.
            waiting = _begin_at_once(agent, context, (me, number), roots, gradients, retain)
        if waiting is None:
            waiting = _rest_of(context, (me, number), retain, _Parcel(False, (), (), roots=(roots, gradients)))
        if waiting:
            waiting = _rest_of(context, (me, number), retain, _Parcel(True, (), (), tell=waiting))
        if waiting:
            raise RuntimeError(f"the backward pass came to rest on workers {waiting} before all gradients were there")
    except RuntimeError:
        raise
    except Exception as error:
        raise RuntimeError(f"Error on Node {me}: {error}") from error
    finally:
        _begun.remove(number)
        with context._lock:
            context._parts.pop((me, number), None)


def _begin_at_once(agent, context, number, roots, gradients, retain):
    """Begins where no gradients can come back to, if they go on to one worker at most (PS-6). Otherwise returns None."""
    leaves, received = _edges.ends_of([root.grad_fn for root in roots])
    senders = {arrived.sender for arrived in received}
    if len(senders) > 1 or number[0] in senders:
        return None
    with _grad.passing(context):
        found, out = _graph.run_whole(zip(roots, gradients), leaves, received, retain)

        def keep():
            context.add(_edges.own(leaves, found))

        # The other worker can begin meanwhile; unless hooks of leaves may change what it gets.
        is_first = not out or any(leaf._backward_hooks for leaf in leaves)
        if is_first:
            keep()
        if not out:
            return ()
        (to,) = senders
        parcel = _Parcel(False, (), [(arrived.message, of) for arrived, of in out])
        try:
            return _who_waits(ask(agent, to, (context._number, number, retain, min(_begun), parcel), None if is_first else keep))
        except Exception as error:
            raise _on_the_way(to, error) from error


def _rest_of(context, number, retain, parcel):
    rest = _Rest()
    _deliver(context, number, retain, min(_begun), parcel, rest).wait_for_last()
    return _who_waits(rest.wait())


def _who_waits(said):
    return sorted(worker for worker, (_, waits) in said.items() if waits) if said else ()
