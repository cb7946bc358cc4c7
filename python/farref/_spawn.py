"""A group of processes on this host, started by a program: for examples, tests and programs of one machine."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import pickle
import secrets
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import Concatenate, ParamSpec

from . import _core, _worker
from ._errors import Error, RemoteTraceback

# What of a process's failure is told: its last lines say most.
_TRACEBACK = 64 << 10

P = ParamSpec("P")


class SpawnError(Error, RuntimeError):
    """A process that was spawned has failed. Its traceback is the cause."""


def _run(function, rank, workers, place, token, args, kwargs, result):
    try:
        with _worker.join(
            name=f"worker{rank}", rank=rank, world_size=workers, rendezvous=place, token=token
        ) as me:
            function(me, *args, **kwargs)
    except SystemExit:
        raise
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        result.send((last[:1000], trace[-_TRACEBACK:]))
        sys.exit(1)


def spawn(
    function: Callable[Concatenate[_core.Worker, P], object], workers: int, *args: P.args, **kwargs: P.kwargs
) -> None:
    """Starts so many processes that are a group, and calls ``function(worker, *args, **kwargs)`` in each.

    Returns when all have ended. If one fails the others are killed, and SpawnError is raised with its traceback. As always
    with multiprocessing's ``spawn``, the function is found by its name, and a script calls this behind
    ``if __name__ == "__main__":``. Programs of several hosts are started by ``farref launch`` or a scheduler.
    """
    if workers < 1:
        raise ValueError(f"{workers} processes are no group: start one or more")
    _check(function)
    context = multiprocessing.get_context("spawn")
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="farref-") as folder:
        processes, results = [], []
        try:
            for rank in range(workers):
                result, sender = context.Pipe(duplex=False)
                process = context.Process(
                    target=_run,
                    args=(function, rank, workers, f"file://{folder}/store", token, args, kwargs, sender),
                    name=f"worker{rank}",
                )
                process.start()
                sender.close()
                processes.append(process)
                results.append(result)
            _watch(processes, results)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _check(function):
    """What a new process cannot find is told here: there it is only an exit code."""
    try:
        pickle.dumps(function)
        main = sys.modules["__main__"]
        found = getattr(function, "__module__", None) != "__main__" or hasattr(main, "__file__")
        why = None
    except Exception as error:
        found, why = False, error
    if not found:
        raise ValueError(
            f"{function!r} cannot be found by a new process: define it at the top of a module or of the script, not in a "
            "function, a notebook or a console"
        ) from why


def _watch(processes, results):
    """Waits for all, or for the first that fails. What they say is read as it comes: a process does not end before."""
    running = {process.sentinel: process for process in processes}
    saying = dict(zip(results, processes))
    said = {}
    while running:
        for ready in multiprocessing.connection.wait([*running, *saying]):
            if ready in saying:
                _listen(ready, saying, said)
                continue
            process = running.pop(ready)
            process.join()
            if process.exitcode == 0:
                continue
            for result in [result for result, of in saying.items() if of is process]:
                _listen(result, saying, said)
            last, trace = said.get(process, (None, None))
            error = SpawnError(f"{process.name} {_ended(process.exitcode)}" + (f": {last}" if last else ""))
            raise error from (RemoteTraceback(trace) if trace else None)


def _listen(result, saying, said):
    process = saying.pop(result)
    try:
        said[process] = result.recv()
    except (EOFError, OSError):  # it has nothing to say, or was killed while it did
        pass


def _ended(code):
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"ended with exit code {code}"
