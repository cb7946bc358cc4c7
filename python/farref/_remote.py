"""Functions and classes that are meant to be called from other workers."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from . import _core

P = ParamSpec("P")
R = TypeVar("R")  # what a call of it brings, on another worker
Here = TypeVar("Here")  # what it returns here: of a coroutine function, a coroutine
T = TypeVar("T")


class RemoteFunction(Generic[P, Here, R]):
    """A function that says on which worker it is called: ``add.on(peer, 1, 2)``. Called plainly, it runs here."""

    __wrapped__: Callable[P, Here]
    __qualname__: str

    def __init__(self, function: Callable[P, Here], timeout: Any) -> None:
        functools.update_wrapper(self, function)
        # None, or seconds in a tuple: what a peer without a limit of its own takes.
        self._limit = None if timeout is _UNSET else (timeout,)
        # Whoever calls it sees so whether it needs a thread while it waits.
        self.__code__ = getattr(function, "__code__", None)
        if inspect.iscoroutinefunction(function):
            _mark_coroutine_function(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Here:
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self) -> str:
        return self.__qualname__

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        if instance is None:
            return self
        return self.__wrapped__.__get__(instance, owner)

    def __repr__(self) -> str:
        return f"<farref.remote function {self.__module__}.{self.__qualname__}>"

    def on(self, peer: _core.Peer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls it there, and waits for what it returns."""
        return _peer(peer).call(self, *args, **kwargs)

    def start_on(self, peer: _core.Peer, /, *args: P.args, **kwargs: P.kwargs) -> _core.Future[R]:
        """Begins it there. Returns a Future."""
        return _peer(peer).start(self, *args, **kwargs)

    def remote_on(self, peer: _core.Peer, /, *args: P.args, **kwargs: P.kwargs) -> _core.RRef[R]:
        """Calls it there, and leaves what it returns there. Returns an RRef."""
        return _peer(peer).remote(self, *args, **kwargs)


def _mark_coroutine_function(function: Any) -> None:
    """So that others see it: those that ask asyncio, and those that ask inspect, of Python 3.12 and later."""
    import asyncio.coroutines

    function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)
    getattr(inspect, "markcoroutinefunction", lambda _: None)(function)


def _peer(peer: Any) -> Any:
    if isinstance(peer, _core.Peer):
        return peer
    raise TypeError(f"{peer!r} is no worker to call: give a Peer, as worker.peer(name) or rref.owner")


_UNSET: Any = object()

if TYPE_CHECKING:

    class _Mark:
        @overload
        def __call__(self, function: type[T], /) -> type[T]: ...
        @overload
        def __call__(
            self, function: Callable[P, Coroutine[Any, Any, R]], /
        ) -> RemoteFunction[P, Coroutine[Any, Any, R], R]: ...
        @overload
        def __call__(self, function: Callable[P, R], /) -> RemoteFunction[P, R, R]: ...


@overload
def remote(function: type[T], /) -> type[T]: ...
@overload
def remote(function: Callable[P, Coroutine[Any, Any, R]], /) -> RemoteFunction[P, Coroutine[Any, Any, R], R]: ...
@overload
def remote(function: Callable[P, R], /) -> RemoteFunction[P, R, R]: ...
@overload
def remote(*, timeout: float | None = ...) -> _Mark: ...
def remote(function: Any = None, *, timeout: float | None = _UNSET) -> Any:
    """Marks a function or a class as one that other workers call. ``timeout``: how many seconds a call of it may take, unless
    the peer has a limit of its own (``peer.timeout(..)``).

    Any function that can be imported can be called with ``peer.call(function, ..)``, marked or not. A function that is marked
    can be called with ``function.on(peer, ..)`` too, ``function.start_on`` and ``function.remote_on``; of a class that is marked
    an object is made with ``Class.remote_on(peer, ..)``.

    >>> import farref
    >>> @farref.remote(timeout=5)
    ... def add(a, b):
    ...     return a + b
    >>> add(1, 2)  # here
    3
    """

    if timeout is not _UNSET and timeout is not None and not timeout >= 0:
        raise ValueError(f"{timeout} is no time to wait: give seconds, zero or more, or None to wait for ever")

    def mark(marked: Any) -> Any:
        if inspect.isclass(marked):

            def made_on(cls: Any, peer: _core.Peer, /, *args: Any, **kwargs: Any) -> Any:
                """Makes an object of the class on that worker. Returns an RRef."""
                peer = _peer(peer)
                limited = peer if timeout is _UNSET or peer._is_limited else peer.timeout(timeout)
                return limited.remote(cls, *args, **kwargs)

            marked.remote_on = classmethod(made_on)
            return marked
        if not callable(marked):
            raise TypeError(f"{marked!r} cannot be called: mark functions and classes")
        return RemoteFunction(marked, timeout)

    return mark if function is None else mark(function)


def find(name: str) -> Any:
    """What is called so: ``module.function``, ``module.Class.method``, or a builtin."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            # Of a module that is there and lacks another, that is what is to be said.
            if error.name != module and not module.startswith(f"{error.name}."):
                raise
            continue
        return _in(found, parts[end:])
    if len(parts) == 1:
        import builtins

        return _in(builtins, parts)
    raise lacking(f"there is no module with {name!r}")


def _in(found: Any, parts: list[str]) -> Any:
    for part in parts:
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise lacking(error) from error
    return found


def lacking(what: object) -> Exception:
    """An error: this worker does not have what another one means."""
    from ._errors import Mismatch

    worker = _core.current_worker()
    here = "this worker" if worker is None else f"worker `{worker.name}`"
    return Mismatch(
        f"{here} does not have what another worker means: {what}. Functions and classes are found by their names: define them in "
        "modules that both workers can import, in the same version"
    )
