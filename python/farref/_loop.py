"""The event loop that coroutine functions run on, and waiting for calls in any other."""

import asyncio
import contextvars
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
            threading.Thread(target=_loop.run_forever, name="farref-asyncio", daemon=True).start()
        return _loop


def start(coroutine, scope, completion):
    """Begins a coroutine. Returns what cancels it."""
    loop = _running()
    tasks = []
    cancelled = False

    def begin():
        if cancelled:
            coroutine.close()
            completion.raised(asyncio.CancelledError())
            return
        task = loop.create_task(coroutine)
        tasks.append(task)
        task.add_done_callback(ended)

    def ended(task):
        if task.cancelled():
            completion.raised(asyncio.CancelledError("the call was cancelled"))
        elif task.exception() is not None:
            completion.raised(task.exception())
        else:
            completion.returned(task.result())

    def cancel():
        nonlocal cancelled
        cancelled = True
        for task in tasks:
            task.cancel()

    context = contextvars.Context()
    context.run(_scope.current.set, scope)
    loop.call_soon_threadsafe(begin, context=context)
    return lambda: loop.call_soon_threadsafe(cancel)


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
