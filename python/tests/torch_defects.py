"""What torch.distributed.rpc gets wrong, as programs that show it. Nothing here knows of farref: the same programs run on
PyTorch's own core and on farref's (``test_torch_defects.py``).

    python torch_defects.py folder seconds [experiment..]

Each experiment is a few workers, forked off from this process, which has imported torch and done nothing else. What they find
out goes into ``folder/findings``, a line of JSON each: experiment, question, answer. Whatever takes longer than so many seconds
hangs, and is ended.
"""

import json
import os
import signal
import sys
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.nn
import torch.distributed.rpc as rpc
from testkit import TEST_TIMEOUT, eventually

# Experiments at a time.
AT_ONCE = 4


class Experiment:
    """What a worker knows of the experiment that it takes part in."""

    name = rank = folder = patience = None


me = Experiment()


def find(question, answer):
    """Writes down an answer. The last one counts."""
    line = json.dumps([me.name, question, str(answer)]) + "\n"
    with open(os.path.join(me.folder, "findings"), "a") as file:
        file.write(line)


def attempt(question, function, *args, **kwargs):
    """Does something that may hang, and writes down what becomes of it. Returns what it returns."""
    find(question, "hangs")
    signal.alarm(me.patience)  # its default ends the process, whatever that waits for
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        find(question, f"raises {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        result = None
    else:
        find(question, "works")
    signal.alarm(0)
    return result


def join(name=None, world_size=2, part="", threads=4):
    # In groups without a size PyTorch gives up joining after this time.
    timeout = TEST_TIMEOUT if world_size else me.patience - 2.0
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=threads, rpc_timeout=timeout, init_method=f"file://{me.folder}/{me.name}{part}"
    )
    rpc.init_rpc(name or f"worker{me.rank}", rank=me.rank, world_size=world_size, rpc_backend_options=options)


def path(name):
    return os.path.join(me.folder, f"{me.name}.{name}")


def touch(name):
    with open(path(name), "w"):
        pass


def wait_for(name, seconds=TEST_TIMEOUT):
    """Until another worker has come so far."""
    return becomes(lambda: os.path.exists(path(name)), seconds)


