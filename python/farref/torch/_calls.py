"""Calls: from PyTorch's layer to farref's wire, and back on the other worker."""

import threading
import traceback

import torch
from farref import _core, _errors

from . import _agent, _grad, _rref, _tensors

_local = threading.local()


# References in a message. PyTorch pickles first and calls then: in between a thread keeps them here.


def forked(fork, far):
    """A reference was pickled."""
    if getattr(_local, "forks", None) is None:
        _local.forks = {}
    _local.forks[fork] = far


def forget_forks():
    """Those that were pickled for a call that was never made."""
    _local.forks = None


def _take_forks():
    forks = getattr(_local, "forks", None)
    _local.forks = None
    return forks


def arrived(fork):
    """A reference that came with what is being unpickled."""
    try:
        return _local.arrived[fork]
    except (AttributeError, KeyError, TypeError):
        raise RuntimeError("Can not unpickle an RRef that did not come with a call: RRefs travel only in RPC") from None


def _internal():
    from torch.distributed.rpc import internal

    return internal


# Messages: a pickle, tensors, references, and what autograd says.


def _message(pickle, tensors, to, forced):
    forks = _take_forks()
    grad = _grad.leaving(tensors, to.id, forced)
    return pickle, _tensors.pack(tensors, to.name), forks, grad


def message_of(value, to):
    """An answer."""
    pickle, tensors = _internal().serialize(value)
    forks = _take_forks()
    grad = _grad.leaving(tensors, to, forced=False)
    return pickle, _tensors.pack(tensors, to), forks, grad


def value_of(message, sender):
    """The value in a message."""
    pickle, tensors, forks, grad = message
    tensors = _grad.arriving(_tensors.unpack(tensors), grad, sender)
    before = getattr(_local, "arrived", None)
    _local.arrived = forks
    try:
        return _internal().deserialize(pickle, tensors)
    finally:
        _local.arrived = before


def raised_or(value):
    """Raises what a function has raised."""
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
    return RuntimeError(f"{type(error).__name__}: {error}")


# The caller's side


def _python_udf(dst, pickle, tensors, timeout, is_async, kind="PYTHON_CALL"):
    agent = _agent.get_current_rpc_agent()
    seconds = agent._seconds(timeout)
    future = torch.futures.Future()
    context = _grad.current_id()

    def then(answer, error):
        with _grad.within(context):
            try:
                if error is not None:
                    raise as_torch_says(error, seconds)
                value = raised_or(value_of(answer, dst.id))
            except (ValueError, TypeError) as raised:
                agent._count("_calls", -1)
                future.set_exception(raised)
            except Exception as raised:
                agent._count("_calls", -1)
                # So it is in PyTorch: the class is kept of these two only.
                future.set_exception(raised if isinstance(raised, RuntimeError) else RuntimeError(str(raised)))
            else:
                agent._count("_calls", -1)
                future.set_result(value)

    message = _message(pickle, tensors, dst, kind == "PYTHON_CALL")
    agent._count("_calls", 1)
    try:
        agent._send(dst, kind, seconds, (agent._info.id, False, is_async, *message), then)
    except _errors.Error as error:
        agent._count("_calls", -1)
        future.set_exception(as_torch_says(error, seconds))
    except BaseException:
        agent._count("_calls", -1)
        raise
    return future


def _remote_python_udf(dst, pickle, tensors, timeout, is_async, kind="PYTHON_REMOTE_CALL"):
    agent = _agent.get_current_rpc_agent()
    seconds = agent._seconds(timeout)
    message = _message(pickle, tensors, dst, kind == "PYTHON_REMOTE_CALL")
    try:
        far = agent._leave(dst, kind, seconds, (agent._info.id, True, is_async, *message))
    except _errors.Error as error:
        raise as_torch_says(error, seconds) from error
    return _rref.PyRRef._made(agent, far, dst, seconds, kind)


def invoke_rpc_python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution):
    """Calls a function of Python."""
    return _python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution)


def invoke_remote_python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution):
    """Calls a function of Python, and leaves the result there."""
    return _remote_python_udf(dst, pickledPythonUDF, tensors, rpcTimeoutSeconds, isAsyncExecution)


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


def serve(completion, caller, stays, is_async, pickle, tensors, forks, grad):
    """Carries out a call. Runs on a thread that may wait."""
    agent = _agent.started()
    agent._count("_served", 1)
    try:
        with _grad.entered(grad):
            value = _run(caller, pickle, tensors, forks, grad)
            if is_async and not isinstance(value, _internal().RemoteException):
                if isinstance(value, torch._C.Future):
                    _answer_later(agent, completion, caller, stays, value)
                    return
                value = _raised(
                    RuntimeError(
                        "Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
                        f"but got {type(value).__module__}.{type(value).__qualname__}"
                    )
                )
            _answer(completion, caller, stays, value)
    finally:
        agent._count("_served", -1)


def _run(caller, pickle, tensors, forks, grad):
    try:
        udf = value_of((pickle, tensors, forks, grad), caller)
    except Exception as error:
        return _raised(error)
    for far in (forks or {}).values():
        # No function sees a reference whose owner does not know of it.
        if not far.is_owner and not far.is_confirmed:
            try:
                far.confirmed()
            except _errors.Error:
                pass  # who uses it gets to know why
    return _internal()._run_function(udf)


def _raised(error):
    who = _agent.get_current_rpc_agent()._info
    trace = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    return _internal().RemoteException(f"On {who}:\n{error!r}\n{trace}", type(error))


def _answer(completion, caller, stays, value):
    if stays:
        completion.returned(_rref.Held(value))
        return
    try:
        completion.sent(message_of(value, caller))
    except Exception as error:
        completion.sent(message_of(_raised(error), caller))


def _answer_later(agent, completion, caller, stays, future):
    context = _grad.current_id()
    agent._count("_served_later", 1)

    def done(future):
        with _grad.within(context):
            try:
                value = future.wait()
            except Exception as error:
                value = _raised(error)
            agent._count("_served_later", -1)
            _answer(completion, caller, stays, value)

    future.then(done)
