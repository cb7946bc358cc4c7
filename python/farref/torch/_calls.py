"""Calls: from PyTorch's layer to farref's wire, and back on the other worker."""

import threading
import time
import traceback

import torch
from farref import _core, _errors

from . import _agent, _devices, _edges, _grad, _rref, _tensors


def __getattr__(name):
    """``Future``, PyTorch's class, for results of calls: it is not there yet when PyTorch imports this."""
    if name != "Future":
        raise AttributeError(name)

    class Future(torch.futures.Future):
        """One of PyTorch's. It knows of the devices of this worker, so that callbacks run on streams which wait for results."""

        def __init__(self):
            super().__init__(devices=_agent.devices())

    Future.__module__, Future.__qualname__ = "torch.futures", "Future"
    globals()["Future"] = Future
    return Future


class _Local(threading.local):
    """What a thread keeps while it pickles and unpickles. None: nothing."""

    forks = arrived = None


_local = _Local()


# References in a message. PyTorch pickles first and calls then: in between a thread keeps them here.


def forked(fork, far):
    """A reference was pickled."""
    if _local.forks is None:
        _local.forks = {}
    _local.forks[fork] = far


def forget_forks():
    """Those that were pickled for a call that was never made."""
    _local.forks = None


def arrived(fork):
    """A reference that came with what is being unpickled."""
    try:
        return _local.arrived[fork]
    except (KeyError, TypeError):
        raise RuntimeError("Can not unpickle an RRef that did not come with a call: RRefs travel only in RPC") from None


_found = None


def _internal():
    """PyTorch's module of that name, which imports what is here."""
    global _found
    if _found is None:
        from torch.distributed.rpc import internal

        _found = internal
    return _found


# Messages: a pickle; tensors, references and seconds to wait beside it; what autograd says.


def _beside(tensors, to, late=None, maps=None, is_answer=False):
    forks, _local.forks = _local.forks, None
    if not tensors and forks is None and not late:
        return None
    return _devices.pack(tensors, to, maps, is_answer), forks, late


def message_of(value, to, later=False):
    """An answer."""
    pickle, tensors = _internal().serialize(value)
    grad = None if _grad.current_id() is None else _grad.leaving(tensors, to, False, later)
    return pickle, _beside(tensors, to, None, _agent.maps_back(), True), grad


def value_of(pickle, beside, grad, sender):
    """The value in a message."""
    if beside is None:
        return _internal().deserialize(pickle, ())
    tensors, forks, _ = beside
    tensors = _tensors.unpack(tensors) if grad is None else _grad.arriving(tensors, grad, sender)
    before, _local.arrived = _local.arrived, forks
    try:
        return _internal().deserialize(pickle, tensors)
    finally:
        _local.arrived = before


def raised_or(value):
    """Raises what a function has raised."""
    if not isinstance(value, _internal().RemoteException):
        return value
    try:
        _internal()._handle_exception(value)
        return value
    except Exception as error:
        # PyTorch's function refers to what it raises: a circle, which would keep the frames of all who wait for this.
        raised = error.with_traceback(None)
    try:
        raise raised
    finally:
        del raised


def as_torch_says(error, seconds):
    """An error of farref's, in PyTorch's words."""
    if isinstance(error, _errors.Timeout):
        limit = 0 if seconds is None else int(seconds * 1000)
        return RuntimeError(
            f"RPCErr:1:RPC ran for more than set timeout ({limit} ms) and will now be marked with an error"
        )
    if isinstance(error, RuntimeError):
        return error
    said = RuntimeError(f"{type(error).__name__}: {error}")
    said.__cause__ = error
    return said


# The caller's side


