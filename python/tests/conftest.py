"""Groups for tests, and their order. Each group ends with its test, and fails it if something is left behind."""

import pytest

import farref
from testkit import Group

# Tests that take longest begin first: the others fill the other processes of pytest meanwhile.
LONGEST_FIRST = ["test_torch_suite", "test_torch_defects", "test_chaos", "test_torch_autograd", "test_bench", "test_examples"]


def pytest_collection_modifyitems(items):
    """Brings the longest tests to the front."""
    order = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


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
