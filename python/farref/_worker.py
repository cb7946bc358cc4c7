"""Joining a group."""

from __future__ import annotations

import functools
import logging
from typing import Any

from . import _core, _cuda_shared, _loop
from ._errors import ConfigError, NotMember

# Those that have not ended, as far as is known.
_joined: list[_core.Worker] = []


def join(
    *,
    name: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    rendezvous: str | None = None,
    token: str | None = None,
    tls: tuple[str, str, str] | None = None,
    insecure: bool = False,
    bind: str | None = None,
    advertise: str | None = None,
    port: int | None = None,
    join_timeout: float | None = None,
    call_timeout: float | None = None,
    shutdown_timeout: float | None = None,
    peer_timeout: float | None = None,
    threads: int | None = None,
    require_majority: bool | None = None,
    fail_on_leaks: bool | None = None,
) -> _core.Worker:
    """Joins a group, and returns this process's :class:`Worker`.

    Everything that is not given comes from the environment, as ``farref launch``, torchrun, Slurm, Open MPI and
    Kubernetes set it, and as Rust workers read it.

    ``name``: what the group is to know the worker by; ``rank`` and ``world_size``: which of how many it is (none: the
    group grows and shrinks); ``rendezvous``: where the workers meet (``tcp://host:port``, ``file:///path``,
    ``etcd://host:port/prefix``); ``token``: the group's secret; ``tls``: three files, ``(certificate, key, authority)``;
    ``insecure=True``: without either, on networks that are trusted; ``bind``, ``advertise``, ``port``: addresses;
    ``join_timeout``, ``call_timeout``, ``shutdown_timeout``, ``peer_timeout``: seconds; ``threads``: how many plain
    functions may run at once; ``require_majority``: a worker that sees less than half of its group gives it up;
    ``fail_on_leaks``: references that are still held at the end are an error (:class:`Leaked`), and not a warning.

    >>> import farref, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with farref.join(name="alone", rank=0, world_size=1, rendezvous=f"file://{folder}/store") as me:
    ...     me.me.call(len, "four")
    4
    """
    if rank is not None and rank < 0:
        raise ConfigError(f"rank={rank} is no rank: the first is 0")
    if threads is not None and threads < 1:
        raise ConfigError(f"threads={threads} would run nothing: give one or more")
    if tls is not None and (isinstance(tls, str) or len(tls) != 3):
        raise ConfigError(f"tls={tls!r} is not what it is to be: three files, (certificate, key, authority)")
    joined = _core.join(
        name=name,
        rank=rank,
        world_size=world_size,
        rendezvous=rendezvous,
        token=token,
        tls=tls,
        insecure=insecure,
        bind=bind,
        advertise=advertise,
        port=port,
        join_timeout=join_timeout,
        call_timeout=call_timeout,
        shutdown_timeout=shutdown_timeout,
        peer_timeout=peer_timeout,
        threads=threads,
        require_majority=require_majority,
        fail_on_leaks=fail_on_leaks,
    )
    _joined[:] = [worker for worker in _joined if worker.is_member] + [joined]
    return joined


def worker() -> _core.Worker:
    """The worker that this code runs for: in a function that another worker has called, the one that was called;
    elsewhere the one that has joined last, of those that have not ended."""
    found = _core.current_worker()
    if found is not None:
        return found
    for joined in reversed(_joined):
        if joined.is_member:
            return joined
    raise NotMember(
        "this process has not joined a group: call farref.join(); workers of a farref.testing.Cluster are asked for by their names"
    )


def _drained(end: Any) -> Any:
    """The end of a worker that gives back first what it has let go of and its devices still work on: it counts as held otherwise."""

    @functools.wraps(end)
    def ending(self: _core.Worker, *raised: Any) -> Any:
        if not any(raised):
            _cuda_shared.drain()
        return end(self, *raised)

    return ending


for _name in ("shutdown", "leave", "__exit__"):
    setattr(_core.Worker, _name, _drained(getattr(_core.Worker, _name)))


def at_exit() -> None:
    """Before Python ends its threads: workers that the program has not ended are gone, as the others see at once, and threads
    of the core ask Python for nothing any more."""
    if _core.has_forked():
        return
    for worker in _joined:
        if worker.is_member:
            logging.getLogger("farref").warning(
                "the program ends, and worker %r has not been ended: the group takes it for dead; call shutdown() or leave()",
                worker.name,
            )
            worker.crash()
    _core.close()
    _loop.end()
