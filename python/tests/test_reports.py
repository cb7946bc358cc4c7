"""What a program is told that its exceptions do not say: references that were never dropped, what happens below, what the other worker
lacks."""

import inspect

import pytest
import remote_functions as there

import farref


def test_references_that_were_never_dropped_are_told_with_their_types_and_lines():
    with pytest.raises(farref.Leaked) as told:
        with farref.testing.Cluster("a", "b") as cluster:
            b = cluster["a"].peer("b")
            first = inspect.currentframe().f_lineno + 1
            counter = b.remote(there.Counter, 1)
            result = b.remote(there.same, 1)
            method = counter.remote.itself()
            own = cluster["a"].rref([1, 2])
            marked = made.remote_on(b)
            # All of them are there, and none is on its way.
            assert counter.call() == method.call() == 1
            assert result.to_here() == marked.to_here() == 1
    whats = ["Counter", "result of `remote_functions.same`", "result of the method `itself`", "list", f"result of `{__name__}.made`"]
    for line, what in enumerate(whats, first):
        found = [text for text in str(told.value).splitlines() if f"{__file__}:{line} on `a`" in text]
        assert len(found) == 1 and f": {what} on `" in found[0], (what, str(told.value))
    del counter, result, method, own, marked


@farref.remote
def made():
    return 1


def test_a_cycle_that_nobody_holds_holds_no_references(cluster, b):
    cycle = [b.remote(there.Counter, 1)]
    cycle.append(cycle)
    del cycle


def test_what_is_still_held_at_the_end_is_said_and_does_not_fail_the_program(group):
    pair = group(2)
    main = pair.start("""
        with join() as me:
            kept = me.peer("worker1").remote(there.Counter, 1)
            assert kept.call() == 1
    """)
    other = pair.start("with join(): pass")
    status, _, errors = main.end()
    assert status == 0 and "never dropped" in errors and "Counter on `worker1`, held by worker0, made at <string>:" in errors, errors
    other.succeeds()


def test_what_the_core_says_goes_to_the_logger_of_the_program(group):
    alone = group(1)
    main = alone.start("""
        import logging
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s %(message)s")
        with join() as me:
            pass
    """)
    status, _, errors = main.end()
    assert status == 0
    assert 'farref INFO worker "worker0": has joined its group' in errors, errors
    assert 'farref INFO worker "worker0": has ended with its group' in errors, errors


@pytest.mark.parametrize("wanted, told", [("info", True), ("warn", False), ("warn=warn=warn", True)])
def test_the_environment_says_what_is_told_of_what_happens_below(group, monkeypatch, wanted, told):
    monkeypatch.setenv("FARREF_LOG", wanted)
    alone = group(1)
    status, _, errors = alone.start("with join(): pass", imports="").end()
    assert status == 0
    assert ("has joined its group" in errors) == told, errors
    assert ("cannot be read" in errors) == wanted.startswith("warn="), errors
    assert "\x1b" not in errors, "a file is no terminal"


def test_a_worker_that_lacks_what_another_means_says_so(group):
    pair = group(2)
    main = pair.start("""
        def only_here(): pass
        class Only: pass
        def told(call, *args):
            try:
                call(*args)
            except farref.Mismatch as error:
                return str(error)
        with join() as me:
            peer = me.peer("worker1")
            for text in [told(peer.call, only_here), told(peer.call, there.same, Only())]:
                assert "`worker1` cannot be read" in text and "in a module that both can import" in text, text
            for text in [told(peer.call, "nomod.f"), told(peer.call, "math.f"), told(peer.call, "no_builtin")]:
                assert "worker `worker1` does not have" in text and "modules that both workers can import" in text, text
            text = told(peer.call, "__main__.make")
            assert "the result of the call cannot be read" in text and "Other" in text, text
            # An exception of its own is no such thing.
            try:
                peer.call(there.attribute_error)
            except AttributeError as error:
                assert "modules" not in str(error)
    """)
    other = pair.start("""
        class Other: pass
        def make(): return Other()
        with join(): pass
    """)
    main.succeeds()
    other.succeeds()
