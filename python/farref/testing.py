"""Groups in one process, for tests.

>>> import farref
>>> with farref.testing.Cluster("a", "b") as cluster:
...     cluster["a"].peer("b").call(max, 3, 5)
5
"""

from . import _core


class Cluster:
    """Workers of this process that are a group, over a network in memory.

    Values are pickled and references counted as between processes. At the end of its block the group is shut down, and a
    reference that somebody still holds is an error.
    """

    def __init__(self, *names):
        self._cluster = _core.PyCluster(list(names))

    def __getitem__(self, name):
        for worker in self._cluster.workers():
            if worker.name == name:
                return worker
        raise KeyError(name)

    def workers(self):
        """All workers, in the order of their names as they were given."""
        return self._cluster.workers()

    def shutdown(self):
        """Ends the group."""
        self._cluster.shutdown()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.shutdown()
        else:
            for worker in self._cluster.workers():
                worker.crash()
        return False