def becomes(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def state(pid):
    """The letter that the system has for a process: "T" if it is stopped, "Z" if it has ended."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def has_ended(pid):
    try:
        return state(pid) == "Z"
    except OSError:
        return True


def add(a, b):
    return a + b


def doubled_without_context(event, a):
    """Waits until the caller has left its context, and until that is gone here. On farref it stays for this call."""
    wait_for(event)
    becomes(lambda: dist_autograd._get_debug_info()["num_autograd_contexts"] in (0, "0"), 5.0)
    return a * 2


def slowly(a):
    time.sleep(0.5)
    return a * 2


def owned():
    """Values of this worker that others hold references to."""
    return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])


kept = []


def keep(value):
    kept.append(value)


class Noticed:
    """Its end is seen from other processes."""

    def __init__(self, name):
        self.name = name

    def __del__(self):
        touch(self.name)


def E1():
    """A reference is dropped whose owner has no thread left: what says so is sent again and again."""
    join(threads=1)
    if me.rank == 0:
        rref = rpc.remote("worker1", Noticed, args=("end",))
        eventually(rref.confirmed_by_owner)
        busy = rpc.rpc_async("worker1", wait_for, args=("go", 4.0 * TEST_TIMEOUT), timeout=4.0 * TEST_TIMEOUT)
        rpc._set_rpc_timeout(0.5)
        del rref
        find("freed while its worker is busy", wait_for("end", me.patience))
        rpc._set_rpc_timeout(TEST_TIMEOUT)
        touch("go")
        busy.wait()
        rpc.rpc_sync("worker1", add, args=(1, 2))  # behind all that waited there
        find("freed at last", wait_for("end"))
        with open(path("1.log")) as log:
            find("what was sent again arrives whole", "rror while processing" not in log.read())
    rpc.shutdown()


def E2():
    """A value is made on a worker that does not answer."""
    join()
    if me.rank == 0:
        pid = rpc.rpc_sync("worker1", os.getpid)
        os.kill(pid, signal.SIGSTOP)
        eventually(lambda: state(pid) == "T")
        try:
            rrefs = [rpc.remote("worker1", add, args=(1, 2), timeout=0.3) for _ in range(2)]
            # PyTorch says so as soon as they have timed out.
            is_confirmed = becomes(lambda: any(rref.confirmed_by_owner() for rref in rrefs), 3.0)
            find("confirmed by an owner that has not heard of it", is_confirmed)
            for number, rref in enumerate(rrefs, 1):
                attempt(f"to_here() of timed-out reference {number}", rref.to_here, timeout=0.5)
        finally:
            os.kill(pid, signal.SIGCONT)
        del rrefs
        assert rpc.rpc_sync("worker1", add, args=(1, 2)) == 3
    rpc.shutdown()


def E3():
    """A worker is killed."""
    join()
    if me.rank == 1:
        wait_for("never")
    mine = rpc.RRef([1])
    rpc.rpc_sync("worker1", keep, args=(mine,))
    assert owned() == 1
    pid = rpc.rpc_sync("worker1", os.getpid)
    pending = rpc.rpc_async("worker1", time.sleep, args=(4 * TEST_TIMEOUT,), timeout=0)
    made = rpc.remote("worker1", slowly, args=(1,))
    os.kill(pid, signal.SIGKILL)
    attempt("a call under way", pending.wait)
    attempt("a new call", rpc.rpc_sync, "worker1", add, args=(1, 2))
    find("what it held is freed", becomes(lambda: owned() == 0, me.patience / 2))
    del made
    attempt("shutdown()", rpc.shutdown)


def E4():
    """A result that nobody uses."""
    join()
    if me.rank == 0:
        a, b = torch.rand(3, 3, requires_grad=True), torch.rand(3, 3, requires_grad=True)
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync("worker1", torch.mul, args=(a, b)).sum()
            rpc.rpc_sync("worker1", torch.add, args=(a, b))
            rpc._set_rpc_timeout(me.patience / 5)
            attempt("backward() with an unused result", dist_autograd.backward, context, [loss])
            gradients = dist_autograd.get_gradients(context)
            is_right = a in gradients and torch.allclose(gradients[a], b)
            find("the gradients are right", is_right)
    rpc.shutdown(graceful=False) if me.rank == 0 and not is_right else rpc.shutdown()


def E5():
    """A context ends before a call that was made in it."""
    join()
    if me.rank == 0:
        with dist_autograd.context():
            late = rpc.rpc_async("worker1", doubled_without_context, args=("out", torch.ones(2, requires_grad=True)))
        touch("out")
        attempt("the result of a call that outlives its context", late.wait)
    rpc.shutdown()


def E7():
    """Half a millisecond."""
    join()
    if me.rank == 0:
        attempt("a call of half a second with a timeout of half a millisecond", rpc.rpc_sync, "worker1", slowly, args=(1,), timeout=0.0005)
    rpc.shutdown()


def E8():
    """Two groups, one after the other."""
    join(part=".1")
    rpc.shutdown()
    join(part=".2")
    if me.rank == 0:
        rref = rpc.remote("worker1", Noticed, args=("end",))
        attempt("a reference in a call of the second group", rpc.rpc_sync, "worker1", add, args=([rref], []))
        del rref
        find("dropped references are freed in the second group", wait_for("end", me.patience / 2))
        touch("done")
    else:
        wait_for("done")
    rpc.shutdown(graceful=False)


def E10():
    """A module on another worker that is to train no more."""
    join()
    if me.rank == 0:
        module = torch.distributed.nn.RemoteModule("worker1/cpu", torch.nn.Dropout)
        module.train(False)
        find("train(False) reaches a remote module", not rpc.rpc_sync("worker1", is_training, args=(module.get_module_rref(),)))
        del module
    rpc.shutdown()


def is_training(rref):
    return rref.local_value().training


def E11():
    """A name with a dash in a group without a size."""
    if me.rank == 1:
        wait_for("first")
        attempt("joining a worker with a dash in its name", join, "worker-b", None)
        touch("done")
        os._exit(0)
    join("worker-a", None)
    touch("first")
    wait_for("done")
    os._exit(0)


def E13():
    """A member of a group without a size is killed; others join, one under its name."""
    if me.rank == 1:
        wait_for("first")
        join("b", None)
        with open(path("pid"), "w") as file:
            file.write(str(os.getpid()))
        touch("second")
        os.kill(os.getpid(), signal.SIGKILL)
    if me.rank == 0:
        join("a", None)
        touch("first")
        wait_for("done")
        os._exit(0)
    wait_for("second")
    with open(path("pid")) as file:
        killed = int(file.read())
    eventually(lambda: has_ended(killed))
    # Another process, which the operating system has let in where it let the dead one.
    child = os.fork()
    if child == 0:
        attempt("joining after a member was killed", join, "c", None)
        os._exit(0)
    os.waitpid(child, 0)
    me.rank = 1
    attempt("joining under the name of the dead", join, "b", None)
    if rpc.api._is_current_rpc_agent_set():
        find("its calls arrive", rpc.rpc_sync("a", add, args=(1, 2)) == 3)
    touch("done")
    os._exit(0)


EXPERIMENTS = {function.__name__: (function, workers) for function, workers in [
    (E1, 2), (E2, 2), (E3, 2), (E4, 2), (E5, 2), (E7, 2), (E8, 2), (E10, 2), (E11, 2), (E13, 3),
]}


def begin(name, folder, patience):
    """Forks off the workers of an experiment."""
    function, workers = EXPERIMENTS[name]
    processes = []
    for rank in range(workers):
        process = os.fork()
        if process == 0:
            me.name, me.rank, me.folder, me.patience = name, rank, folder, patience
            said = os.open(os.path.join(folder, f"{name}.{rank}.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(said, 1)
            os.dup2(said, 2)
            status = 1
            try:
                function()
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        processes.append(process)
    return processes


def run(names, folder, patience):
    """All experiments, some at a time. Those who are left when others have ended are not waited for for ever."""
    left, running = list(names), {}
    while left or running:
        while left and len(running) < AT_ONCE:
            name = left.pop(0)
            running[name] = begin(name, folder, patience), time.monotonic() + 60 + 4 * patience
        for name, (processes, until) in list(running.items()):
            for process in list(processes):
                if os.waitpid(process, os.WNOHANG)[0]:
                    processes.remove(process)
                    until = min(until, time.monotonic() + 2 * patience)
            for process in processes if time.monotonic() > until else ():
                os.kill(process, signal.SIGKILL)
            running[name] = processes, until
            if not processes:
                del running[name]
        time.sleep(0.05)


if __name__ == "__main__":
    run(sys.argv[3:] or EXPERIMENTS, sys.argv[1], int(sys.argv[2]))
