"""What can go wrong, a class for each kind, and the way of exceptions from worker to worker."""

import pickle
import traceback

# What of an exception travels. The rest is left where it was raised.
_TRACEBACK = 16 << 10
_PICKLE = 32 << 10
_MESSAGE = 4 << 10


class Error(Exception):
    """Any error of farref's."""


class RemoteError(Error):
    """The function that was called raised an exception that cannot be rebuilt here. Its text and traceback are told:
    ``class_name`` and ``message`` are those of the exception, ``traceback`` is the remote one as a text."""

    class_name: str = ""
    message: str = ""
    traceback: str = ""


class PeerLost(Error, ConnectionError):
    """The worker died, left or was cut off before it answered. Whether the function ran cannot be known."""


class OwnerLost(Error, ConnectionError):
    """The worker that had the value is gone, and the value with it."""


class CreatorLost(Error, ConnectionError):
    """The worker that asked for the value died before its owner got to know of it: there never was one."""


class ContextLost(Error, ConnectionError):
    """A worker that took part in the context is gone."""


class ContextReleased(Error):
    """The context has ended."""


class Timeout(Error, TimeoutError):
    """The call took longer than it was allowed to. It has been cancelled."""


class Cancelled(Error):
    """The call was cancelled."""


class Deadlock(Error):
    """The call would have waited for ever, for a value that one of its own callers uses; or, in a coroutine, it would have kept the
    event loop from going on."""


class NotAuthorized(Error, PermissionError):
    """The worker does not let the caller call that function."""


class TooManyCalls(Error):
    """Too many calls wait for the worker: wait for calls as you make them."""


class Mismatch(Error, TypeError):
    """Two workers disagree on a function or a type: they run different versions of the program."""


class CannotBeSent(Error, TypeError):
    """Arguments or a result cannot be pickled, or not be read."""


class NotOwner(Error):
    """The value is on another worker: copy it with ``to_here()``, or call its methods."""


class NoSuchPeer(Error, LookupError):
    """There is no worker of that name in the group."""


class ReferenceMisused(Error):
    """A reference was used in a way that cannot work."""


class NotMember(Error):
    """This worker is not a member of the group any more."""


class Evicted(Error):
    """The group has declared this worker dead."""


class Minority(Error):
    """This worker sees less than half of its group, and has given it up (``require_majority``)."""


class RendezvousError(Error):
    """The workers did not find each other."""


class ConfigError(Error, ValueError):
    """The settings of a worker make no sense."""


class ShutdownTimeout(Error, TimeoutError):
    """The shutdown was not complete in time. It says what it waited for."""


class Leaked(Error):
    """References were never dropped. It says which."""


class Forked(Error):
    """This process was forked off from a worker, and has none of its threads and connections."""


class RemoteTraceback(Exception):
    """What an exception looked like on the worker that raised it. It is the cause of the one that is raised here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def describe(error: BaseException) -> tuple[str, str, str, bytes | None]:
    """An exception as what travels: its class, its message, its traceback, a pickle of it if there can be one."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        message = str(error)
    except Exception as failed:
        message = f"(its text cannot be had: {failed!r})"
    text = "".join(traceback.format_exception(kind, error, error.__traceback__))
    text, pickled = text[-_TRACEBACK:], None
    try:
        # One that cannot be made again is found out here, and not by who called.
        pickled = pickle.dumps(error, protocol=5)
        if type(pickle.loads(pickled)) is not kind:
            raise TypeError(f"reading it gives another class than {kind.__qualname__}")
        if len(pickled) > _PICKLE:
            raise ValueError(f"it has {len(pickled)} bytes, and no more than {_PICKLE} are sent")
    except Exception as failed:
        pickled = None
        text += (
            f"\n{name} is told as a RemoteError, because pickle cannot make it again: {type(failed).__name__}: {failed}. "
            "An exception whose __init__ has arguments of its own needs a __reduce__.\n"
        )
    return name, message[:_MESSAGE], text, pickled


def rebuild(text: str, name: str, message: str, trace: str, pickled: bytes | None) -> Exception:
    """The exception that was described, or a RemoteError in its place."""
    error = None
    if pickled is not None:
        try:
            error = pickle.loads(pickled)
        except Exception:
            error = None
    # SystemExit and the like end the program that they are raised in, and that was another.
    if not isinstance(error, Exception):
        error = RemoteError(text)
        error.class_name, error.message, error.traceback = name, message, trace
    error.__cause__ = RemoteTraceback(trace) if trace else None
    return error
