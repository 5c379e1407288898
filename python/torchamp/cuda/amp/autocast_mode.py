"""The names of ``torch.cuda.amp.autocast_mode``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchamp.amp import autocast_mode

__all__ = ["autocast", "custom_bwd", "custom_fwd"]


class autocast(autocast_mode.autocast):
    """``torchamp.autocast("cuda", ...)`` with the arguments of ``torch.cuda.amp.autocast``."""

    def __init__(
        self,
        enabled: bool = True,
        dtype: torch.dtype = torch.float16,
        cache_enabled: bool = True,
    ) -> None:
        super().__init__("cuda", enabled=enabled, dtype=dtype, cache_enabled=cache_enabled)

    if not TYPE_CHECKING:

        @functools.wraps(__init__, assigned=())
        def __new__(cls, *args, **kwargs):
            if cls is autocast and torch.compiler.is_dynamo_compiling():
                return _compiled_region(*args, **kwargs)
            return object.__new__(cls)


def _compiled_region(
    enabled: bool = True, dtype: torch.dtype = torch.float16, cache_enabled: bool = True
) -> Any:
    return autocast_mode._compiled_region("cuda", dtype, enabled, cache_enabled)


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, cast_inputs: torch.dtype | None = None
) -> Any:
    """``torchamp.custom_fwd`` for CUDA."""
    return autocast_mode.custom_fwd(fwd, device_type="cuda", cast_inputs=cast_inputs)


def custom_bwd(bwd: Callable[..., Any]) -> Any:
    """``torchamp.custom_bwd`` for CUDA."""
    return autocast_mode.custom_bwd(bwd, device_type="cuda")


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return autocast_mode._cast(value, "cuda", dtype)
