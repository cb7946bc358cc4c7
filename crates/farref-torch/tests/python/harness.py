"""Joining a group, counting checks, and leaving with PyTorch's own leak check on."""

import faulthandler
import gc
import json
import os
import sys
import time
import warnings

# Before torch: workers of a test talk over the loopback interface, whatever the host name means.
os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed.rpc as rpc

import peer_api
import references
import worker_api

warnings.filterwarnings("ignore")
# Scenarios collect garbage often, to be sure that nobody holds a reference by accident. All that torch brings along
# need not be looked through each time.
gc.freeze()

# Seconds. No wait in a scenario comes near this, however busy the machine is: it turns a hang into
# a failure with a traceback.
PATIENCE = 120.0
LIFETIME = 600

# The stream for lines about progress. `forks.py` replaces it by its own standard error, because it
# redirects the worker's standard error to a file.
progress = sys.stderr

# Stores that this process hosts. They stay open until it ends, because other workers may still read
# there after `shutdown` has returned here.
_hosted = []


class Checks:
    """Assertions that are counted, so that a test can tell a scenario that ran from one that did nothing."""

    def __init__(self):
        self.names, self.notes = [], {}

    def that(self, name, condition, detail=""):
        if not condition:
            raise AssertionError("%s: %s" % (name, detail))
        self.names.append(name)

    def equal(self, name, got, want):
        self.that(name, same(got, want), "got %r, expected %r" % (got, want))

    def close(self, name, got, want):
        self.that(
            name, got.shape == want.shape and torch.allclose(got, want, rtol=1e-4, atol=1e-6), "%r != %r" % (got, want)
        )

    def error(self, name, kind, texts, call):
        """The call fails with an exception that its sender named `kind` (None: any), and these words in its text."""
        try:
            value = call()
        except Exception as error:
            text, found = str(error), references.error_kind(error)
            self.that(name, kind is None or found == kind, "expected %s, got %s: %s" % (kind, found, text))
            for part in texts:
                self.that(name + ": text", part in text, "%r is not in %r" % (part, text))
            return error
        raise AssertionError("%s: no error, but %r" % (name, value))

    def note(self, name, value):
        """Something worth knowing that no check depends on."""
        self.notes[name] = value


def same(got, want):
    """Equality that knows tensors and nan, and does not take 1 for True or a list for a tuple."""
    if type(got) is not type(want):
        return False
    if isinstance(want, torch.Tensor):
        if got.dtype != want.dtype or got.shape != want.shape or got.layout != want.layout:
            return False
        if want.layout != torch.strided:
            return same(got.to_dense(), want.to_dense())
        return raw(got) == raw(want)
    if isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(same(a, b) for a, b in zip(got, want))
    if isinstance(want, dict):
        return set(got) == set(want) and all(same(got[key], want[key]) for key in want)
    return got == want or (got != got and want != want)


def raw(tensor):
    """The elements in order, as bytes: compares every dtype, and tells nan and -0.0."""
    flat = tensor.detach().contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy()) if flat.numel() else b""


def until(name, condition):
    """Waits until it holds; fails with the last value it had."""
    end = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value is True:
            return
        if time.monotonic() > end:
            raise AssertionError("%s: did not happen in %s s, last: %r" % (name, PATIENCE, value))
        time.sleep(0.02)


def start_rpc(name, rank, world, master, transports, threads=16):
    """`rpc.init_rpc` with the leak check on. `world` is a number, or "dynamic"."""
    options = {} if transports == "default" else {"_transports": ["uv"], "_channels": ["basic"]}
    rpc.api._ignore_rref_leak = False
    rpc.init_rpc(
        name,
        rank=rank,
        world_size=None if world == "dynamic" else int(world),
        rpc_backend_options=rpc.TensorPipeRpcBackendOptions(
            init_method="tcp://" + master, rpc_timeout=PATIENCE, num_worker_threads=threads, **options
        ),
    )


def keep_store():
    """Keeps the store of the group open until this process ends. See `outlive`."""
    agent = rpc.api._get_current_rpc_agent()
    _hosted.append(agent.store if hasattr(agent, "store") else None)


def stop_rpc(rank, graceful=True):
    """`rpc.shutdown`. The worker of rank 0 hosts the store, so it ends last.

    In a dynamic group it waits until it is alone. In a static one its process ends after the
    others', which read the last barrier there.
    """
    agent = rpc.api._get_current_rpc_agent()
    if rank == 0:
        keep_store()
    if graceful and not agent.is_static_group:
        # A worker of a dynamic group goes without waiting, and would not answer the very call that told it to go.
        until("all calls are answered", lambda: int(agent.get_debug_info()["agent.server_active_calls"]) == 0)
    if graceful and rank == 0 and not agent.is_static_group:
        until("the others leave", lambda: len(agent.get_worker_infos()) == 1 or agent.get_worker_infos())
    del agent
    if not graceful:
        # Somebody is dead, and has not let go of what he had.
        rpc.api._ignore_rref_leak = True
    rpc.shutdown(graceful=graceful)


