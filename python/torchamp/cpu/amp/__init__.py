"""The names of ``torch.cpu.amp``, without its deprecation warnings."""

from torchamp.cpu.amp.autocast_mode import autocast
from torchamp.cpu.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast"]
