"""Groups that a program starts itself."""

import pytest

import farref
from processes_to_spawn import all_call_all, one_fails


def test_spawned_processes_are_a_group():
    farref.spawn(all_call_all, 3, "hello")


def test_the_failure_of_one_ends_all_and_is_told_with_its_traceback():
    with pytest.raises(farref.SpawnError, match="worker1") as raised:
        farref.spawn(one_fails, 3)
    assert "LookupError: of worker1" in str(raised.value.__cause__)


def test_a_group_of_nobody_is_refused():
    with pytest.raises(ValueError, match="no group"):
        farref.spawn(all_call_all, 0, "hello")
