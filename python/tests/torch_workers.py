"""Workers of a test's program of torch.distributed.rpc: started by the test, and in the program."""

import contextlib
import os
import signal
import subprocess
import sys

from processes import environment


def run(program, name, workers, folder, patience, dies=(), **variables):
    """Runs a program on farref, and asserts that all of its workers end well; but for those that are to die. What they said."""
    command = [sys.executable, "-m", "farref.torch", str(program), name, str(workers), str(folder / "store")]
    # Of its own session: whatever hangs ends with it.
    started = subprocess.Popen(
        command,
        env={**environment(), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = started.communicate(timeout=patience)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert started.returncode == 0, printed
    ends = list(map(int, printed.splitlines()[-1].split()))
    assert len(ends) == workers and all(rank in dies or end == 0 for rank, end in enumerate(ends)), printed
    return printed


def fork(number, work):
    """Called by the program, which has imported torch and done nothing else: so many workers are forked off, and each does its work with
    its rank. The last words are how they ended."""
    workers = []
    for rank in range(number):
        worker = os.fork()
        if worker == 0:
            return work(rank)
        workers.append(worker)
    print(*(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers))
