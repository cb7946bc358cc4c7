"""RRefs: PyTorch's class on farref's references."""

import itertools
import threading
import time
import weakref
from datetime import timedelta

from farref import _core, _cuda, _errors

from . import _agent, _calls, _grad
from ._options import UNSET_RPC_TIMEOUT

_numbers = itertools.count()
# All that refer to something on another worker, or to something that others know of.
_shared = weakref.WeakSet()
_shared_lock = threading.Lock()


class Held:
    """A value that others refer to, on the worker that has it."""

    __slots__ = ("value", "__weakref__")

    def __init__(self, value):
        self.value = value

    def ready(self):
        """Called to know that the value is there."""

    def fetched(self, _, late, grad, caller):
        """A copy of it, for another worker: an answer. ``late``: after so many seconds, if any."""
        if late:
            time.sleep(late)
        if grad is None and _grad.current_id() is None:
            return _calls.message_of(self.value, caller)
        with _grad.entered(grad):
            return _calls.message_of(self.value, caller)

    def backward(self, grad, context, retain_graph):
        """A backward pass that begins with it."""
        with _grad.within(context):
            _backward_here(self.value, context, retain_graph)


class PyRRef:
    """A class encapsulating a reference to a value of some type on a remote worker. This handle will keep the referenced
    remote value alive on the worker."""

    def __init__(self, value, type_hint=None):
        agent = _agent.get_current_rpc_agent()
        self._begin(agent, None, agent._info)
        self._held = Held(value)
        self._number = (self._agent._info.id, next(_numbers))

    # What most of them never get to know.
    _held = _fork = _type = _profiling = _until = _created = _limit = None
    _deleted = _failed = False
    _fetch = "PYTHON_RREF_FETCH_CALL"

    def _begin(self, agent, far, owner):
        self._agent = agent
        self._far = far
        self._owner = owner
        self._is_mine = owner._id == agent._info._id

    @classmethod
    def _made(cls, agent, far, owner, timeout, kind):
        """What ``remote`` has left with another worker, or with this one."""
        self = PyRRef.__new__(PyRRef)
        self._begin(agent, far, owner)
        self._number = (agent._info._id, next(_numbers))
        if not self._is_mine:
            self._fork = (agent._info._id, next(_numbers))
        if timeout is not None:
            self._until = time.monotonic() + timeout
            self._limit = timeout
        if far is None:
            self._failed = True
        if kind == "SCRIPT_REMOTE_CALL":
            self._fetch = "SCRIPT_RREF_FETCH_CALL"
        if agent._is_faulty and far is not None:
            self._get_future().then(self._look)
        self._register()
        return self

    def _look(self, created):
        try:
            created.wait()
        except Exception:
            self._failed = True

    def _register(self):
        with _shared_lock:
            _shared.add(self)

    def is_owner(self):
        """Returns whether or not the current node is the owner of this ``RRef``."""
        return self._is_mine

    def confirmed_by_owner(self):
        """Returns whether this ``RRef`` has been confirmed by the owner. ``OwnerRRef`` always returns true, while
        ``UserRRef`` only returns true when the owner knowns about this ``UserRRef``."""
        return self.is_owner() or self._deleted or self._failed or self._far.is_confirmed

    def owner(self):
        """Returns worker information of the node that owns this ``RRef``."""
        return self._owner

    def owner_name(self):
        """Returns worker name of the node that owns this ``RRef``."""
        return self._owner.name

    def to_here(self, timeout=UNSET_RPC_TIMEOUT):
        """Blocking call that copies the value of the RRef from the owner to the local node and returns it. If the current
        node is the owner, returns a reference to the local value."""
        if self.is_owner():
            return self.local_value()
        self._check_there("to_here()")
        agent = self._agent
        seconds = agent._seconds(timeout)
        owner = self._owner._id
        grad = None if _grad.current_id() is None else _grad.leaving(None, owner, forced=True)
        late = agent._late and agent._late(self._fetch) or None
        began = time.monotonic()
        try:
            return _core.torch_fetch(self._far, owner, seconds, agent._info._id, late, grad)
        except _errors.Timeout as error:
            if self._until is not None and time.monotonic() >= self._until and (
                seconds is None or time.monotonic() - began < seconds
            ):
                raise self._never_made() from error
            raise _calls.as_torch_says(error, seconds) from error
        except _errors.Error as error:
            raise _calls.as_torch_says(error, seconds) from error

    def local_value(self):
        """If the current node is the owner, returns a reference to the local value. Otherwise, throws an exception."""
        if not self.is_owner():
            number = "GloballyUniqueId(created_on={}, local_id={})"
            which = f"UserRRef(rref_id={number.format(*self._number)}, fork_id={number.format(*self._fork)})"
            raise RuntimeError(
                f"For {which}, can't call localValue() on user {self._agent._info}. Call it on owner {self._owner}"
            )
        if self._failed:
            raise self._never_made()
        if self._held is None:
            try:
                self._held = self._far.timeout(None).local_value()
            except _errors.Timeout as error:
                raise self._never_made() from error
            except _errors.Error as error:
                raise _calls.as_torch_says(error, None) from error
        return _calls.raised_or(self._held.value)

    def rpc_sync(self, timeout=UNSET_RPC_TIMEOUT):
        """Create a helper proxy to easily launch an ``rpc_sync`` using the owner of the RRef as the destination to run
        functions on the object referenced by this RRef."""
        return self._proxy("rpc_sync", timeout)

    def rpc_async(self, timeout=UNSET_RPC_TIMEOUT):
        """Create a helper proxy to easily launch an ``rpc_async`` using the owner of the RRef as the destination to run
        functions on the object referenced by this RRef."""
        return self._proxy("rpc_async", timeout)

    def remote(self, timeout=UNSET_RPC_TIMEOUT):
        """Create a helper proxy to easily launch a ``remote`` using the owner of the RRef as the destination to run
        functions on the object referenced by this RRef."""
        return self._proxy("remote", timeout)

    def backward(self, dist_autograd_ctx_id=-1, retain_graph=False):
        """Runs the backward pass using the RRef as the root of the backward pass. If ``dist_autograd_ctx_id`` is provided,
        we perform a distributed backward pass using the provided ctx_id starting from the owner of the RRef."""
        if self.is_owner():
            return _backward_here(self.local_value(), dist_autograd_ctx_id, retain_graph)
        if dist_autograd_ctx_id == -1:
            raise RuntimeError("User RRefs require 'dist_autograd_ctx_id' to be specified")
        self._check_there("backward()")
        seconds = self._agent._seconds(UNSET_RPC_TIMEOUT)
        try:
            self._far.timeout(seconds).call.backward((dist_autograd_ctx_id,), dist_autograd_ctx_id, retain_graph)
        except _errors.Error as error:
            raise _calls.as_torch_says(error, seconds) from error
        except Exception as error:
            raise RuntimeError(f"Error on Node {self._owner.id}: {error}") from error

    def _proxy(self, name, timeout):
        import torch.distributed.rpc as rpc
        from torch.distributed.rpc.rref_proxy import RRefProxy

        return RRefProxy(self, getattr(rpc, name), timeout)

    def _is_late(self):
        """Whether the time to make it is over, and its owner has not said that it knows of it."""
        if self._until is None or self._far is None or time.monotonic() < self._until:
            return False
        return not self._far.is_confirmed

    def _never_made(self):
        return RuntimeError(
            "RRef creation via rpc.remote() timed out, and it is possible that the RRef on the owner node does not exist."
        )

    def _check_there(self, use):
        if self._failed or self._is_late():
            raise self._never_made()
        if self._deleted:
            raise RuntimeError(f"{self} has been deleted. Cannot call {use} on it after deletion.")

    # What PyTorch's own layer uses

    def _serialize(self):
        if self._failed:
            raise self._never_made()
        if self._deleted and not self.is_owner():
            raise RuntimeError(f"{self} has been deleted. Cannot call fork an UserRRef after deletion.")
        if self._far is None:
            self._far = self._agent._worker.rref(self._held)
            self._register()
        fork = (self._agent._info.id, next(_numbers))
        _calls.forked(fork, self._far)
        return (self._owner.id, *self._number, *fork, self._agent._info.id, "PyObject")

    @staticmethod
    def _deserialize(data):
        owner, number, fork = data[0], (data[1], data[2]), (data[3], data[4])
        agent = _agent.get_current_rpc_agent()
        self = PyRRef.__new__(PyRRef)
        self._begin(agent, _calls.arrived(fork), agent.get_worker_info(owner))
        self._number = number
        if not self.is_owner():
            self._fork = fork
        self._register()
        return self

    def _get_type(self, timeout=UNSET_RPC_TIMEOUT, blocking=True):
        from torch.distributed.rpc import api

        if self._type is None:
            if self.is_owner():
                self._type = api._rref_typeof_on_owner(self, blocking)
            else:
                self._type = api._rref_typeof_on_user(self, timeout, blocking)
        import torch

        known, is_future = self._type, isinstance(self._type, torch._C.Future)
        if blocking and is_future:
            return known.wait()
        if not blocking and not is_future:
            known = torch.futures.Future()
            known.set_result(self._type)
        return known

    def _get_future(self):
        import torch

        if self._created is None:
            self._created = torch.futures.Future()
            if self._failed:
                self._created.set_exception(RuntimeError("RPCErr:2:Send failed intentionally"))
            elif self._far is None or self._deleted:
                self._created.set_result(None)
            else:
                created = self._created
                # When the time is up the owner knows whether there is a value.
                left = None if self._until is None else self._until - time.monotonic()
                left = left if left is not None and left > 0 else None

                def then(_, error):
                    if error is None:
                        created.set_result(None)
                    else:
                        if isinstance(error, _errors.Timeout):
                            self._failed = True
                        created.set_exception(_calls.as_torch_says(error, self._limit))

                _core.invoke_deferred(self._far, left, "ready", (), then)
        return self._created

    def _get_profiling_future(self):
        return self._profiling

    def _set_profiling_future(self, future):
        self._profiling = future

    def _release(self):
        """Nobody holds the value for this any more."""
        if not self._deleted:
            self._deleted = True
            if self.is_owner() and self._held is None:
                try:
                    self._held = self._far.timeout(0.0).local_value()
                except Exception:
                    pass
            self._far = None

    def __reduce_ex__(self, protocol):
        raise RuntimeError("Can not pickle rref in python pickler, rref can only be pickled when using RPC")

    def __deepcopy__(self, memo):
        return self.__reduce_ex__(4)

    def __repr__(self):
        number = "GloballyUniqueId(created_on={}, local_id={})"
        if self.is_owner():
            return f"OwnerRRef({number.format(*self._number)})"
        return f"UserRRef(RRefId = {number.format(*self._number)}, ForkId = {number.format(*self._fork)})"

    def __str__(self):
        """Returns which RRef this is."""
        return self.__repr__()


