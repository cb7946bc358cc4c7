"""Joining a group."""

import logging

from . import _core

# Those that have not ended, as far as is known.
_joined = []



def join(**settings):
    """Joins a group, and returns this process's :class:`Worker`.

    Everything that is not given comes from the environment, as ``farref launch``, torchrun, Slurm, Open MPI and
    Kubernetes set it, and as Rust workers read it.

    ``name``: what the group is to know the worker by; ``rank`` and ``world_size``: which of how many it is (none: the
    group grows and shrinks); ``rendezvous``: where the workers meet (``tcp://host:port``, ``file:///path``,
    ``etcd://host:port/prefix``); ``token``: the group's secret; ``tls``: files with certificate, key and authority;
    ``insecure=True``: without either, on networks that are trusted; ``bind``, ``advertise``, ``port``: addresses;
    ``join_timeout``, ``call_timeout``, ``shutdown_timeout``, ``peer_timeout``: seconds; ``threads``: how many plain
    functions may run at once; ``require_majority``, ``fail_on_leaks``.

    >>> import farref, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with farref.join(name="alone", rank=0, world_size=1, rendezvous=f"file://{folder}/store") as me:
    ...     me.me.call(len, "four")
    4
    """
    joined = _core.join(**settings)
    _joined[:] = [worker for worker in _joined if worker.is_member] + [joined]
    return joined


def worker():
    """The worker that this code runs for: in a function that another worker has called, the one that was called;
    elsewhere the one that has joined last."""
    found = _core.current_worker()
    if found is not None:
        return found
    if not _joined:
        raise RuntimeError("this process has not joined a group: call farref.join()")
    return _joined[-1]


def at_exit():
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
