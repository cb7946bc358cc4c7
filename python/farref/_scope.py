"""What code runs for: the call that it serves, the context that it is in."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from . import _core

current: contextvars.ContextVar[_core.PyScope | None] = contextvars.ContextVar("farref.scope", default=None)

context_id = _core.context_id


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
    from ._worker import worker as this_worker

    opened = _core.Context(worker if worker is not None else this_worker())
    token = current.set(opened.scope())
    try:
        yield opened
    finally:
        current.reset(token)
        opened.release()
