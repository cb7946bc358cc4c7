"""Far references: programs that span processes and machines.

Call a function on another worker; its value comes back, or it stays there and you hold an :class:`RRef`, a far
reference that can be used, handed to a third worker and dropped. The value lives exactly as long as somebody holds it,
through crashes and broken connections.

>>> import farref
>>> from collections import Counter
>>> with farref.testing.Cluster("trainer", "ps") as cluster:
...     ps = cluster["trainer"].peer("ps")        # a handle to another worker
...     ps.call(divmod, 7, 2)                     # the value comes back
...     words = ps.remote(Counter, "abracadabra") # the value stays there
...     words.call.most_common(1)                 # methods on the far value
...     del words                                 # nobody holds it: freed on "ps"
(3, 1)
[('a', 5)]

One idea: **a call is made and waited for, begun, or left there.** ``call`` waits for the value, ``start`` begins it and
returns a :class:`Future`, ``remote`` leaves the value with the callee and returns a reference at once.

Programs of several processes begin with :func:`join`; ``farref launch`` starts them.
"""

import atexit as _atexit
import os as _os

from . import _core, testing
from ._core import Context, Future, Peer, RRef, Worker, __version__, caller
from ._cuda_maps import map_devices
from ._context import context
from ._errors import (
    Cancelled,
    CannotBeSent,
    ConfigError,
    ContextLost,
    ContextReleased,
    CreatorLost,
    Deadlock,
    Error,
    Evicted,
    Forked,
    Leaked,
    Minority,
    Mismatch,
    NoSuchPeer,
    NotAuthorized,
    NotMember,
    NotOwner,
    OwnerLost,
    PeerLost,
    ReferenceMisused,
    RemoteError,
    RemoteTraceback,
    RendezvousError,
    ShutdownTimeout,
    Timeout,
    TooManyCalls,
)
from ._remote import remote
from ._scope import context_id
from ._spawn import SpawnError, spawn
from ._worker import at_exit as _at_exit, join, worker

__all__ = [
    "Cancelled",
    "CannotBeSent",
    "ConfigError",
    "Context",
    "ContextLost",
    "ContextReleased",
    "CreatorLost",
    "Deadlock",
    "Error",
    "Evicted",
    "Forked",
    "Future",
    "Leaked",
    "Minority",
    "Mismatch",
    "NoSuchPeer",
    "NotAuthorized",
    "NotMember",
    "NotOwner",
    "OwnerLost",
    "Peer",
    "PeerLost",
    "RRef",
    "ReferenceMisused",
    "RemoteError",
    "RemoteTraceback",
    "RendezvousError",
    "ShutdownTimeout",
    "SpawnError",
    "Timeout",
    "TooManyCalls",
    "Worker",
    "__version__",
    "caller",
    "context",
    "context_id",
    "join",
    "map_devices",
    "remote",
    "spawn",
    "testing",
    "worker",
]

_os.register_at_fork(after_in_child=_core.forked)
_atexit.register(_at_exit)
