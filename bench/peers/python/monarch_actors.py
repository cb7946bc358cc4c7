"""Monarch: one actor in another process, calls of its endpoints, bytes as `bytes`."""

import contextlib
import importlib.metadata
import os

from monarch.actor import Actor, endpoint, this_host


class Server(Actor):
    @endpoint
    async def nothing(self) -> None:
        pass

    @endpoint
    async def swallow(self, payload: bytes) -> int:
        return len(payload)


class Caller:
    def __init__(self, server):
        self.server = server

    def call(self):
        self.server.nothing.call_one().get()

    def start(self):
        return self.server.nothing.call_one()

    def finish(self, started):
        for one in started:
            one.get()

    def payload(self, size):
        return b"\x07" * size

    def send(self, payload):
        return self.server.swallow.call_one(payload).get()


@contextlib.contextmanager
def connected():
    # The other process looks for this file.
    os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))
    processes = this_host().spawn_procs({"gpus": 1})
    server = processes.spawn("server", Server)
    server.nothing.call_one().get()
    yield Caller(server), importlib.metadata.version("torchmonarch")
    processes.stop().get()
