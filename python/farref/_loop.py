"""The event loop that coroutine functions run on, and waiting for calls in any other."""

import asyncio
import contextvars
import inspect
import logging
import threading

from . import _scope

_loop = None
_lock = threading.Lock()


def _running():
    """The loop, which runs on a thread of its own as long as the process does."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_for_ever, args=(_loop,), name="farref-asyncio", daemon=True).start()
        return _loop


def _for_ever(loop):
    """Whatever a task or a callback does: others have theirs on the same loop."""
    while not loop.is_closed():
        try:
            loop.run_forever()
        except BaseException as error:
            # A task that a coroutine has begun. Of others asyncio says it by itself; these two it hands on.
            logging.getLogger("farref").error("%s in a task of the event loop, which goes on", type(error).__name__)


def start(coroutine, scope, completion):
    """Begins a coroutine. Returns what cancels it."""
    loop = _running()
    tasks = []
    cancelled = False

    def begin():
        if cancelled:
            coroutine.close()
            completion.raised(asyncio.CancelledError())
        elif inspect.isawaitable(coroutine):
            tasks.append(loop.create_task(_told(coroutine, completion)))
        else:
            # Its caller takes the function for a coroutine function, which it is not here.
            completion.returned(coroutine)

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
        # Without this function's own line.
        trace = error.__traceback__
        completion.raised(error.with_traceback(trace and trace.tb_next))
    else:
        completion.returned(value)


async def wait_for(future):
    """Waits for a call in a coroutine, of any loop."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def tell():
        if not done.done():
            done.set_result(None)

    def ended(_):
        try:
            loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop was closed: nobody waits any more
            pass

    future.add_done_callback(ended)
    try:
        await done
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()
