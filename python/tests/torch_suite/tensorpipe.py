"""PyTorch's own tests of torch.distributed.rpc, as they come with torch, on farref (or on PyTorch: FARREF_SUITE_STOCK=1)."""

import os

if not os.environ.get("FARREF_SUITE_STOCK"):
    import farref.torch  # noqa: F401  (before torch: that is the point)

from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import GENERIC_TESTS, TENSORPIPE_TESTS, generate_tests

CLASSES = generate_tests("TensorPipe", TensorPipeRpcAgentTestFixture, GENERIC_TESTS + TENSORPIPE_TESTS, __name__)
globals().update(CLASSES)
