"""Calls: values and exceptions come back, whoever runs them and wherever."""

import asyncio
import threading

import pytest
import remote_functions as there

import farref
from farref._remote import find


def test_the_value_comes_back(b):
    assert b.call(there.add, 1, 2) == 3
    assert b.call(there.keywords, 1, x=2) == ((1,), {"x": 2})


def test_a_worker_can_call_itself(cluster):
    me = cluster["a"].me
    assert me.is_me and me.call(there.add, 1, 2) == 3


def test_builtins_and_methods_of_classes_are_called_by_their_names(b):
    assert b.call(len, [1, 2]) == 2
    assert b.call(str.upper, "far") == "FAR"


def test_what_a_function_raises_is_raised_here_with_the_remote_traceback_as_its_cause(b):
    with pytest.raises(ValueError, match="^no$") as raised:
        b.call(there.fails, "no")
    assert isinstance(raised.value.__cause__, farref.RemoteTraceback)
    assert "in fails" in str(raised.value.__cause__)


def test_an_exception_that_cannot_be_rebuilt_is_a_remote_error_that_says_all_of_it(b):
    with pytest.raises(farref.RemoteError, match="1 and 2") as raised:
        b.call(there.fails_oddly)
    assert "in fails_oddly" in str(raised.value.__cause__)


def test_an_exit_of_another_worker_is_none_of_this_one(b):
    with pytest.raises(farref.RemoteError, match="SystemExit"):
        b.call(there.exits)


def test_an_exit_in_a_coroutine_is_its_callers_and_the_event_loop_goes_on(b):
    b = b.timeout(60)
    with pytest.raises(farref.RemoteError, match="SystemExit"):
        b.call(there.exits_later)
    assert b.call(there.double_later, 21) == 42
    assert b.call(there.begins_a_task_that_exits) == "SystemExit"
    assert b.call(there.double_later, 21) == 42


def test_a_coroutine_that_cancels_itself_says_so_in_its_own_words(b):
    with pytest.raises(farref.RemoteError, match="CancelledError: of its own") as raised:
        b.call(there.cancels_itself)
    assert "in cancels_itself" in str(raised.value.__cause__)
    assert "_loop.py" not in str(raised.value.__cause__)


def test_a_function_that_is_no_coroutine_function_where_it_runs_is_called_all_the_same(b):
    assert b.timeout(60).call(TakenForACoroutine(), 1) == 1


class TakenForACoroutine:
    """Its caller's version of the program has a coroutine function in the place of `same`."""

    __module__, __qualname__ = there.same.__module__, there.same.__qualname__
    __code__ = there.double_later.__code__

    def __reduce__(self):
        return find, ("remote_functions.same",)


def test_what_cannot_be_pickled_is_said_where_it_is(b):
    with pytest.raises(Exception, match="pickle"):
        b.call(there.same, threading.Lock())
    with pytest.raises(farref.CannotBeSent, match="pickle"):
        b.call(threading.Lock)


def test_a_function_knows_who_calls_it_and_where_it_runs(b):
    assert b.call(there.who_calls) == ("a", "b")


def test_plain_functions_run_on_threads_and_coroutines_on_the_event_loop(b):
    assert b.call(there.thread) != threading.current_thread().name
    assert b.call(there.thread_of_coroutine) == "farref-asyncio"


def test_a_coroutine_function_is_awaited_before_its_value_comes_back(b):
    assert b.call(there.double_later, 21) == 42


def test_calls_can_be_awaited_in_any_event_loop(b):
    async def main():
        return await asyncio.gather(*(b.start(there.double_later, number) for number in range(20)))

    assert asyncio.run(main()) == [2 * number for number in range(20)]


def test_an_awaited_call_that_fails_raises(b):
    async def main():
        await b.start(there.fails, "no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(main())


def test_nested_calls_do_not_use_threads_up(b):
    assert b.call(there.nested, 60) == 60


def test_nested_coroutines_do_not_wait_for_each_other(b):
    assert b.call(there.nested_async, 20) == 20


def test_a_call_that_takes_too_long_is_a_timeout(b):
    with pytest.raises(farref.Timeout) as raised:
        b.timeout(0.05).call(there.waits_for_ever)
    assert isinstance(raised.value, TimeoutError)
    assert "waits_for_ever" in str(raised.value)


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(b, seconds):
    with pytest.raises(ValueError, match="no time to wait"):
        b.timeout(seconds)


def test_whoever_cancels_a_call_cancels_its_coroutine(b):
    there.begun.clear()
    there.cancelled.clear()
    call = b.start(there.waits_for_ever)
    assert there.begun.wait(60)
    assert call.cancel()
    assert there.cancelled.wait(60)
    with pytest.raises(farref.Cancelled):
        call.result()


def test_a_call_whose_future_nobody_keeps_is_made(b):
    there.begun.clear()
    b.start(there.begun_soon)
    assert there.begun.wait(60)


def test_a_future_is_waited_for_by_several_threads_and_asked_again(b):
    future = b.start(there.double_later, 4)
    seen = []
    threads = [threading.Thread(target=lambda: seen.append(future.result())) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert seen == [8] * 4
    assert future.result() == 8 and future.done() and future.exception() is None


def test_a_future_that_is_not_over_can_be_waited_for_again(b):
    future = b.start(there.waits_for_ever)
    with pytest.raises(TimeoutError):
        future.result(timeout=0.01)
    assert not future.done()
    assert future.cancel()


def test_callbacks_are_called_once_whether_the_call_is_over_or_not(b):
    seen = []
    twice = threading.Semaphore(0)
    future = b.start(there.double_later, 3)

    def ended(future):
        seen.append(future.result())
        twice.release()

    future.add_done_callback(ended)
    assert twice.acquire(timeout=60)
    future.add_done_callback(ended)
    assert twice.acquire(timeout=60)
    assert seen == [6, 6]


def test_eight_threads_call_at_once(b):
    def calls():
        for number in range(50):
            assert b.call(there.add, number, 1) == number + 1
        done.append(True)

    done = []
    threads = [threading.Thread(target=calls) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join(120) for thread in threads]
    assert len(done) == 8


def test_a_worker_that_is_not_there_is_named_with_those_that_are(cluster):
    with pytest.raises(farref.NoSuchPeer, match="a, b, c"):
        cluster["a"].peer("nobody")


def test_calls_to_a_worker_that_died_fail(cluster, b):
    cluster["b"].crash()
    with pytest.raises(farref.PeerLost) as raised:
        b.call(there.add, 1, 2)
    assert isinstance(raised.value, ConnectionError)


def test_contexts_travel_with_calls(cluster, b):
    with farref.context(cluster["a"]) as context:
        assert b.call(farref.context_id) == context.id
        assert b.call(there.same, 1) == 1
    assert b.call(farref.context_id) is None


def test_marked_functions_say_where_they_are_called(b):
    assert marked.on(b, 2) == 4
    assert marked(2) == 4
    assert marked.start_on(b, 3).result() == 6
    rref = marked.remote_on(b, 4)
    assert rref.to_here() == 8


@farref.remote(timeout=60)
def marked(number):
    return 2 * number
