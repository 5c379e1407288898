"""The names of ``torch.amp.grad_scaler``."""

from __future__ import annotations

import inspect
import math
import os
import warnings
from collections import defaultdict
from typing import Any

import torch
from torch.amp.grad_scaler import OptState, _MultiDeviceReplicator, _refresh_per_optimizer_state

from torchamp import _C

__all__ = ["GradScaler", "OptState", "load_state"]

_STATE_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


def load_state(path: str | os.PathLike[str]) -> dict[str, float | int]:
    """Read the state dict from a file that C++ wrote with ``torch::save(scaler, path)``.

    No pickled code is executed. Raises RuntimeError if the file is not such an archive.
    """
    return _C.load_state(os.fspath(path))


def _check_options(init_scale: float, growth_factor: float, backoff_factor: float) -> None:
    """Refuse what would corrupt parameters sooner or later; AssertionError where stock has it."""
    if not (math.isfinite(init_scale) and init_scale > 0.0):
        raise ValueError(f"init_scale must be positive and finite, got {init_scale}.")
    if growth_factor <= 1.0:
        raise AssertionError(f"The growth factor must be > 1.0, got {growth_factor}.")
    if not math.isfinite(growth_factor):
        raise ValueError(f"growth_factor must be finite, got {growth_factor}.")
    if backoff_factor >= 1.0:
        raise AssertionError(f"The backoff factor must be < 1.0, got {backoff_factor}.")
    if not backoff_factor > 0.0:
        raise ValueError(f"backoff_factor must be above 0, got {backoff_factor}.")


