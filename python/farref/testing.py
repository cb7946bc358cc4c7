"""Groups in one process, for tests.

>>> import farref
>>> with farref.testing.Cluster("a", "b") as cluster:
...     cluster["a"].peer("b").call(max, 3, 5)
5
"""

from __future__ import annotations

import gc
import types

from . import _core


class Cluster:
    """Workers of this process that are a group, over a network in memory.

    Values are pickled and references counted as between processes. At the end of its block the group is shut down, and a
    reference that somebody still holds is an error.
    """

    def __init__(self, *names: str) -> None:
        self._cluster = _core.PyCluster(list(names))

    def __getitem__(self, name: str) -> _core.Worker:
        workers = self._cluster.workers()
        for worker in workers:
            if worker.name == name:
                return worker
        raise KeyError(f"no worker of the cluster is called {name!r}: there are {[worker.name for worker in workers]}")

    def workers(self) -> list[_core.Worker]:
        """All workers, in the order of their names as they were given."""
        return self._cluster.workers()

    def shutdown(self) -> None:
        """Ends the group."""
        # What is only held by itself is not held.
        gc.collect()
        self._cluster.shutdown()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
        else:
            for worker in self._cluster.workers():
                worker.crash()
