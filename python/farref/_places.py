"""Which line of the program makes a reference: leak reports name it."""

from __future__ import annotations

import sys


def line() -> tuple[str, int]:
    """The line that runs now, of the program and not of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("farref._"):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def made_by(called: object) -> str:
    """What a call of it makes: an object of a class, or whatever a function returns."""
    if isinstance(called, type):
        return called.__qualname__
    if isinstance(called, str):
        return f"result of `{called}`"
    name = getattr(called, "__qualname__", None)
    if not isinstance(name, str):
        return f"result of a {type(called).__qualname__}"
    module = getattr(called, "__module__", None)
    return f"result of `{module}.{name}`" if isinstance(module, str) else f"result of `{name}`"
