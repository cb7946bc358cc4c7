"""Contexts: calls that belong together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from . import _core
from ._scope import current
from ._worker import worker as this_worker


@contextlib.contextmanager
def context(worker: _core.Worker | None = None) -> Iterator[_core.Context]:
    """A context: all calls inside of the block belong together, on whichever worker they are made.

    >>> import farref
    >>> with farref.testing.Cluster("a", "b") as cluster:
    ...     a = cluster["a"]
    ...     with farref.context(a) as context:
    ...         a.peer("b").call(farref.context_id) == context.id
    ...     a.peer("b").call(farref.context_id) is None
    True
    True
    """
    opened = _core.Context(worker if worker is not None else this_worker())
    token = current.set(opened.scope())
    try:
        yield opened
    finally:
        current.reset(token)
        opened.release()
