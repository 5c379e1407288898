"""The names of ``torch.cuda.amp.autocast_mode``."""

import functools

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


_cast = functools.partial(autocast_mode._cast, device_type="cuda")
custom_fwd = functools.partial(autocast_mode.custom_fwd, device_type="cuda")
custom_bwd = functools.partial(autocast_mode.custom_bwd, device_type="cuda")
