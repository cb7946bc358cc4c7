"""Groups for tests, and the order of the tests. Each group ends with its test, and fails it if something is left behind."""

import pytest

import farref
from testkit import Group

# Tests that take longest begin first: the others fill the other processes of pytest meanwhile.
LONGEST_FIRST = ["test_torch_suite", "test_torch_defects", "test_chaos", "test_torch_autograd", "test_bench", "test_examples"]
# One process of pytest runs all tests of a group, one after the other: those that share what a fixture has started or
# imported, and those that use a GPU, some of which measure how much of its memory is free.
GROUPS = {
    "test_bench.py::": "gpu",
    "test_cuda.py::": "gpu",
    "test_cuda_sharing.py::": "pretended gpu",
    "test_torch_autograd.py::test_law": "laws",
    "test_torch_defects.py::": "defects",
}


def pytest_collection_modifyitems(items):
    """Brings the longest tests to the front."""
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Gives each test to the next process that is free. (`xdist_group` has no effect with pytest 9.2.)"""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            return next((group for tests, group in GROUPS.items() if tests in nodeid), nodeid)

    return Scheduling(config, log)


@pytest.fixture
def cluster():
    """Three workers in this process, named a, b and c."""
    with farref.testing.Cluster("a", "b", "c") as cluster:
        yield cluster


@pytest.fixture
def b(cluster):
    """Worker b, as worker a sees it."""
    return cluster["a"].peer("b")


@pytest.fixture
def group(tmp_path):
    """Makes a group of that many processes: ``group(2)``."""
    groups = []

    def make(workers):
        groups.append(Group(tmp_path, workers))
        return groups[-1]

    yield make
    for made in groups:
        made.close()
