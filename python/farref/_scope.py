"""What code runs for: the call that it serves, the context that it is in."""

from __future__ import annotations

import contextvars

from . import _core

current: contextvars.ContextVar[_core.PyScope | None] = contextvars.ContextVar("farref.scope", default=None)

context_id = _core.context_id
