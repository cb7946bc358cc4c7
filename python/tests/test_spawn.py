"""Groups that a program starts itself."""

import sys

import pytest

import farref
from processes_to_spawn import (
    LateForTheSecond,
    all_call_all,
    all_exit,
    both_are_there,
    one_fails,
    one_fails_and_others_work,
    one_fails_at_length,
    one_is_killed,
)
from testkit import started_program


def test_spawned_processes_are_a_group():
    farref.spawn(all_call_all, 3, "hello", times=2)


def test_the_failure_of_one_ends_all_and_is_told_with_its_traceback():
    with pytest.raises(farref.SpawnError, match="worker1.*LookupError: of worker1") as raised:
        farref.spawn(one_fails, 3)
    assert isinstance(raised.value, farref.Error)
    assert "LookupError: of worker1" in str(raised.value.__cause__)


def test_those_that_have_not_failed_are_killed_and_not_waited_for(tmp_path):
    with pytest.raises(farref.SpawnError, match="worker1"):
        farref.spawn(one_fails_and_others_work, 2, str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("token", [None, "swordfish"])
def test_a_stranger_who_knows_where_spawned_processes_meet_does_not_get_in(tmp_path, monkeypatch, token):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tried = str(tmp_path / "tried")
    joins = f"joins_in_the_place_of_the_second({str(tmp_path)!r}, {token!r}, {tried!r})"
    stranger = started_program("stranger", [sys.executable, "-c", f"import processes_to_spawn; processes_to_spawn.{joins}"])
    # The stranger is there before the second process is: there is no group with one who has taken a place.
    with pytest.raises(farref.SpawnError, match='another token than "worker0": "worker1"'):
        farref.spawn(both_are_there, 2, LateForTheSecond(tried))
    stranger.kill()
    _, said, _ = stranger.end()
    assert "joined" not in said, said


def test_a_group_of_nobody_is_refused():
    with pytest.raises(ValueError, match="no group"):
        farref.spawn(all_call_all, 0, "hello")


def test_a_failure_with_much_to_say_does_not_hold_up_the_end():
    with pytest.raises(farref.SpawnError, match="worker1.*much to say") as raised:
        farref.spawn(one_fails_at_length, 2)
    assert len(str(raised.value)) < 2000


def test_a_process_that_was_killed_is_said_to_be():
    with pytest.raises(farref.SpawnError, match="worker1 was ended by SIGKILL"):
        farref.spawn(one_is_killed, 2)


def test_processes_that_exit_with_zero_have_not_failed():
    farref.spawn(all_exit, 2, 0)
    with pytest.raises(farref.SpawnError, match="exit code 5"):
        farref.spawn(all_exit, 1, 5)


def test_a_function_that_a_new_process_cannot_find_is_refused_at_once():
    with pytest.raises(ValueError, match="top of a module"):
        farref.spawn(lambda me: None, 1)
