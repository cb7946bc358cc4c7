"""Workers of a test's program of torch.distributed.rpc: started by the test, and in the program."""

import os

from fork_server import fork_server
from testkit import Process, environment

# What the programs import, and nothing of theirs looks for GPUs meanwhile.
MODULES = ["farref.torch", "torch", "torch.distributed.rpc", "torch.distributed.autograd", "torch.distributed.optim"]


def run(program, name, workers, folder, dies=(), **variables):
    """Runs a program on farref, as ``python -m farref.torch program`` does. All of its workers have to succeed, but for
    those that are to die. Returns what they printed."""

    def start(output, errors):
        arguments = ["farref.torch", str(program), name, str(workers), str(folder / "store")]
        return fork_server(*MODULES).start(
            output, output, arguments=arguments, environment=environment(**variables), new_session=True
        )

    started = Process(f"{program.name} {name}", start, leads_session=True)
    try:
        printed = started.succeeds()
    finally:
        started.kill()
    ends = list(map(int, printed.splitlines()[-1].split()))
    assert len(ends) == workers and all(rank in dies or end == 0 for rank, end in enumerate(ends)), printed
    return printed


def fork(number, work):
    """Called by the program, which has imported torch and done nothing else: forks off so many workers, each of which
    does its work with its rank. Prints at the end how they ended."""
    workers = []
    for rank in range(number):
        worker = os.fork()
        if worker == 0:
            return work(rank)
        workers.append(worker)
    print(*(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) for worker in workers))
