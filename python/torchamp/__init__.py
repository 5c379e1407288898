"""Automatic mixed precision for PyTorch, in C++ first: a drop-in replacement for ``torch.amp``.

``torchamp.amp``, ``torchamp.cuda.amp`` and ``torchamp.cpu.amp`` mirror torch's modules of these
names.
"""

import torch  # first: the extension needs torch's libraries in the process

from torchamp import _build

if torch.__version__.split(".")[:2] != _build.torch_version.split(".")[:2]:
    raise ImportError(
        f"torchamp was built for torch {_build.torch_version}, but torch {torch.__version__} is "
        "installed. Rebuild it: pip install --no-build-isolation --force-reinstall --no-deps "
        "torchamp (or the path to its source)."
    )

from torchamp import amp, cpu, cuda
from torchamp.amp import GradScaler, autocast, custom_bwd, custom_fwd, is_autocast_available
from torchamp.amp.grad_scaler import load_state
from torchamp.kernels import install_kernels, uninstall_kernels
from torchamp.patching import patch

__version__ = "0.1.0"

__all__ = [
    "GradScaler",
    "amp",
    "autocast",
    "cpu",
    "cuda",
    "custom_bwd",
    "custom_fwd",
    "install_kernels",
    "is_autocast_available",
    "load_state",
    "patch",
    "uninstall_kernels",
]
