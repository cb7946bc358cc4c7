"""Calls: values and exceptions come back, whoever runs them and wherever."""

import asyncio
import contextlib
import gc
import operator
import queue
import sys
import threading
import weakref

import pytest
import remote_functions as there

import farref
from farref._remote import find
from testkit import TEST_TIMEOUT, ended, eventually, started


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
    # Why it could not be.
    assert "__init__() missing 1 required positional argument" in str(raised.value.__cause__)
    assert "__reduce__" in str(raised.value.__cause__)
    error = raised.value
    assert (error.class_name, error.message) == ("remote_functions.Odd", "1 and 2") and "in fails_oddly" in error.traceback


def test_an_exception_that_is_hard_to_tell_is_told(b):
    with pytest.raises(there.Silent) as raised:
        b.call(there.raises, "Silent", 7)
    assert raised.value.args == (7,)
    # What is read is what was raised, or it is not read.
    for kind in ("Turncoat", "ReadOnce"):
        with pytest.raises(farref.RemoteError, match="once") as raised:
            b.call(there.raises, kind, "once")
        assert raised.value.class_name == f"remote_functions.{kind}" and "in raises" in raised.value.traceback


def test_of_an_exception_with_much_to_say_the_end_is_told(b):
    with pytest.raises(ValueError, match="^far down$") as raised:
        b.call(there.fails_far_down, 200)
    told = str(raised.value.__cause__)
    assert "in fails\n" in told and told.endswith("ValueError: far down\n") and len(told) < 1 << 15
    with pytest.raises(farref.RemoteError) as raised:
        b.call(there.fails, "x" * 100_000)
    assert 0 < len(raised.value.message) < 1 << 14 and "no more than" in raised.value.traceback


def test_an_exit_of_another_worker_is_none_of_this_one(b):
    with pytest.raises(farref.RemoteError, match="SystemExit"):
        b.call(there.exits)


def test_an_exit_in_a_coroutine_is_its_callers_and_the_event_loop_goes_on(b):
    b = b.timeout(TEST_TIMEOUT)
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
    assert b.timeout(TEST_TIMEOUT).call(TakenForACoroutine(), 1) == 1


class TakenForACoroutine:
    """Its caller's version of the program has a coroutine function in the place of `same`."""

    __module__, __qualname__ = there.same.__module__, there.same.__qualname__
    __code__ = there.double_later.__code__

    def __reduce__(self):
        return find, ("remote_functions.same",)


def test_what_cannot_be_pickled_is_said_where_it_is(b):
    with pytest.raises(farref.CannotBeSent, match="remote_functions.same.*pickle.*lock") as raised:
        b.call(there.same, threading.Lock())
    assert isinstance(raised.value.__cause__, TypeError)
    with pytest.raises(farref.CannotBeSent, match="of its own"):
        b.start(there.same, there.BadlyPickled())
    with pytest.raises(farref.CannotBeSent, match="pickle"):
        b.call(threading.Lock)
    with pytest.raises(farref.CannotBeSent, match="top of a module"):
        b.call(lambda: 1)


def test_what_cannot_be_read_is_no_exception_of_the_function(b):
    with pytest.raises(farref.CannotBeSent, match="result.*cannot be read: ValueError: of its own") as raised:
        b.call(there.make_badly_read)
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(farref.CannotBeSent, match="result.*cannot be read"):
        b.start(there.make_badly_read).result()
    with pytest.raises(farref.CannotBeSent, match="call to `b` cannot be read: ValueError: of its own"):
        b.call(there.same, there.BadlyRead())


def test_what_only_one_of_the_workers_has_is_a_mismatch_that_names_the_other(b):
    with pytest.raises(farref.Mismatch, match="call to `b` cannot be read.*no_such_name.*in a module that both can import"):
        b.call(NotThere())


class NotThere:
    """A function that the other worker's version of the module lacks."""

    __qualname__ = "no_such_name"

    def __reduce__(self):
        return operator.attrgetter("no_such_name"), (there.add,)


