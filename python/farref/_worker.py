"""Joining a group."""

from . import _core

_joined = None



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
    global _joined
    _joined = _core.join(**settings)
    return _joined


def worker():
    """The worker that this code runs for: in a function that another worker has called, the one that was called;
    elsewhere the one that has joined last."""
    found = _core.current_worker() or _joined
    if found is None:
        raise RuntimeError("this process has not joined a group: call farref.join()")
    return found
