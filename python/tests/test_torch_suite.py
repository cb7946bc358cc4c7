"""A part of PyTorch's own tests, on farref: what `python -m torch_suite` runs as a whole."""

import importlib.util
import sys

import pytest
from testkit import run

MISSING = [name for name in ("torch", "numpy", "expecttest") if importlib.util.find_spec(name) is None]

# Some of each kind: calls, references, exceptions, timeouts, autograd, optimizer, examples, lost messages.
PART = """
ParameterServerTest ReinforcementLearningRpcTest DistOptimizerTest FaultyAgentDistAutogradTest
RpcTest.test_add RpcTest.test_all_gather RpcTest.test_async_function_multi_chained RpcTest.test_builtin_remote_self
RpcTest.test_callback_in_rpc RpcTest.test_nested_rref RpcTest.test_nested_remote RpcTest.test_py_class_method
RpcTest.test_py_multi_async_call RpcTest.test_py_raise_in_user_func RpcTest.test_py_rref_args RpcTest.test_rref_forward_chain
RpcTest.test_rref_proxy_class RpcTest.test_rref_str RpcTest.test_self_add RpcTest.test_user_rrefs_confirmed
RpcTest.test_wait_all_exit_early_python RpcTest.test_worker_info_pickle
DistAutogradTest.test_autograd_context DistAutogradTest.test_backward_multiple_round_trips
DistAutogradTest.test_backward_no_grad_on_tensor DistAutogradTest.test_backwards_nested_python_udf
DistAutogradTest.test_graph_for_builtin_call DistAutogradTest.test_nested_backward_accumulate_grads
TensorPipeAgentRpcTest.test_add_sparse TensorPipeAgentDistAutogradTest.test_backward_simple_sparse
""".split()


@pytest.mark.skipif(bool(MISSING), reason=f"not installed, so PyTorch's own tests cannot be run: {', '.join(MISSING)}")
def test_a_part_of_pytorchs_own_tests_passes():
    # More at a time than there are cores: they wait for each other.
    printed = run([sys.executable, "-m", "torch_suite", "--jobs", "3", "--again", "2", *PART])
    # Not by running none.
    assert printed.count("] passed") > 30, printed
