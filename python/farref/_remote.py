"""Functions and classes that are meant to be called from other workers."""

import functools
import importlib
import inspect


class RemoteFunction:
    """A function that says on which worker it is called: ``add.on(peer, 1, 2)``. Called plainly, it runs here."""

    def __init__(self, function, timeout):
        functools.update_wrapper(self, function)
        # None, or seconds in a tuple: what a peer without a limit of its own takes.
        self._limit = None if timeout is _UNSET else (timeout,)
        # Whoever calls it sees so whether it needs a thread while it waits.
        self.__code__ = getattr(function, "__code__", None)

    def __call__(self, *args, **kwargs):
        return self.__wrapped__(*args, **kwargs)

    def __reduce__(self):
        return self.__qualname__

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        return self.__wrapped__.__get__(instance, owner)

    def on(self, peer, /, *args, **kwargs):
        """Calls it there, and waits for what it returns."""
        return peer.call(self, *args, **kwargs)

    def start_on(self, peer, /, *args, **kwargs):
        """Begins it there. Returns a Future."""
        return peer.start(self, *args, **kwargs)

    def remote_on(self, peer, /, *args, **kwargs):
        """Calls it there, and leaves what it returns there. Returns an RRef."""
        return peer.remote(self, *args, **kwargs)


_UNSET = object()


def remote(function=None, *, timeout=_UNSET):
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

    def mark(marked):
        if inspect.isclass(marked):

            def made_on(cls, peer, /, *args, **kwargs):
                """Makes an object of the class on that worker. Returns an RRef."""
                limited = peer if timeout is _UNSET or peer._is_limited else peer.timeout(timeout)
                return limited.remote(cls, *args, **kwargs)

            marked.remote_on = classmethod(made_on)
            return marked
        if not callable(marked):
            raise TypeError(f"{marked!r} cannot be called: mark functions and classes")
        return RemoteFunction(marked, timeout)

    return mark if function is None else mark(function)


def find(name):
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
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    if len(parts) == 1:
        import builtins

        return getattr(builtins, name)
    raise ModuleNotFoundError(f"there is no module with {name!r} on this worker", name=parts[0])
