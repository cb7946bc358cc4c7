"""Groups for tests. Each ends with its test, and fails it if something is left behind."""

import pytest

from processes import Group

import farref


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
