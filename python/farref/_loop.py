"""The event loop that coroutine functions run on, and waiting for calls in any other."""

import asyncio
import contextvars
import inspect
import logging
import threading

from . import _core, _scope

_loop = None
_thread = None
_is_ending = False
_lock = threading.Lock()


def _running():
    """The loop, which runs on a thread of its own as long as the process does."""
    global _loop, _thread
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            _thread = threading.Thread(target=_for_ever, args=(_loop,), name="farref-asyncio", daemon=True)
            _thread.start()
        return _loop


def end(patience=2.0):
    """Ends the loop before Python ends its threads, in the middle of whatever they do: if that is the core, the process crashes.
    A coroutine that blocks its thread is not waited for longer than so many seconds."""
    global _is_ending
    _is_ending = True
    with _lock:
        loop, thread = _loop, _thread
    if thread is not None and thread is not threading.current_thread():
        loop.call_soon_threadsafe(loop.stop)
        thread.join(patience)


def _for_ever(loop):
    """Whatever a task or a callback does: others have theirs on the same loop."""
    _core.is_event_loop()
    while not _is_ending:
        try:
            loop.run_forever()
        except BaseException as error:
            # A task that a coroutine has begun. Of others asyncio says it by itself; these two it hands on.
            logging.getLogger("farref").error("%s in a task of the event loop, which goes on", type(error).__name__)


def start(coming, scope, completion):
    """Begins a coroutine, or what makes one when it is called. Returns what cancels it."""
    loop = _running()
    tasks = []
    cancelled = False

    def begin():
        if cancelled:
            if inspect.iscoroutine(coming):
                coming.close()
            completion.raised(asyncio.CancelledError())
        elif inspect.iscoroutine(coming):
            tasks.append(loop.create_task(_told(coming, completion)))
        else:
            make()

    def make():
        try:
            made = coming()
        except BaseException as error:
            completion.raised(error.with_traceback(_below(error)))
            return
        if inspect.isawaitable(made):
            tasks.append(loop.create_task(_told(made, completion)))
        else:
            # Its caller takes the function for a coroutine function, which it is not here.
            completion.returned(made)

    def cancel():
        nonlocal cancelled
        cancelled = True
        for task in tasks:
            task.cancel()

    context = contextvars.Context()
    context.run(_scope.current.set, scope)
    loop.call_soon_threadsafe(begin, context=context)
    return lambda: loop.call_soon_threadsafe(cancel)


async def _told(coroutine, completion):
    """Awaits it, and tells what became of it. No exception gets out: SystemExit and KeyboardInterrupt would end the loop."""
    try:
        value = await coroutine
    except GeneratorExit:
        raise
    except BaseException as error:
        completion.raised(error.with_traceback(_below(error)))
    else:
        completion.returned(value)


def _below(error):
    """Its traceback, without the line of who has caught it."""
    return error.__traceback__ and error.__traceback__.tb_next


def running():
    """The loop that runs this code, if there is one."""
    return asyncio._get_running_loop()


def tell(loop, function, future):
    """Calls the function on its loop."""
    try:
        loop.call_soon_threadsafe(function, future)
    except RuntimeError:  # it was closed: nobody waits any more
        pass


async def wait_for(future):
    """Waits for a call in a coroutine, of any loop."""
    done = asyncio.get_running_loop().create_future()

    def ended(_):
        if not done.done():
            done.set_result(None)

    future.add_done_callback(ended)
    try:
        await done
    except asyncio.CancelledError:
        future.cancel()
        raise
    try:
        return future.result()
    finally:
        # What it raises has this frame, and it has what it raises.
        del future