def test_a_result_that_is_being_read_has_come(b):
    future = b.start(there.make_slowly_read)
    results = []
    threads = started(*[lambda: results.append(future.result())] * 2)
    try:
        assert there.SlowlyRead.reading.wait(TEST_TIMEOUT)
        assert future.done() and not future.cancel() and not future.cancelled()
    finally:
        there.SlowlyRead.go_on.set()
    ended(*threads)
    assert results == ["read", "read"]


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


def test_calls_are_waited_for_as_asyncio_waits_for_others(b):
    async def main():
        never = b.start(there.waits_for_ever)
        done, waiting = await asyncio.wait([b.start(there.same, 1), never], return_when=asyncio.FIRST_COMPLETED)
        # Before Python 3.11 it gives tasks that await them.
        is_one = waiting == {never} if sys.version_info >= (3, 11) else len(waiting) == 1
        assert [call.result() for call in done] == [1] and is_one
        assert not never.cancelled() and never.cancel() and never.cancelled()

    asyncio.run(asyncio.wait_for(main(), TEST_TIMEOUT))


def test_a_coroutine_that_would_stop_the_event_loop_is_told_to_wait_otherwise(cluster, b):
    b = b.timeout(TEST_TIMEOUT)
    with pytest.raises(farref.Deadlock, match="await peer.start"):
        b.call(there.calls_and_blocks, cluster["a"].me)
    kept = cluster["a"].rref([1])
    with pytest.raises(farref.Deadlock, match="farref.RRef.to_here"):
        b.call(there.copies_and_blocks, kept)
    assert b.call(there.copies, kept) == [1]
    assert b.call(there.waits_for_what_has_ended, cluster["a"].me) == (True, 1, None)
    assert b.call(there.has_a_context) == (True, "a", "b")


@pytest.mark.parametrize("wait", ["result", "await"])
def test_a_call_that_failed_keeps_nothing_of_who_waited_for_it(b, wait):
    class Large:
        pass

    def waits():
        large = Large()
        held.append(weakref.ref(large))
        future = b.start(there.fails, "no")
        with pytest.raises(ValueError):
            future.result()

    async def awaits():
        large = Large()
        held.append(weakref.ref(large))
        with pytest.raises(ValueError):
            await b.start(there.fails, "no")

    held = []
    for _ in range(10):
        waits() if wait == "result" else asyncio.run(awaits())
    # The thread that has told of the last call may not be through with it yet.
    eventually(lambda: gc.collect() >= 0 and all(large() is None for large in held))


def test_a_value_that_has_its_own_future_goes_with_it(b):
    future = b.start(there.Counter)
    counter = future.result()
    counter.future = future
    gone = weakref.ref(counter)
    del counter, future
    gc.collect()
    assert gone() is None


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
    assert there.begun.wait(TEST_TIMEOUT)
    assert call.cancel()
    assert there.cancelled.wait(TEST_TIMEOUT)
    with pytest.raises(farref.Cancelled):
        call.result()


def test_whoever_cancels_a_call_of_a_method_cancels_its_coroutine(b):
    for cancels in ("cancel", "timeout"):
        there.begun.clear()
        there.cancelled.clear()
        counter = b.remote(there.Counter)
        if cancels == "cancel":
            call = counter.timeout(None).start.wait_for_ever()
            assert there.begun.wait(TEST_TIMEOUT) and call.cancel()
        # On a busy machine the time may end before the method begins: then it gets more.
        for seconds in (0.05, 1, TEST_TIMEOUT) if cancels == "timeout" else ():
            call = counter.timeout(seconds).start.wait_for_ever()
            with pytest.raises(farref.Timeout):
                call.result()
            if there.begun.is_set():
                break
        assert there.begun.wait(TEST_TIMEOUT)
        assert there.cancelled.wait(TEST_TIMEOUT), cancels
        del counter


def test_a_call_whose_future_nobody_keeps_is_made(b):
    there.begun.clear()
    b.start(there.begun_soon)
    assert there.begun.wait(TEST_TIMEOUT)


