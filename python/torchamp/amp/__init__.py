"""The names of ``torch.amp``."""

from torch.amp import custom_bwd, custom_fwd, is_autocast_available

from torchamp.amp.autocast_mode import autocast
from torchamp.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available"]