def _python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution, kind="PYTHON_CALL"):
    agent = _agent.get_current_rpc_agent()
    seconds = agent._seconds(rpcTimeoutSeconds)
    context, late = _grad.current_id(), agent._late and agent._late(kind)
    grad = None if context is None else _grad.leaving(tensors, dst._id, kind == "PYTHON_CALL")
    beside = _beside(tensors, dst._name, late, agent._maps) if tensors or late or _local.forks is not None else None
    try:
        if agent._looks:
            agent._before_sending(dst, kind, pickledPythonUDF)
        future = _core.torch_start(
            agent._worker, dst._place, seconds, isAsyncExecution, agent._info._id, pickledPythonUDF, beside, grad, context
        )
        if grad is not None:
            _edges.prepare_to_receive()
        # The name of the function is at the beginning.
        return _agent.unless_dead(future, dst) if _agent.BARRIERS_END in pickledPythonUDF[:200] else future
    except _errors.Error as error:
        error = as_torch_says(error, seconds)
    except _agent.NotSent as instead:
        error = instead.error
    future = torch.futures.Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def _remote_python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution, kind="PYTHON_REMOTE_CALL"):
    agent = _agent.get_current_rpc_agent()
    seconds = agent._seconds(rpcTimeoutSeconds)
    grad = None if _grad.current_id() is None else _grad.leaving(tensors, dst._id, kind == "PYTHON_REMOTE_CALL")
    beside = _beside(tensors, dst._name, agent._late and agent._late(kind), agent._maps)
    try:
        if agent._looks:
            agent._before_sending(dst, kind, pickledPythonUDF)
        far = _core.torch_remote(
            agent._worker, dst._name, seconds, isAsyncExecution, agent._info._id, pickledPythonUDF, beside, grad
        )
    except _errors.Error as error:
        raise as_torch_says(error, seconds) from error
    except _agent.NotSent:
        far = None
    return _rref.PyRRef._made(agent, far, dst, seconds, kind)


def answered(sender, message):
    """What a call was answered with. Called by the thread that waits for it."""
    pickle, beside, grad, _ = message
    try:
        return raised_or(value_of(pickle, beside, grad, sender))
    except (ValueError, TypeError, RuntimeError):
        raise
    except Exception as raised:
        # So it is in PyTorch: the class is kept of these only.
        raise RuntimeError(str(raised)) from None


def fetched(sender, message):
    """A copy of a far value."""
    pickle, beside, grad, _ = message
    return raised_or(value_of(pickle, beside, grad, sender))


def complete(future, ended, context):
    """Tells a future of PyTorch's what a call has ended with: its callbacks run on this thread, in the context of the call."""
    with _grad.within(context):
        try:
            value = ended.wait()
        except Exception as error:
            future.set_exception(error)
        except BaseException:  # Ctrl-C, for who reads: others are not to wait for ever
            future.set_exception(RuntimeError("the result of the call was not read to its end: reading it was interrupted"))
            raise
        else:
            future.set_result(value)


# Calls a function of Python; the second leaves the result there.
invoke_rpc_python_udf = _python_udf
invoke_remote_python_udf = _remote_python_udf


def _run_operator(name, args, kwargs):
    """Called on the other worker."""
    namespace, name = name.split("::", 1)
    return getattr(getattr(torch.ops, namespace), name)(*args, **kwargs)


def _operator(name, args, kwargs):
    internal = _internal()
    return internal.serialize(internal.PythonUDF(_run_operator, (name, args, kwargs), {}))


def invoke_rpc_builtin(dst, opName, rpcTimeoutSeconds, *args, **kwargs):
    """Calls an operator of PyTorch."""
    return _python_udf(dst, *_operator(opName, args, kwargs), rpcTimeoutSeconds, False, "SCRIPT_CALL")


def invoke_remote_builtin(dst, opName, rpcTimeoutSeconds, *args, **kwargs):
    """Calls an operator of PyTorch, and leaves the result there."""
    return _remote_python_udf(dst, *_operator(opName, args, kwargs), rpcTimeoutSeconds, False, "SCRIPT_REMOTE_CALL")


def _run_script(name, args, kwargs):
    """Called on the other worker."""
    return torch.jit._state._python_cu.find_function(name)(*args, **kwargs)