def test_a_call_whose_future_only_the_collector_finds_is_made(b):
    there.begun.clear()
    circle = [b.start(there.begun_soon)]
    circle.append(circle)
    del circle
    gc.collect()
    assert there.begun.wait(TEST_TIMEOUT)


def test_whoever_cancels_a_task_that_awaits_a_call_cancels_the_call(b):
    there.begun.clear()
    there.cancelled.clear()
    told = []

    async def awaits():
        await b.start(there.waits_for_ever)

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda _, what: told.append(what))
        task = asyncio.create_task(awaits())
        await asyncio.to_thread(there.begun.wait, TEST_TIMEOUT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(there.cancelled.wait, TEST_TIMEOUT)
        # What the call has to say to the loop about its end comes before this.
        assert await b.start(there.double_later, 1) == 2

    asyncio.run(asyncio.wait_for(main(), TEST_TIMEOUT))
    assert told == []


def test_who_waits_for_a_call_that_another_thread_cancels_is_told(b):
    future = b.start(there.waits_for_ever)
    ends = []
    waiting = threading.Event()

    def waits():
        waiting.set()
        try:
            future.result()
        except farref.Cancelled:
            ends.append("cancelled")

    threads = started(waits, waits)
    assert waiting.wait(TEST_TIMEOUT)
    assert future.cancel()
    ended(*threads)
    assert ends == ["cancelled"] * 2


# Seconds that a call has. They have to pass, but not before its functions have begun. On a busy
# machine they may pass too early: then the test tries the next.
LIMITS = (2, 20, TEST_TIMEOUT)


def with_enough_time(attempt):
    """What `attempt` returns, with the first of the limits that is long enough."""
    for limit in LIMITS[:-1]:
        with contextlib.suppress(farref.Timeout, queue.Empty):
            return attempt(limit)
    return attempt(LIMITS[-1])


@pytest.fixture
def ends_elsewhere(monkeypatch):
    """Where `there.tries` tells this test what becomes of it, and nothing of the tests before."""
    monkeypatch.setattr(there, "ends_elsewhere", queue.Queue())
    return there.ends_elsewhere


@pytest.mark.parametrize("way", ["function", "coroutine"])
def test_what_a_function_begins_has_what_is_left_of_its_callers_time(cluster, b, way):
    there.begun.clear()
    there.cancelled.clear()
    c = cluster["a"].peer("c")
    try:
        asks = there.asks if way == "function" else there.asks_in_a_coroutine
        with_enough_time(lambda limit: b.timeout(limit).call(asks, c))
        # An earlier attempt may have begun one, too.
        begun = there.begun_by_others[-1]
        with pytest.raises(farref.Error) as ended:
            begun.result(2 * TEST_TIMEOUT)
        assert isinstance(ended.value, (farref.Timeout, farref.Cancelled))
    finally:
        there.begun_by_others.clear()


ELSEWHERE = [there.goes_on_by_to_thread, there.goes_on_in_a_copied_context]


@pytest.mark.parametrize("goes_on", ELSEWHERE)
def test_what_goes_on_on_another_thread_with_pythons_context_has_what_is_left_of_its_callers_time(
    cluster, b, goes_on, ends_elsewhere
):
    def waits(limit, *wait):
        call = b.timeout(limit).start(goes_on, *wait)
        assert isinstance(call.exception(), (farref.Timeout, type(None)))
        return ends_elsewhere.get(timeout=2 * limit)

    for wait in [(there.waits_at_most, 900, cluster["a"].peer("c")), (there.looks_up_at_most, 900)]:
        end = with_enough_time(lambda limit: waits(limit, *wait))
        # What it is told of its time is what was left, and not its own.
        assert isinstance(end, farref.Timeout) and "900s" not in str(end), repr(end)


@pytest.mark.parametrize("goes_on", ELSEWHERE)
def test_what_goes_on_on_another_thread_with_pythons_context_is_part_of_the_same_call(
    cluster, b, goes_on, ends_elsewhere
):
    c = cluster["a"].peer("c")
    with farref.context(cluster["a"]) as context:
        b.call(goes_on, there.what_it_runs_for)
        assert ends_elsewhere.get(timeout=TEST_TIMEOUT) == (context.id, "a", "b")
        b.call(goes_on, c.call, there.what_it_runs_for)
        assert ends_elsewhere.get(timeout=TEST_TIMEOUT) == (context.id, "b", "c")
    b.call(goes_on, there.what_it_runs_for)
    assert ends_elsewhere.get(timeout=TEST_TIMEOUT) == (None, "a", "b")


def test_a_thread_that_a_function_starts_by_itself_runs_for_nobody(b, ends_elsewhere):
    b.call(there.goes_on_afresh, there.what_it_runs_for)
    assert ends_elsewhere.get(timeout=TEST_TIMEOUT) == (None, None, None)


def test_a_worker_that_leaves_by_another_thread_does_not_wait_for_the_call_that_asks_it_to(
    ends_elsewhere,
):
    with farref.testing.Cluster("a", "b") as cluster:
        call = cluster["a"].peer("b").start(there.goes_on_by_to_thread, there.leaves)
        assert ends_elsewhere.get(timeout=TEST_TIMEOUT) == "left"
        del call


def test_a_future_is_waited_for_by_several_threads_and_asked_again(b):
    future = b.start(there.double_later, 4)
    seen = []
    threads = started(*[lambda: seen.append(future.result())] * 4)
    ended(*threads)
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
    assert twice.acquire(timeout=TEST_TIMEOUT)
    future.add_done_callback(ended)
    assert twice.acquire(timeout=TEST_TIMEOUT)
    assert seen == [6, 6]


def test_callbacks_may_wait_and_come_one_after_the_other(b):
    seen = []
    over = threading.Event()
    begin = threading.Event()

    def waits(future):
        begin.wait(TEST_TIMEOUT)
        seen.append(b.timeout(TEST_TIMEOUT).call(there.double_later, future.result()))

    future = b.start(there.same, 3)
    assert future.remove_done_callback(print) == 0
    future.add_done_callback(waits)
    future.add_done_callback(lambda future: seen.append("after"))
    future.add_done_callback(lambda _: over.set())
    # None of them holds up others, or coroutines.
    assert b.timeout(TEST_TIMEOUT).call(there.double_later, 1) == 2
    begin.set()
    assert over.wait(TEST_TIMEOUT)
    assert seen == [6, "after"]


def test_callbacks_that_are_added_while_somebody_waits_for_a_while_are_called(b):
    there.released.clear()
    future = b.start(there.waits_to_be_released)
    ends, waiting, called = [], threading.Event(), threading.Event()

    def waits():
        # Hardly ever does another thread get the interpreter between this and the wait.
        waiting.set()
        try:
            future.result(timeout=0.5)
        except TimeoutError:
            ends.append("not yet")

    threads = started(waits)
    try:
        assert waiting.wait(TEST_TIMEOUT)
        future.add_done_callback(lambda _: called.set())
        ended(*threads)
    finally:
        there.released.set()
    assert ends == ["not yet"] and called.wait(TEST_TIMEOUT)


def test_callbacks_that_are_not_taken_back_are_kept(b):
    class Unlike:
        def __eq__(self, other):
            raise ValueError("like nothing")

        def __call__(self, _):
            called.release()

    called = threading.Semaphore(0)
    there.released.clear()
    future = b.start(there.waits_to_be_released)
    try:
        future.add_done_callback(lambda _: called.release())
        future.add_done_callback(print)
        assert future.remove_done_callback(print) == 1
        future.add_done_callback(Unlike())
        with pytest.raises(ValueError, match="like nothing"):
            future.remove_done_callback(print)
    finally:
        there.released.set()
    assert called.acquire(timeout=TEST_TIMEOUT) and called.acquire(timeout=TEST_TIMEOUT)


def test_callbacks_are_called_though_who_waited_has_gone_while_they_were_looked_through(b):
    there.released.clear()
    future = b.start(there.waits_to_be_released)
    waiting, gone, called = threading.Event(), threading.Event(), threading.Event()

    class Slow:
        def __call__(self, future):
            called.set()

        def __eq__(self, other):
            assert gone.wait(TEST_TIMEOUT)
            return False

        __hash__ = None

    def waits():
        # Hardly ever does another thread get the interpreter between this and the wait. If one
        # does, there is nothing to be seen.
        waiting.set()
        with pytest.raises(TimeoutError):
            future.result(timeout=1)
        gone.set()

    threads = started(waits)
    try:
        assert waiting.wait(TEST_TIMEOUT)
        future.add_done_callback(Slow())
        assert future.remove_done_callback(print) == 0
    finally:
        there.released.set()
        ended(*threads)
    assert called.wait(TEST_TIMEOUT)


def test_callbacks_of_an_event_loop_that_was_closed_are_nobodys(b, monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    there.released.clear()

    async def main():
        future = b.start(there.waits_to_be_released)
        future.add_done_callback(told.append)
        return future

    future = asyncio.run(main())
    there.released.set()
    assert future.result(TEST_TIMEOUT) == "made"
    # The same thread tells loops and begins coroutines, one after the other.
    assert b.timeout(TEST_TIMEOUT).call(there.double_later, 1) == 2
    assert told == []


def test_callbacks_of_a_coroutine_come_on_its_event_loop(b):
    async def main():
        future = b.start(there.same, 3)
        called = asyncio.Event()
        threads = []

        def ended(_):
            threads.append(threading.current_thread())
            called.set()

        future.add_done_callback(print)
        assert future.remove_done_callback(print) == 1
        future.add_done_callback(ended)
        await called.wait()
        return threads

    assert asyncio.run(asyncio.wait_for(main(), TEST_TIMEOUT)) == [threading.current_thread()]


def test_eight_threads_call_at_once(b):
    def calls():
        for number in range(50):
            assert b.call(there.add, number, 1) == number + 1
        done.append(True)

    done = []
    ended(*started(*[calls] * 8))
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
        [open] = cluster["b"].snapshot()["open_contexts"]
        assert open["id"] == context.id
    assert b.call(farref.context_id) is None
    with pytest.raises(LookupError), farref.context(cluster["a"]):
        b.call(there.same, 1)
        raise LookupError
    assert b.call(farref.context_id) is None
    # It has ended on all workers.
    eventually(lambda: not any(worker.snapshot()["contexts"] for worker in cluster.workers()))


def test_marked_functions_say_where_they_are_called(b):
    assert marked.on(b, 2) == 4
    assert marked(2) == 4
    assert marked.start_on(b, 3).result() == 6
    rref = marked.remote_on(b, 4)
    assert rref.to_here() == 8


@farref.remote(timeout=TEST_TIMEOUT)
def marked(number):
    return 2 * number


class WithMarked:
    @farref.remote
    def method(self, number):
        return self, number


def test_marked_methods_are_methods():
    one = WithMarked()
    assert one.method(3) == (one, 3)


def test_a_copy_that_takes_too_long_is_a_timeout_and_none_is_no_limit(b):
    there.released.clear()
    value = b.remote(there.waits_to_be_released)
    try:
        with pytest.raises(farref.Timeout, match="50"):
            value.timeout(0.05).to_here()
    finally:
        there.released.set()
    assert value.timeout(None).to_here() == "made"


def test_a_module_that_lacks_another_says_which(b, tmp_path, monkeypatch):
    (tmp_path / "lacks_another.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        b.call("lacks_another.function")
    with pytest.raises(farref.Mismatch, match="no_such_package"):
        b.call("no_such_package.module.function")


def test_marked_functions_have_their_own_limit_unless_the_peer_has_one(b):
    with pytest.raises(farref.Timeout, match="50"):
        b.call(limited)
    with pytest.raises(farref.Timeout, match="50"):
        limited.on(b)
    with pytest.raises(farref.Timeout, match="70"):
        limited.on(b.timeout(0.07))


@farref.remote(timeout=0.05)
async def limited():
    await there.waits_for_ever()
