"""The names of ``torch.cpu.amp.autocast_mode``."""

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


