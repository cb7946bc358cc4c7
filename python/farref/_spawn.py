"""A group of processes on this host, started by a program: for examples, tests and programs of one machine."""

import multiprocessing
import multiprocessing.connection
import secrets
import sys
import tempfile
import traceback

from . import _worker
from ._errors import RemoteTraceback


class SpawnError(RuntimeError):
    """A process that was spawned has failed. Its traceback is the cause."""


def _run(function, rank, workers, place, token, args, result):
    try:
        with _worker.join(
            name=f"worker{rank}", rank=rank, world_size=workers, rendezvous=place, token=token
        ) as me:
            function(me, *args)
    except BaseException as error:
        result.send("".join(traceback.format_exception(error)))
        sys.exit(1)


def spawn(function, workers, *args):
    """Starts so many processes that are a group, and calls ``function(worker, *args)`` in each.

    Returns when all have ended. If one fails the others are killed, and SpawnError is raised with its traceback. As always
    with multiprocessing's ``spawn``, the function is found by its name, and a script calls this behind
    ``if __name__ == "__main__":``. Programs of several hosts are started by ``farref launch`` or a scheduler.
    """
    if workers < 1:
        raise ValueError(f"{workers} processes are no group: start one or more")
    context = multiprocessing.get_context("spawn")
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="farref-") as folder:
        processes, results = [], []
        for rank in range(workers):
            result, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=_run,
                args=(function, rank, workers, f"file://{folder}/store", token, args, sender),
                name=f"worker{rank}",
            )
            process.start()
            sender.close()
            processes.append(process)
            results.append(result)
        try:
            _watch(processes, results)
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()


def _watch(processes, results):
    """Waits for all, or for the first that fails."""
    running = dict(zip([process.sentinel for process in processes], zip(processes, results)))
    while running:
        for sentinel in multiprocessing.connection.wait(running):
            process, result = running.pop(sentinel)
            process.join()
            if process.exitcode == 0:
                continue
            try:
                trace = result.recv()
            except EOFError:
                trace = None
            error = SpawnError(f"{process.name} ended with exit code {process.exitcode}")
            raise error from (RemoteTraceback(trace) if trace else None)
