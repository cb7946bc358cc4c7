"""Groups for tests. Each ends with its test, and fails it if something is left behind."""

import pytest

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
