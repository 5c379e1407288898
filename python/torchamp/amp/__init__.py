"""The names of ``torch.amp``."""

from torchamp.amp.autocast_mode import (
    _enter_autocast,  # noqa: F401  torch's own modules use these two
    _exit_autocast,  # noqa: F401
    autocast,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
)
from torchamp.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