def outlive(scratch, others):
    """Waits until these processes have ended. The program that runs the plan writes a file for each."""
    for other in others:
        wait_for_file(os.path.join(scratch, "ended-" + other))


def watch():
    """A process that hangs prints all stacks and ends with an error."""
    faulthandler.dump_traceback_later(LIFETIME, exit=True)


def wait_for_file(path):
    """Waits as long as this process may live: others may do a lot before they write the file."""
    while path and not os.path.exists(path):
        time.sleep(0.02)


def wait_for_turn(path):
    """Waits for the one before, and a moment longer, so that it is waiting already. It tells nobody
    when it does: it may even wait for the store. Whoever comes too early makes another order of it,
    which ends in the same way."""
    if path:
        wait_for_file(path)
        time.sleep(0.5)


_begun = []


def begin_and_pass_gate(value):
    """Returns the value when `worker_api.open_gate` has been called here. That it has begun shows
    in `begun`, so that a scenario need not guess whether a call is under way."""
    _begun.append(value)
    worker_api.pass_gate()
    return value


def begun():
    """The values that `begin_and_pass_gate` was called with here."""
    return sorted(_begun)


def let_go(path):
    """It is another one's turn."""
    if path:
        open(path, "w").close()


class Group:
    """One Python worker of a scenario: who it is, who the others are, what it has checked."""

    def __init__(self, options):
        self.options = options
        self.name, self.rank, self.world = options.name, options.rank, options.world
        self.pythons, self.peers = options.pythons.split(","), options.peers.split(",")
        self.main, self.peer = self.pythons[0], self.peers[0]
        self.checks = Checks()
        self.debug = None

    def api(self, worker):
        return peer_api if worker in self.peers else worker_api

    def named(self, worker, function):
        """The text by which other workers name a function of this worker."""
        return "%s.%s" % (self.api(worker).__name__, function)

    def ask(self, worker, function, *args):
        """Calls a function that both kinds of workers have."""
        return rpc.rpc_sync(worker, getattr(self.api(worker), function), args=args)

    def signal(self, worker):
        """Lets a process start that waits for it."""
        open(os.path.join(self.options.scratch, "start-" + worker), "w").close()

    def join(self):
        start_rpc(self.name, self.rank, self.world, self.options.master, self.options.transports)

    def meet(self, workers):
        """Waits until each of these workers reaches each. In a dynamic group they come one by one, and PyTorch's workers
        know the name of a newcomer a moment before they know its address."""

        def reached(caller, callee):
            ask = (callee, self.named(callee, "echo"), [caller])
            try:
                seen = self.ask(caller, "caught", *ask)
            except RuntimeError as error:
                return str(error)
            return seen.get("value") == caller or seen

        for caller in workers:
            for callee in workers:
                until("%s reaches %s" % (caller, callee), lambda: reached(caller, callee))

    def settle(self, workers):
        """Waits until nothing is in use on these workers: no owners, forks, pending users, contexts or keys.

        All are asked each time: a Python worker that is asked collects its garbage, in which there may be a reference
        to a value of another one.
        """

        def quiet():
            gc.collect()
            counts = {worker: self.ask(worker, "snapshot") for worker in workers}
            return not any(any(count.values()) for count in counts.values()) or counts

        until("nothing is in use", quiet)
        for worker in workers:
            self.checks.that("nothing is in use on " + worker, True)

    def finish(self, pythons=(), peers=()):
        """Tells others that this scenario needs them no more."""
        for worker in pythons:
            rpc.rpc_sync(worker, worker_api.finish)
        for worker in peers:
            rpc.rpc_sync(worker, peer_api.stop)

    def dismiss(self, worker, function, *args):
        """Tells another worker to go at once. It may be gone before its answer is out; if it does not go, it hangs,
        and the test fails for that."""
        try:
            self.ask(worker, function, *args)
        except RuntimeError as error:
            print("%s was dismissed: %s" % (worker, error), file=sys.stderr)

    def leave(self):
        """Leaves, after PyTorch's own counters are back to zero; its leak check raises if they lie."""

        def quiet():
            gc.collect()
            info = rpc._get_debug_info()
            self.debug = {name: int(info[name]) for name in references.COUNTED}
            return not any(self.debug.values()) or self.debug

        until("all counters are zero", quiet)
        self.checks.that("all counters are zero before shutdown", True)
        stop_rpc(self.rank)
        self.checks.that("graceful shutdown without leaks", True)

    def report(self, ok, error=None):
        line = {
            "scenario": self.options.scenario, "worker": self.name, "main": self.name == self.main, "ok": ok,
            "torch": torch.__version__, "checks": len(self.checks.names), "checked": sorted(set(self.checks.names)),
            "notes": self.checks.notes, "debug": self.debug,
        }  # fmt: skip
        if error:
            line["error"] = error
        print(json.dumps(line), flush=True)


def end_now(code):
    """Ends without the destructors of torch, which may wait for workers that are no more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
