"""PyTorch's own tests with messages that are lost or late. They are by themselves, as with PyTorch: its backends are a list
that grows when this is imported, and others of its tests look at it."""

import os

if not os.environ.get("FARREF_SUITE_STOCK"):
    import farref.torch  # noqa: F401  (before torch: that is the point)

from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import FAULTY_AGENT_TESTS, generate_tests

CLASSES = generate_tests("Faulty", FaultyRpcAgentTestFixture, FAULTY_AGENT_TESTS, __name__)
globals().update(CLASSES)
