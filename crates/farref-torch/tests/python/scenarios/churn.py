"""A dynamic group in which workers come and go all the time, several at once; where the plan says so, some are killed.

In each round a Python worker and two peers come, while the peers of the round before go; then its Python worker goes. All
of them call each other, and share references. In the middle of it two workers may be killed. Nobody waits for them, and the group goes on: they are
taken off the list of the members, and the next ones come as before.
"""

import os
import signal

import torch.distributed.rpc as rpc

import forks
import harness
import peer_api
import worker_api
from harness import until


def run(group):
    group.join()
    if group.name == group.main:
        Churn(group).drive()
    else:
        worker_api.finished.wait()
    group.leave()


class Churn:
    def __init__(self, group):
        self.group, self.check = group, group.checks
        self.rounds = group.options.rounds
        self.here, self.python = [group.name], {}
        self.joins = self.leaves = 0
        # Peers that come once, to be killed.
        self.victims = group.options.killed.split(",") if group.options.killed else []
        self.peers = [peer for peer in group.peers if peer not in self.victims]

    def drive(self):
        victims, before = [], []
        for number in range(self.rounds):
            self.say("round %d of %d: %d have come, %d have gone" % (number, self.rounds, self.joins, self.leaves))
            newcomers = ["%s_%d" % (peer, number) for peer in self.peers] + ["python_%d" % number]
            if self.victims and number == self.rounds // 2:
                victims = self.victims + ["python_victim"]
                newcomers += victims
            self.come(newcomers, number)
            # At the same time, so that they have to wait for each other's turns.
            for worker in newcomers:
                self.group.signal(worker)
            self.go([worker for worker in before if not self.is_python(worker)])
            self.all_know_who_is_there()
            # A Python worker that waits for its turn to leave cannot be told of newcomers: see README.md.
            self.go([worker for worker in before if self.is_python(worker)])
            self.all_know_who_is_there()
            self.all_reach_all()
            self.all_use_references(number)
            before = [worker for worker in newcomers if worker not in victims]
            if len(before) < len(newcomers):
                self.kill(victims)
        self.go(before)
        self.all_know_who_is_there()
        for name, process in self.python.items():
            until("%s ends" % name, lambda: process.poll() is not None)
            expected = -signal.SIGKILL if name in victims else 0
            self.check.equal("how %s ended" % name, process.returncode, expected)
        self.check.note("joins and leaves", [self.joins, self.leaves])
        self.say("%d have come, %d have gone, %d were killed" % (self.joins, self.leaves, len(victims)))

    def say(self, text):
        print("progress: %s" % text, file=harness.progress, flush=True)

    def come(self, newcomers, number):
        """Peers come when they are told to; Python workers have to be started. They get numbers that nobody had."""
        for place, worker in enumerate(name for name in newcomers if name.startswith("python")):
            options = self.group.options
            args = ["--scenario", "churn", "--name", worker, "--rank", str(10_000 + 2 * number + place)]
            args += ["--world", "dynamic", "--master", options.master, "--transports", options.transports]
            args += ["--pythons", self.group.name, "--peers", ",".join(self.group.peers), "--scratch", options.scratch]
            args += ["--start-when", os.path.join(options.scratch, "start-" + worker)]
            # To where this worker's own go, so that they are shown with it.
            err = os.path.join(options.scratch, options.name + ".err")
            self.python[worker] = forks.Forked(args, err, err)
        self.joins += len(newcomers)
        self.here += newcomers

    def go(self, workers):
        for worker in workers:
            rpc.rpc_sync(worker, self.api(worker).finish if self.is_python(worker) else peer_api.stop)
            self.here.remove(worker)
        self.leaves += len(workers)

    def is_python(self, worker):
        return worker.startswith("python")

    def api(self, worker):
        return worker_api if self.is_python(worker) else peer_api

    def ask(self, worker, function, *args):
        return rpc.rpc_sync(worker, getattr(self.api(worker), function), args=args)

    def named(self, worker, function):
        return "%s.%s" % (self.api(worker).__name__, function)

    def all_know_who_is_there(self):
        everybody = sorted(self.here)

        def known(worker):
            try:
                found = self.ask(worker, "workers")
            except RuntimeError as error:
                # It is on its way.
                return str(error)
            return found == everybody or found

        for worker in everybody:
            until("%s knows who is there" % worker, lambda: known(worker))

    def all_reach_all(self):
        for caller in self.here:
            for callee in self.here:
                ask = (callee, self.named(callee, "echo"), [caller])
                until(
                    "%s reaches %s" % (caller, callee),
                    lambda: (lambda seen: seen.get("value") == caller or seen)(self.ask(caller, "caught", *ask)),
                )
                self.check.that("all reach all", True)

    def all_use_references(self, number):
        """A value of each is held by the next one."""
        for owner, holder in zip(self.here, self.here[1:] + self.here[:1]):
            self.ask(owner, "own", "round", [owner, number])
            self.ask(owner, "share", "round", holder, self.named(holder, "hold"), "of another")
        for owner, holder in zip(self.here, self.here[1:] + self.here[:1]):
            self.check.equal("a value of another", self.ask(holder, "held", "of another"), [owner, number])
        for worker in self.here:
            self.ask(worker, "drop", "of another")
            self.ask(worker, "drop", "round")

        def quiet():
            counts = {worker: self.ask(worker, "snapshot") for worker in self.here}
            return not any(any(count.values()) for count in counts.values()) or counts

        until("nothing is in use", quiet)
        self.check.that("nothing is in use", True)

    def kill(self, victims):
        """While they have calls to answer."""
        waiting = [
            rpc.rpc_async(victim, self.api(victim).sleep, args=(harness.LIFETIME,), timeout=0) for victim in victims
        ]
        helper = next(worker for worker in self.here if not self.is_python(worker) and worker not in victims)
        ask = (victims[1], self.named(victims[1], "sleep"), [harness.LIFETIME])
        by_peer = rpc.rpc_async(helper, peer_api.caught, args=ask, timeout=0)
        pids = [self.ask(victim, "pid") for victim in victims]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for victim, call in zip(victims, waiting):
            self.check.error("a call to one that is killed ends", None, [], call.wait)
            self.here.remove(victim)
        seen = by_peer.wait()
        self.check.that("a peer's call, too", seen["kind"] is not None, seen)
        self.say("%s were killed" % victims)
        self.all_know_who_is_there()
        self.check.that("those who were killed are off the list", True)
