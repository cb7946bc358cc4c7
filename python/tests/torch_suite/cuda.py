"""PyTorch's own tests of torch.distributed.rpc with tensors on GPUs, as they come with torch. Those that need more GPUs than there are
are skipped by PyTorch."""

import os

if not os.environ.get("FARREF_SUITE_STOCK"):
    import farref.torch  # noqa: F401  (before torch: that is the point)

from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import GENERIC_CUDA_TESTS, TENSORPIPE_CUDA_TESTS, generate_tests

CLASSES = generate_tests("TensorPipe", TensorPipeRpcAgentTestFixture, GENERIC_CUDA_TESTS + TENSORPIPE_CUDA_TESTS, __name__)
globals().update(CLASSES)