def _script(name, args, kwargs):
    from . import NotSupported

    if _contains_rref((args, kwargs)):
        raise NotSupported(
            f"farref.torch does not hand RRefs to TorchScript functions ({name}): TorchScript knows only those of PyTorch's "
            "own core. Call a Python function that calls the scripted one with the value"
        )
    internal = _internal()
    return internal.serialize(internal.PythonUDF(_run_script, (name, args, kwargs), {}))


def _contains_rref(value):
    if isinstance(value, (list, tuple)):
        return any(map(_contains_rref, value))
    if isinstance(value, dict):
        return _contains_rref(list(value.values()))
    return isinstance(value, _rref.PyRRef)


def invoke_rpc_torchscript(dstWorkerName, qualifiedNameStr, argsTuple, kwargsDict, rpcTimeoutSeconds, isAsyncExecution=False):
    """Calls a TorchScript function: by its name, in Python."""
    dst = _agent.get_current_rpc_agent().get_worker_info(dstWorkerName)
    script = _script(qualifiedNameStr, argsTuple, kwargsDict)
    return _python_udf(dst, *script, rpcTimeoutSeconds, isAsyncExecution, "SCRIPT_CALL")


def invoke_remote_torchscript(dstWorkerName, qualifiedNameStr, rpcTimeoutSeconds, isAsyncExecution, *args, **kwargs):
    """Calls a TorchScript function, and leaves the result there."""
    dst = _agent.get_current_rpc_agent().get_worker_info(dstWorkerName)
    script = _script(qualifiedNameStr, args, kwargs)
    return _remote_python_udf(dst, *script, rpcTimeoutSeconds, isAsyncExecution, "SCRIPT_REMOTE_CALL")


# The callee's side


def serve(stays, message):
    """Carries out a call, and returns the answer: a message, or what stays here. Runs on a thread that may wait, and that sees to
    what is :func:`left <_edges.make_left>` to be done when the answer has gone out."""
    _agent.started()
    _edges.make_left()
    grad = message[2]
    if grad is None and _grad.current_id() is None:
        return _answer(stays, _run(*message), message[3])
    with _grad.entered(grad):
        return _answer(stays, _run(*message), message[3], True)


def serve_later(completion, stays, message):
    """Carries out a call of a function that returns a future, and answers when that has ended."""
    agent = _agent.started()
    _edges.make_left()
    caller = message[3]
    with _grad.entered(message[2]):
        value = _run(*message)
        if isinstance(value, torch._C.Future):
            _answer_later(agent, completion, stays, value, caller)
            return
        if not isinstance(value, _internal().RemoteException):
            value = _raised(
                RuntimeError(
                    "Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
                    f"but got {type(value).__module__}.{type(value).__qualname__}"
                )
            )
        _give(completion, stays, _answer(stays, value, caller))


def _run(pickle, beside, grad, caller):
    if beside is not None and beside[2]:
        time.sleep(beside[2])
    try:
        udf = value_of(pickle, beside, grad, caller)
    except Exception as error:
        return _raised(error)
    if beside is not None and beside[1]:
        for far in beside[1].values():
            # No function sees a reference whose owner does not know of it.
            if not far.is_owner and not far.is_confirmed:
                try:
                    far.confirmed()
                except _errors.Error:
                    pass  # who uses it gets to know why
    returned = _internal()._run_function(udf)
    if _devices.local.reads is not None:
        _devices.wait_until_read()
    return returned


def _raised(error):
    who = _agent.get_current_rpc_agent()._info
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _internal().RemoteException(f"On {who}:\n{error!r}\n{trace}", type(error))


def _answer(stays, value, caller, later=False):
    if stays:
        return _rref.Held(value)
    try:
        return message_of(value, caller, later)
    except Exception as error:
        return message_of(_raised(error), caller)


def _give(completion, stays, answer):
    if stays:
        completion.returned(answer)
    else:
        completion.answered(answer)


def _answer_later(agent, completion, stays, future, caller):
    context = _grad.current_id()
    agent._count_later(1)

    def done(future):
        with _grad.within(context):
            try:
                value = future.wait()
            except Exception as error:
                value = _raised(error)
            agent._count_later(-1)
            _give(completion, stays, _answer(stays, value, caller))

    future.then(done)
