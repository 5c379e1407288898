"""Holds the mirror of ``torch.cuda.amp``."""

from torchamp.cuda import amp

__all__ = ["amp"]