def _backward_here(value, context, retain_graph):
    import torch

    if not isinstance(value, torch.Tensor):
        raise RuntimeError("RRef should contain a tensor for .backward()")
    if context == -1:
        value.backward(retain_graph=retain_graph)
    else:
        _grad.backward(context, [value], retain_graph)


def shared(agent):
    """Values of this worker that others hold references to."""
    me = agent._info.name
    found = []
    for reference in agent._worker.snapshot()["references"]:
        others = [holder for holder in reference["holders"] if holder != me]
        # Memory of tensors that is being copied is nothing that the program refers to.
        if reference["owner"] == me and others and not _cuda.is_lending(reference["id"]):
            found.append((reference["id"], others))
    return found


def look_for_leaks():
    """Writes down which values of this worker others refer to. Called at the end, here and by those who do."""
    agent = _agent.started()
    agent._leaks.update(shared(agent))


def tell_owners(agent):
    """What is not dropped by the end is a leak: its owner gets to know of it before it is dropped for the program."""
    for owner in {rref._owner for rref in _of(agent) if not (rref._is_mine or rref._deleted or rref._failed)}:
        try:
            agent._peer(owner).timeout(10.0).call(look_for_leaks)
        except _errors.Error:
            pass  # it is gone, and its values with it


def _of(agent):
    with _shared_lock:
        return [rref for rref in _shared if rref._agent is agent]


