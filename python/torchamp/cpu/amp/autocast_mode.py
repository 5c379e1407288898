"""The names of ``torch.cpu.amp.autocast_mode``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from torchamp.amp import autocast_mode

__all__ = ["autocast"]


class autocast(autocast_mode.autocast):
    """``torchamp.autocast("cpu", ...)`` with the arguments of ``torch.cpu.amp.autocast``."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.bfloat16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("cpu", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    if not TYPE_CHECKING:

        @functools.wraps(__init__, assigned=())
        def __new__(cls, *args, **kwargs):
            if cls is autocast and torch.compiler.is_dynamo_compiling():
                return _compiled_region(*args, **kwargs)
            return object.__new__(cls)


def _compiled_region(
    enabled: bool = True, dtype: torch.dtype = torch.bfloat16, cache_enabled: bool = True
) -> Any:
    return autocast_mode._compiled_region("cpu", dtype, enabled, cache_enabled)
