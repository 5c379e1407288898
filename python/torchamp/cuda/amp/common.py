"""The names of ``torch.cuda.amp.common``."""

from torch.cuda.amp.common import amp_definitely_not_available

__all__ = ["amp_definitely_not_available"]
