"""Puts the names of this package in the place of PyTorch's own."""

from __future__ import annotations

import importlib
import sys
import threading
from types import ModuleType, TracebackType

import torch

__all__ = ["patch"]

_MODULES = {
    "torch": "torchamp",
    "torch.amp": "torchamp.amp",
    "torch.amp.autocast_mode": "torchamp.amp.autocast_mode",
    "torch.amp.grad_scaler": "torchamp.amp.grad_scaler",
    "torch.cuda.amp": "torchamp.cuda.amp",
    "torch.cuda.amp.autocast_mode": "torchamp.cuda.amp.autocast_mode",
    "torch.cuda.amp.grad_scaler": "torchamp.cuda.amp.grad_scaler",
    "torch.cpu.amp": "torchamp.cpu.amp",
    "torch.cpu.amp.autocast_mode": "torchamp.cpu.amp.autocast_mode",
    "torch.cpu.amp.grad_scaler": "torchamp.cpu.amp.grad_scaler",
}
_NAMES = ("autocast", "GradScaler", "custom_fwd", "custom_bwd", "_cast")

_lock = threading.Lock()
_in_force = 0  # patches that have not been undone
_originals: list[tuple[ModuleType, str, object]] = []


def _is_kept(module: ModuleType, name: str) -> bool:
    """Whether a name stays as it is, for torch.compile's sake."""
    if name != "autocast":
        return False
    # Where it looks for stock's class, to compare with what it meets in a compiled function.
    if module is torch.amp.autocast_mode:
        return True
    # There it does not compile a function with a graph break inside a region of another class.
    return torch.__version__.startswith("2.11.") and module in (torch, torch.amp)


def _replace_names() -> None:
    for theirs, ours in _MODULES.items():
        module, replacement = importlib.import_module(theirs), importlib.import_module(ours)
        for name in _NAMES:
            if hasattr(module, name) and hasattr(replacement, name) and not _is_kept(module, name):
                _originals.append((module, name, getattr(module, name)))
                setattr(module, name, getattr(replacement, name))


def _restore_names() -> None:
    # If torch.compile was loaded meanwhile, it has our classes in its table instead of stock's.
    compiler = sys.modules.get("torch._dynamo.variables.torch")
    known_classes = getattr(compiler, "supported_ctx_manager_classes", {})
    while _originals:
        module, name, original = _originals.pop()
        if known_classes.pop(getattr(module, name), original) is None:
            known_classes[original] = None
        setattr(module, name, original)


class patch:
    """Let programs that use PyTorch's AMP names run on this package.

    Replaces ``autocast``, ``GradScaler``, ``custom_fwd`` and ``custom_bwd`` in ``torch``,
    ``torch.amp``, ``torch.cuda.amp``, ``torch.cpu.amp`` and their submodules, at once and until the
    process ends or the patch is undone::

        torchamp.patch()

        with torchamp.patch():  # undone at the end of the block
            ...

    May be nested and repeated: the names are restored, exactly, when the last patch is undone. One
    object may be entered again, inside itself too and after it was undone: the names are replaced
    until its outermost block ends.

    A scaler of PyTorch's that was made before cannot be pickled meanwhile, since pickle finds
    another class by its name.

    Names that a module imported before keep what they had. ``torch.amp.autocast_mode.autocast``
    stays as it is, because ``torch.compile`` knows autocast by it, and with torch 2.11 also
    ``torch.autocast`` and ``torch.amp.autocast``.
    """

    def __init__(self) -> None:
        self._active = False
        self._depth = 0  # of blocks that were entered and not left
        with _lock:
            self._put_in_force()

    def _put_in_force(self) -> None:
        global _in_force
        if self._active:
            return
        if _in_force == 0:
            _replace_names()
        _in_force += 1
        self._active = True

    def _end(self) -> None:
        global _in_force
        if not self._active:
            return
        self._active = False
        _in_force -= 1
        if _in_force == 0:
            _restore_names()

    def undo(self) -> None:
        """Undo this patch. Further calls do nothing."""
        with _lock:
            self._end()

    def __enter__(self) -> patch:
        with _lock:
            self._put_in_force()
            self._depth += 1
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        with _lock:
            self._depth -= 1
            if self._depth == 0:
                self._end()
