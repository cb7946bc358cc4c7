"""Calls of plain functions, without what PyTorch's layer looks at before.

What it looks at, whether a function is an operator, a scripted or a decorated one and whether the legacy profiler is on, is looked at
here, too; but for the most common call, of a plain function on a worker by its name, in a few steps. Everything else goes the whole
way. The empty call gains as much by it as a step of autograd: all of it comes right after a wait.
"""

import types

import torch

_function = types.FunctionType


def install(api, internal):
    """``api`` and ``internal`` are torch.distributed.rpc's modules of that name."""
    whole = api._invoke_rpc
    if hasattr(whole, "_farref"):
        return
    # Called by every version's: it makes the table.
    find_builtin = torch.jit._builtins._find_builtin
    is_profiling, udf, pickler, agent = (
        torch.autograd._profiler_enabled,
        internal.PythonUDF,
        internal._internal_rpc_pickler,
        api._get_current_rpc_agent,
    )

    def _invoke_rpc(to, func, rpc_type, args=None, kwargs=None, rpc_timeout=api.UNSET_RPC_TIMEOUT):
        # What decorated functions are known by is in their dictionaries.
        if (
            type(func) is not _function
            or type(to) is not str
            or func.__dict__
            or is_profiling()
            or api._default_pickler is not pickler
            or find_builtin(func) is not None
        ):
            return whole(to, func, rpc_type, args, kwargs, rpc_timeout)
        pickled, tensors = pickler.serialize(udf(func, args or (), kwargs or {}))
        return api._invoke_rpc_python_udf(agent().get_worker_info(to), pickled, tensors, rpc_timeout, False)

    _invoke_rpc._farref = True
    api._invoke_rpc = _invoke_rpc