def release_all(agent):
    """Drops the references of this worker."""
    for rref in _of(agent):
        rref._release()
    _calls.forget_forks()


def delete_all_user_and_unforked_owner_rrefs(timeout=timedelta(seconds=100)):
    """Drops the references of this worker, and waits until the others have dropped theirs to its values."""
    agent = _agent.get_current_rpc_agent()
    release_all(agent)
    until = time.monotonic() + timeout.total_seconds()
    while shared(agent) and time.monotonic() < until:
        time.sleep(0.01)


def destroy_rref_context(ignore_leaks):
    """Says which values others still hold references to."""
    agent = _agent.get_current_rpc_agent()
    leaks, agent._leaks = agent._leaks, {}
    if leaks and not ignore_leaks:
        lines = "\n".join(f"Leaking RRef {number} with fork Id on {', '.join(holders)}" for number, holders in leaks.items())
        raise RuntimeError(
            f"{lines}\n\nThis is likely because the application code still holds references to RRef instances."
        )


def debug_info():
    """Numbers of references, as PyTorch names them."""
    agent = _agent.get_current_rpc_agent()
    owned = shared(agent)
    pending = sum(not rref.confirmed_by_owner() for rref in _of(agent))
    info = {
        "num_owner_rrefs": len(owned),
        "num_pending_futures": 0,
        "num_pending_users": pending,
        "num_forks": sum(len(holders) for _, holders in owned),
    }
    return {key: str(value) for key, value in info.items()}
