"""The names of ``torch.amp.autocast_mode``."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.amp.autocast_mode import (
    _cast,
    autocast_decorator,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
)

from torchamp import _C

__all__ = ["autocast", "autocast_decorator", "custom_bwd", "custom_fwd", "is_autocast_available"]


class _Entered(threading.local):
    """The regions that the current thread is in, by autocast object."""

    def __init__(self) -> None:
        self.guards: dict[int, list[_C.AutocastGuard]] = {}


_entered = _Entered()


class autocast(torch.amp.autocast):
    """``torch.autocast`` on the guard that C++ programs use; same arguments, same results.

    One object may be entered several times, nested (recursion through a decorated function does it)
    or from several threads at once: what to restore is kept for each entry. A nested region with
    another dtype drops cached casts of weights, which have the outer dtype.

    Does not synchronise. Errors and warnings are those of ``torch.autocast``.
    """

    def __enter__(self) -> autocast:
        if torch._jit_internal.is_scripting() or torch._C._is_torch_function_mode_enabled():
            # Tracing (torch.export) records entries and exits through stock's own.
            return super().__enter__()
        guard = _C.AutocastGuard(self.device, self.fast_dtype, self._enabled, self._cache_enabled)
        _entered.guards.setdefault(id(self), []).append(guard)
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> bool | None:
        guards = _entered.guards.get(id(self))
        if guards is None:
            return super().__exit__(exc_type, exc_val, exc_tb)
        guards.pop().end()
        if not guards:
            del _entered.guards[id(self)]
        return False
