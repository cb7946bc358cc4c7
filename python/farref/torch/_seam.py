"""The modules that take the place of PyTorch's own core."""

import sys
import types


def replace(core):
    """``core`` is torch._C: what it makes its modules for RPC and autograd with makes these from now on."""

    def rpc_init():
        _put(core, "_distributed_rpc", _rpc())
        return True

    def dist_autograd_init():
        _put(core, "_distributed_autograd", _autograd())
        return True

    def faulty_agent_init():
        from . import _faulty

        _put(core, "_distributed_rpc_testing", vars(_faulty))
        return True

    core._rpc_init = rpc_init
    core._dist_autograd_init = dist_autograd_init
    if not hasattr(core, "_farref_collects"):
        from . import _futures

        core._farref_collects = True
        core._collect_all = _futures.collector(core._collect_all)
    if hasattr(core, "_faulty_agent_init"):
        core._faulty_agent_init = faulty_agent_init


def _put(core, name, names):
    if getattr(sys.modules.get(f"torch._C.{name}"), "__farref__", False):
        return
    module = types.ModuleType(f"torch._C.{name}")
    module.__farref__ = True
    for key, value in names.items():
        if not key.startswith("__"):
            setattr(module, key, value)
    setattr(core, name, module)
    sys.modules[module.__name__] = module


def _rpc():
    from . import _agent, _calls, _options, _profiling, _rref

    return {
        "_DEFAULT_INIT_METHOD": _options.DEFAULT_INIT_METHOD,
        "_DEFAULT_NUM_WORKER_THREADS": _options.DEFAULT_NUM_WORKER_THREADS,
        "_DEFAULT_RPC_TIMEOUT_SEC": _options.DEFAULT_RPC_TIMEOUT_SEC,
        "_UNSET_RPC_TIMEOUT": _options.UNSET_RPC_TIMEOUT,
        "PyRRef": _rref.PyRRef,
        "RemoteProfilerManager": _profiling.RemoteProfilerManager,
        "RpcAgent": _agent.RpcAgent,
        "RpcBackendOptions": _options.RpcBackendOptions,
        "TensorPipeAgent": _agent.TensorPipeAgent,
        "WorkerInfo": _options.WorkerInfo,
        "_TensorPipeRpcBackendOptionsBase": _options._TensorPipeRpcBackendOptionsBase,
        "_cleanup_python_rpc_handler": _nothing,
        "_delete_all_user_and_unforked_owner_rrefs": _rref.delete_all_user_and_unforked_owner_rrefs,
        "_destroy_rref_context": _rref.destroy_rref_context,
        "_disable_jit_rref_pickle": _nothing,
        "_disable_server_process_global_profiler": _profiling.disable_server_process_global_profiler,
        "_enable_jit_rref_pickle": _nothing,
        "_enable_server_process_global_profiler": _profiling.enable_server_process_global_profiler,
        "_get_current_rpc_agent": _agent.get_current_rpc_agent,
        "_invoke_remote_builtin": _calls.invoke_remote_builtin,
        "_invoke_remote_python_udf": _calls.invoke_remote_python_udf,
        "_invoke_remote_torchscript": _calls.invoke_remote_torchscript,
        "_invoke_rpc_builtin": _calls.invoke_rpc_builtin,
        "_invoke_rpc_python_udf": _calls.invoke_rpc_python_udf,
        "_invoke_rpc_torchscript": _calls.invoke_rpc_torchscript,
        "_is_current_rpc_agent_set": _agent.is_current_rpc_agent_set,
        "_reset_current_rpc_agent": _agent.reset_current_rpc_agent,
        "_rref_context_get_debug_info": _rref.debug_info,
        "_set_and_start_rpc_agent": _agent.set_and_start_rpc_agent,
        "_set_profiler_node_id": _nothing,
        "_set_rpc_timeout": _agent.set_rpc_timeout,
        "enable_gil_profiling": _agent.enable_gil_profiling,
        "get_rpc_timeout": _agent.get_rpc_timeout,
    }


def _autograd():
    from . import _grad

    return {
        "DistAutogradContext": _grad.DistAutogradContext,
        "_current_context": _grad.current_context,
        "_get_debug_info": _grad.debug_info,
        "_get_max_id": _grad.get_max_id,
        "_init": _grad.init,
        "_is_valid_context": _grad.is_valid_context,
        "_new_context": _grad.new_context,
        "_release_context": _grad.release_context,
        "_retrieve_context": _grad.retrieve_context,
        "backward": _grad.backward,
        "get_gradients": _grad.get_gradients,
    }


def _nothing(*_):
    """What PyTorch's core has to do here, farref has not."""
