"""Holds the mirror of ``torch.cpu.amp``."""

from torchamp.cpu import amp

__all__ = ["amp"]