class GradScaler(torch.amp.GradScaler):
    """``torch.amp.GradScaler`` on the fused C++ core; same arguments, attributes and state.

    Scales the loss so that small float16 gradients do not vanish, unscales gradients before the
    optimizer's step, skips the step if any is infinite or NaN, and adapts the scale::

        scaler = torchamp.GradScaler("cuda")
        for data, target in loader:
            optimizer.zero_grad()
            with torchamp.autocast("cuda"):
                loss = loss_fn(model(data), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Differences from stock, all where stock would corrupt parameters or its own state, are listed in
    docs/differences.md. Gradients that are not plain strided CPU or CUDA tensors (DTensor, sparse,
    subclasses, anything under a dispatch mode) go through stock's own code and operators.

    Raises ValueError (AssertionError where stock does) for options out of range.
    """

    # Optimizers, by id, whose step raised after their gradients were unscaled.
    _failed_steps: frozenset[int] = frozenset()

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        if self._enabled:
            _check_options(init_scale, growth_factor, backoff_factor)

    def scale(self, outputs: Any) -> Any:
        """Multiply outputs (a tensor, or nested iterables of tensors) by the scale.

        Does not synchronise. Raises TypeError for a mapping: stock would scale its keys.
        """
        if self._failed_steps:
            self._forget_failed_steps()
        if isinstance(outputs, dict) and self._enabled:
            raise TypeError("outputs must be a Tensor or an iterable of Tensors, not a mapping: scale its values.")
        return super().scale(outputs)

    def _forget_failed_steps(self) -> None:
        """A new iteration began without another try of the failed steps."""
        for key in self._failed_steps:
            self._per_optimizer_states.pop(key, None)
        self._failed_steps = frozenset()

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        found = _C.unscale_gradients(optimizer.param_groups, inv_scale, True, found_inf, allow_fp16)
        if found is None:
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return found

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, and remember overflows.

        Call it once an iteration, after all backward passes. Does not synchronise. Raises
        AssertionError before the first ``scale``, RuntimeError after ``unscale_`` or ``step`` of this
        optimizer in the same iteration, ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(). "
                "Call update() once every optimizer has stepped."
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "unscale_() is being called after step(). Call it before step(), and update() once "
                "every optimizer has stepped."
            )
        found = None
        if type(self)._unscale_grads_ is GradScaler._unscale_grads_:
            # The inverse and the flags are made by the core; a subclass wants them as arguments.
            found = _C.unscale_gradients(optimizer.param_groups, scale)
        if found is None:
            found = self._unscale_grads_(
                optimizer, scale.double().reciprocal().float(), torch.zeros_like(scale), False
            )
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale gradients unless ``unscale_`` did, then step if all of them are finite.

        Returns what ``optimizer.step(*args, **kwargs)`` returns, None if it was skipped. Synchronises
        with each device of the parameters, except for optimizers that handle the scale themselves
        (``fused=True`` Adam, AdamW, SGD).

        Raises RuntimeError for a closure (it would see scaled gradients) and when called twice in an
        iteration, AssertionError before the first ``scale`` and if no parameter has a gradient. If
        the optimizer raises, its step may be tried again, or the next iteration begun with ``scale``.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (args and callable(args[0])):
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled: the closure would train on "
                "scaled gradients."
            )
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(). "
                "Call update() once every optimizer has stepped."
            )
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_with_scaling_optimizer(optimizer, state, args, kwargs)
        else:
            result = self._step_if_finite(optimizer, state, args, kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _step_if_finite(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        if not state["found_inf_per_device"]:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: none of its parameters has a gradient. "
                "Are they frozen, was the loss detached, or was the optimizer made before the model was "
                "moved or its parameters replaced?"
            )
        try:
            return self._maybe_opt_step(optimizer, state, *args, **kwargs)
        except BaseException:
            self._failed_steps = self._failed_steps | {id(optimizer)}
            raise

    def _step_with_scaling_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Step of an optimizer that unscales and skips by itself, told by two attributes.

        It is always called and reads ``optimizer.grad_scale`` (None if gradients were unscaled
        already) and ``optimizer.found_inf``. Older ones take the scaler as an argument instead.
        """
        if "grad_scaler" in inspect.signature(optimizer.step).parameters:
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed optimizer. It "
                "will set `optimizer.grad_scale` and `optimizer.found_inf` instead.",
                FutureWarning,
                stacklevel=3,
            )
            return optimizer.step(*args, **kwargs, grad_scaler=self)
        if state["stage"] is OptState.READY:
            self._check_inf_per_device(optimizer)
        scale = self._get_scale_async()
        if scale is None:
            raise AssertionError("_get_scale_async returned None")
        flags = state["found_inf_per_device"].values()
        user_scale = getattr(optimizer, "grad_scale", None)
        if state["stage"] is OptState.UNSCALED:
            optimizer.grad_scale = user_scale
        else:
            optimizer.grad_scale = scale if user_scale is None else scale * user_scale
        optimizer.found_inf = sum(flag.to(scale.device, non_blocking=True) for flag in flags)
        try:
            return optimizer.step(*args, **kwargs)
        finally:
            del optimizer.grad_scale
            del optimizer.found_inf

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the iteration: adapt the scale to what ``step`` found, or set it to ``new_scale``.

        ``new_scale`` is a number or a tensor of one element on a device of the scaler's type. Does not
        synchronise. Raises AssertionError before the first ``scale``, if no gradients were checked since the last
        ``update``, and for an unfit tensor.
        """
        if not self._enabled:
            return
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            self._set_scale(scale, new_scale)
        else:
            found_infs = [
                flag
                for state in self._per_optimizer_states.values()
                for flag in state["found_inf_per_device"].values()
            ]
            if not found_infs:
                raise AssertionError(
                    "No inf checks were recorded prior to update. Call step() or unscale_() for an optimizer "
                    "whose parameters have gradients first."
                )
            updated = _C.update_scale(
                scale,
                growth_tracker,
                found_infs,
                self._growth_factor,
                self._backoff_factor,
                self._growth_interval,
            )
            if not updated:
                super().update()
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        if self._failed_steps:
            self._failed_steps = frozenset()

    def _set_scale(self, scale: torch.Tensor, new_scale: float | torch.Tensor) -> None:
        if isinstance(new_scale, (int, float)):
            scale.fill_(new_scale)
            return
        if new_scale.device.type != self._device or new_scale.numel() != 1 or new_scale.requires_grad:
            raise AssertionError(
                "new_scale should be a number or a 1-element tensor on a device of type "
                f"{self._device!r} with requires_grad=False, got a tensor of shape "
                f"{tuple(new_scale.shape)} on {new_scale.device}."
            )
        scale.copy_(new_scale.reshape(scale.shape))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state that ``state_dict`` made. A disabled scaler ignores it.

        Raises RuntimeError for an empty one (saved from a disabled scaler) and KeyError naming the
        keys that are missing; nothing was changed then.
        """
        if self._enabled and len(state_dict) != 0:
            missing = [key for key in _STATE_KEYS if key not in state_dict]
            if missing:
                raise KeyError(f"the state dict has no {', '.join(missing)}")
        super().load_state_dict(state_dict)
