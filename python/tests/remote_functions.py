"""Functions and classes that tests call on other workers. They travel by their names, so they are in a module."""

import asyncio
import contextvars
import gc
import os
import queue
import sys
import threading
import time

import farref
from testkit import TEST_TIMEOUT


def add(a, b):
    return a + b


def keywords(*args, **kwargs):
    return args, kwargs


def same(value):
    return value


def fails(text):
    raise ValueError(text)


def count_to(last):
    yield from range(1, last + 1)


def attribute_error():
    return object().nothing


class Odd(Exception):
    """One that pickle cannot make again: its arguments are not its own."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def fails_oddly():
    raise Odd(1, 2)


class Silent(ValueError):
    def __str__(self):
        raise RuntimeError("no text")


class Turncoat(ValueError):
    """What is read is of another class."""

    def __reduce__(self):
        return KeyError, self.args


class ReadOnce(ValueError):
    """Where it was raised it can be read, and not where it arrives."""

    def __reduce__(self):
        return _read_once, ()


def _read_once(read=[]):
    read.append(1)
    if len(read) > 1:
        raise LookupError("a second time")
    return ReadOnce("once")


def raises(kind, *args):
    raise globals().get(kind, ValueError)(*args)


def fails_far_down(depth):
    """No two lines of its traceback are the same, one after the other."""
    return fails("far down") if depth == 0 else and_further(depth)


def and_further(depth):
    return fails_far_down(depth - 1)


def exits():
    raise SystemExit(3)


async def exits_later():
    await asyncio.sleep(0)
    raise SystemExit(3)


async def begins_a_task_that_exits():
    async def exits():
        raise SystemExit(3)

    task = asyncio.get_running_loop().create_task(exits())
    await asyncio.wait([task])
    return type(task.exception()).__name__


async def cancels_itself():
    raise asyncio.CancelledError("of its own")


def process():
    return os.getpid()


def thread():
    return threading.current_thread().name


def who_calls():
    return farref.caller().name, farref.worker().name


async def double_later(number):
    await asyncio.sleep(0)
    return 2 * number


async def thread_of_coroutine():
    return threading.current_thread().name


cancelled = threading.Event()
begun = threading.Event()


released = threading.Event()


def waits_to_be_released():
    assert released.wait(TEST_TIMEOUT)
    return "made"


def release():
    released.set()


async def release_in_a_coroutine():
    release()


def has_begun():
    return begun.is_set()


async def waits_for_ever():
    begun.set()
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def begun_soon():
    """Late enough for a cancellation to come in between, if there is one."""
    await asyncio.sleep(0.2)
    begun.set()


async def calls_and_blocks(peer):
    return peer.call(same, 1)


async def copies_and_blocks(rref):
    return rref.to_here()


async def copies(rref):
    return await rref.owner.start(farref.RRef.to_here, rref)


async def waits_for_what_has_ended(peer):
    call = peer.start(same, 1)
    done, waiting = await asyncio.wait([call])
    # Before Python 3.11 it gives tasks that await them.
    assert done == {call} if sys.version_info >= (3, 11) else len(done) == 1
    assert not waiting
    return call.done(), call.result(), call.exception()


async def has_a_context():
    with farref.context(farref.worker()) as context:
        return context.id == farref.context_id(), farref.caller().name, farref.worker().name


begun_by_others = []


def asks(peer):
    """Begins what it does not wait for."""
    begun_by_others.append(peer.start(waits_for_ever))


async def asks_in_a_coroutine(peer):
    asks(peer)


ends_elsewhere = queue.Queue()


def tries(function, *args):
    """Tells the test what becomes of it, though who has asked for it may not wait any more."""
    try:
        ends_elsewhere.put(function(*args))
    except BaseException as error:
        ends_elsewhere.put(error)


async def goes_on_by_to_thread(function, *args):
    await asyncio.to_thread(tries, function, *args)


def goes_on_in_a_copied_context(function, *args):
    thread = threading.Thread(target=contextvars.copy_context().run, args=(tries, function, *args), daemon=True)
    thread.start()


def goes_on_afresh(function, *args):
    threading.Thread(target=tries, args=(function, *args), daemon=True).start()


def what_it_runs_for():
    caller, worker = farref.caller(), farref._core.current_worker()
    return farref.context_id(), caller and caller.name, worker and worker.name


def waits_at_most(seconds, peer):
    return peer.timeout(seconds).call(waits_for_ever)


def looks_up_at_most(seconds):
    return farref.worker().lookup("what nobody publishes", timeout=seconds)


def leaves():
    farref.worker().leave()
    return "left"


def busy():
    """For ever, with and without the interpreter."""
    begun.set()
    while True:
        time.sleep(0.001)


def busier():
    begun.set()
    while True:
        pass


def sleeps(seconds):
    time.sleep(seconds)
    return "awake"


def begins_and_sleeps(seconds):
    begun.set()
    return sleeps(seconds)


class SlowToTell(Exception):
    def __reduce__(self):
        begun.set()
        time.sleep(self.args[0])
        return SlowToTell, self.args

    def __str__(self):
        begun.set()
        time.sleep(self.args[0])
        return "at last"


async def fails_slowly(seconds):
    raise SlowToTell(seconds)


def nested(depth):
    """As many calls inside of each other, back and forth."""
    if depth == 0:
        return 0
    return 1 + farref.caller().call(nested, depth - 1)


async def nested_async(depth):
    if depth == 0:
        return 0
    return 1 + await farref.caller().start(nested_async, depth - 1)


class Counter:
    """Counts, and how many of it there are is counted too."""

    alive = 0

    def __init__(self, start=0):
        self.value = start
        type(self).alive += 1

    def add(self, number):
        self.value += number
        return self.value

    async def wait_for_ever(self):
        return await waits_for_ever()

    async def add_later(self, number):
        await asyncio.sleep(0)
        return self.add(number)

    def itself(self):
        return self

    def __call__(self):
        return self.value

    def __getstate__(self):
        return self.value

    def __setstate__(self, value):
        self.value = value
        type(self).alive += 1

    def __del__(self):
        type(self).alive -= 1


def counters():
    gc.collect()
    return Counter.alive


def add_to(counter, number):
    """A reference that was handed on is used."""
    return counter.call.add(number)


def make_here(start):
    """A reference comes back to a value of whoever is called."""
    return farref.worker().rref(Counter(start))


class BadlyPickled:
    def __reduce__(self):
        raise RuntimeError("of its own")


class BadlyRead:
    """Can be pickled, and not be read."""

    def __reduce__(self):
        return fails, ("of its own",)


def make_badly_read():
    return BadlyRead()


class SlowlyRead:
    """Reading it takes until it is told to go on."""

    reading = threading.Event()
    go_on = threading.Event()

    def __reduce__(self):
        return SlowlyRead.read, ()

    @staticmethod
    def read():
        SlowlyRead.reading.set()
        assert SlowlyRead.go_on.wait(TEST_TIMEOUT)
        return "read"


def make_slowly_read():
    return SlowlyRead()


class Weights:
    """Arrays that are read and changed under a lock, as a parameter server does."""

    def __init__(self, size):
        import numpy

        self.lock = threading.Lock()
        self.array = numpy.zeros(size)
        self.pair = [numpy.zeros(size), numpy.zeros(size)]

    def read(self, part):
        with self.lock:
            return {"array": self.array, "view": self.array[1:], "list": self.pair}[part]

    def step(self):
        with self.lock:
            for array in [self.array, *self.pair]:
                array += 1

    def __getstate__(self):
        with self.lock:
            return {"array": self.array}


def first_of(value):
    return value[0] if isinstance(value, list) else value


def raises_in_destructor():
    class Bad:
        def __del__(self):
            raise RuntimeError("in a destructor")

    return Bad()
