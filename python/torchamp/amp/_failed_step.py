"""Is the next call for an optimizer whose step raised another try, or of the next iteration?"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import TensorWeakRef


class FailedStep:
    """An optimizer whose step raised, and what gradients it had then; none of it is kept alive.

    New gradient tensors mean a new iteration, untouched ones another try. Gradients that were
    written to are told by when: what happens before the next loss is scaled is done to unscaled
    gradients, and only a backward pass makes them scaled ones again.
    """

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = _weak(optimizer)
        groups = getattr(optimizer, "param_groups", [])
        params = [param for group in groups for param in group["params"]]
        self._params = [TensorWeakRef(param) for param in params]
        grads = self._gradients()
        self._grads = [None if grad is None else TensorWeakRef(grad) for grad in grads]
        self._versions = _versions(grads)
        self._versions_at_scale: list[int] | None = None

    def note_scale(self) -> None:
        """A loss is scaled: of this iteration still, or of the next one."""
        if self._versions_at_scale is None:
            self._versions_at_scale = _versions(self._gradients())

    def is_over(self, optimizer: Any) -> bool:
        """Whether the optimizer is in a new iteration by now, or is another one at its address.

        Raises RuntimeError if its gradients may be a mixture of unscaled and scaled ones.
        """
        grads = self._gradients()
        if self._optimizer() is not optimizer or not self._are_same_tensors(grads):
            return True
        if self._versions_at_scale is None or _versions(grads) == self._versions_at_scale:
            return False
        if self._versions_at_scale != self._versions:
            return True  # they were set to zero, and added to since
        raise RuntimeError(
            "The step of this optimizer raised, and its gradients were written to after another "
            "loss was scaled: they may be sums of unscaled and scaled ones. Set gradients to zero "
            "before the loss of the next iteration is scaled, or end this one with update()."
        )

    def _gradients(self) -> list[torch.Tensor | None]:
        params = (reference() for reference in self._params)
        return [None if param is None else param.grad for param in params]

    def _are_same_tensors(self, grads: list[torch.Tensor | None]) -> bool:
        before = (None if reference is None else reference() for reference in self._grads)
        return all(old is new for old, new in zip(before, grads, strict=True))


def _weak(optimizer: Any) -> Callable[[], Any]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # of a class with __slots__
        return lambda: optimizer


def _versions(grads: list[torch.Tensor | None]) -> list[int]:
    return [0 if grad is None or grad.is_inference() else grad._version for grad in grads]
