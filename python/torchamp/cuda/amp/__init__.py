"""The names of ``torch.cuda.amp``, without its deprecation warnings."""

from torchamp.cuda.amp.autocast_mode import autocast, custom_bwd, custom_fwd
from torchamp.cuda.amp.common import amp_definitely_not_available
from torchamp.cuda.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "amp_definitely_not_available", "autocast", "custom_bwd", "custom_fwd"]
