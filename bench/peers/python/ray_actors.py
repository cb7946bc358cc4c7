"""Ray: one actor in another process, calls of its methods, bytes as a numpy array."""

import contextlib
import logging
import os

import numpy
import ray


@ray.remote(num_cpus=0)
class Server:
    def nothing(self):
        pass

    def swallow(self, array):
        return array.size


class Caller:
    def __init__(self, server):
        self.server = server

    def call(self):
        ray.get(self.server.nothing.remote())

    def start(self):
        return self.server.nothing.remote()

    def finish(self, started):
        ray.get(started)

    def payload(self, size):
        return numpy.full(size, 7, dtype=numpy.uint8)

    def send(self, payload):
        return ray.get(self.server.swallow.remote(payload))


@contextlib.contextmanager
def connected():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=1 << 30,
        _node_ip_address="127.0.0.1",
    )
    server = Server.remote()
    ray.get(server.nothing.remote())
    yield Caller(server), ray.__version__
    ray.shutdown()
