"""The names of ``torch.amp.grad_scaler``."""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import re
import sys
import types
import warnings
import weakref
import zipfile
from collections import abc, defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import (
    OptState,
    _refresh_per_optimizer_state,
)
from torch.amp.grad_scaler import (
    _MultiDeviceReplicator as _MultiDeviceReplicator,  # a name of stock's module
)

from torchamp import _C
from torchamp.amp._failed_step import FailedStep

__all__ = ["GradScaler", "OptState", "load_state"]

_STATE_KEYS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
_NO_RECIPROCAL = 2.0**-128  # the largest float32 whose reciprocal is infinite
_LARGEST_SCALE = torch.finfo(torch.float32).max
# Looking one up in its class is as long as several of the other things that a step does.
_READY, _UNSCALED, _STEPPED = OptState

_known_steps: weakref.WeakKeyDictionary[types.FunctionType, bool] = weakref.WeakKeyDictionary()


def load_state(path: str | os.PathLike[str]) -> dict[str, float | int]:
    """Read the state dict from a file that C++ wrote with ``torch::save(scaler, path)``.

    No pickled code is executed. Raises RuntimeError if the file is not such an archive.
    """
    path = os.fspath(path)
    try:
        return _C.load_state(path)
    except RuntimeError as error:
        if not os.path.isfile(path):
            raise
        raise RuntimeError(f"{path!r} {_other_than_a_state(path)}") from error


def _other_than_a_state(path: str) -> str:
    """What a file is that C++ cannot read a scaler's state from."""
    names: list[str] = []
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    if any(name.endswith("/constants.pkl") for name in names):
        return (
            "is a TorchScript file, or was written by torch::save, but holds no state of an "
            "enabled GradScaler. C++ writes that with torch::save(scaler, path)."
        )
    with open(path, "rb") as file:
        is_pickle = file.read(1) == b"\x80"  # what torch.save wrote before it wrote archives
    if is_pickle or any(name.endswith("/data.pkl") for name in names):
        return (
            "was written by torch.save in Python, or torch::pickle_save in C++: use "
            "scaler.load_state_dict(torch.load(path)), for a file of C++ with weights_only=False."
        )
    return "is not a file that C++ wrote with torch::save(scaler, path), or it is damaged."


def _check_options(init_scale: float, growth_factor: float, backoff_factor: float) -> None:
    """Refuse what would corrupt parameters sooner or later; AssertionError where stock has it."""
    if not 0.0 < init_scale <= _LARGEST_SCALE:
        raise ValueError(f"init_scale must be positive and finite in float32, got {init_scale}.")
    if init_scale <= _NO_RECIPROCAL + 2.0**-150:  # rounds to it
        raise ValueError(f"1/init_scale overflows float32, got init_scale={init_scale}.")
    if growth_factor <= 1.0:
        raise AssertionError(f"The growth factor must be > 1.0, got growth_factor={growth_factor}.")
    if not math.isfinite(growth_factor):
        raise ValueError(f"growth_factor must be finite, got {growth_factor}.")
    if backoff_factor >= 1.0:
        raise AssertionError(
            f"The backoff factor must be < 1.0, got backoff_factor={backoff_factor}."
        )
    if not backoff_factor > 0.0:
        raise ValueError(f"backoff_factor must be above 0, got {backoff_factor}.")


def _is_available(device: str) -> bool:
    """Whether the device can be there at all. Warns at the user's line if not."""
    if device != "cuda" or not torch.cuda.amp.common.amp_definitely_not_available():
        return True
    warnings.warn(
        "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
        stacklevel=_user_stacklevel(),
    )
    return False


def _require(device: str) -> None:
    """Raise RuntimeError if the device cannot be there."""
    kind = torch.device(device).type
    if kind == "cuda":
        available = not torch.cuda.amp.common.amp_definitely_not_available()
    else:
        available = torch.get_device_module(kind).is_available()
    if not available:
        raise RuntimeError(
            f"GradScaler for {str(device)!r}, which is not available, was made with "
            "require_device=True."
        )


def _user_stacklevel() -> int:
    """The ``stacklevel`` with which the caller's warning points to who called this package.

    What copies or saves for the user is passed over as well.
    """
    level = 1
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and re.match(
        r"torchamp\.|(copy|torch\.serialization)$", frame.f_globals.get("__name__", "")
    ):
        level += 1
        frame = frame.f_back
    return level


def _takes_grad_scaler(step: Callable[..., Any]) -> bool:
    """Whether an optimizer's step has a parameter named grad_scaler; found out once a function."""
    function = getattr(step, "__func__", step)
    if not isinstance(function, types.FunctionType):
        return "grad_scaler" in inspect.signature(step).parameters
    known = _known_steps.get(function)
    if known is None:
        known = _known_steps[function] = "grad_scaler" in inspect.signature(step).parameters
    return known


def _clip_by_stock(optimizer: torch.optim.Optimizer, max_norm: float) -> torch.Tensor:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    return torch.nn.utils.clip_grad_norm_(params, max_norm)


def _on_device(tensor: torch.Tensor, device: torch.device, *, copy: bool = False) -> torch.Tensor:
    """A copy, or the tensor itself if it is there and ``copy`` is false.

    To the CPU it waits for the copy: what runs there reads it at once, no stream orders the two.
    """
    return tensor.to(device, non_blocking=device.type != "cpu", copy=copy)


def _has_no_reciprocal(scale: torch.Tensor) -> torch.Tensor:
    """1 if the scale cannot be divided by, else 0; found out on its device, without a wait."""
    return (scale.abs() > _NO_RECIPROCAL).logical_not().to(torch.float32)  # NaN neither


def _any_flag(
    found_inf_per_device: dict[torch.device, torch.Tensor], device: torch.device
) -> torch.Tensor | int:
    """One flag for all devices, as stock's sum of them; 0 without any.

    Exactly 0 or 1: fused optimizers skip at 1 only, and step on infinite gradients at 2.
    """
    flags = [_on_device(flag, device) for flag in found_inf_per_device.values()]
    # A single flag too: an override of unscale_ may have summed it over processes.
    return sum(flags[1:], flags[0]).clamp(max=1.0) if flags else 0


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

    A scaler for "cuda" where there is no CUDA warns and is disabled, and warns again when it is
    saved; with ``require_device=True`` it is a RuntimeError.

    Raises ValueError (AssertionError where stock does) for options out of range.
    """

    # Of optimizers whose step raised since the last update; by id, as the states are.
    _failed_steps: Mapping[int, FailedStep] = types.MappingProxyType({})
    # Whether it is disabled because its device is missing, and whether saving it warned of that.
    _misses_device: bool = False
    _warned_at_saving: bool = False

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        require_device: bool = False,
    ) -> None:
        if enabled and require_device:
            _require(device)
        elif enabled and not _is_available(device):
            enabled = False
            self._misses_device = True
        if enabled:
            _check_options(init_scale, growth_factor, backoff_factor)
        super().__init__(
            device, init_scale, growth_factor, backoff_factor, growth_interval, enabled
        )

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        if self._growth_tracker is not None:
            raise AssertionError("_growth_tracker initialized before _scale")
        self._scale = torch.full((), self._init_scale, dtype=torch.float32, device=dev)
        self._growth_tracker = torch.full(
            (), self._init_growth_tracker, dtype=torch.int32, device=dev
        )

    # In Python, and not by a call of stock's: torch.compile(fullgraph=True) traces neither that nor
    # compiled code.
    def scale(self, outputs: Any) -> Any:
        """Multiply outputs (a tensor, or nested iterables of tensors) by the scale.

        Does not synchronise. Raises TypeError for a mapping (stock would scale its keys) and
        ValueError for what is neither a tensor nor iterable.
        """
        if self._failed_steps:
            self._note_scale()
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            device = outputs.device
            if self._scale is None:
                self._lazy_init_scale_growth_tracker(device)
            scale = self._scale
            assert scale is not None
            return outputs * (scale if scale.device == device else _on_device(scale, device))
        return self._scale_nested(outputs, {})

    def _scale_nested(self, outputs: Any, scales: dict[torch.device, torch.Tensor]) -> Any:
        """``scales`` holds one copy of the scale for each device met so far."""
        if isinstance(outputs, torch.Tensor):
            device = outputs.device
            if device not in scales:
                if self._scale is None:
                    self._lazy_init_scale_growth_tracker(device)
                assert self._scale is not None
                scales[device] = _on_device(self._scale, device, copy=True)
            return outputs * scales[device]
        if isinstance(outputs, abc.Mapping):
            raise TypeError(
                "outputs must be a Tensor or an iterable of Tensors, not a mapping: scale its "
                "values."
            )
        if isinstance(outputs, abc.Iterable):
            scaled = map(functools.partial(self._scale_nested, scales=scales), outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ValueError("outputs must be a Tensor or an iterable of Tensors")

    def _note_scale(self) -> None:
        for failed in self._failed_steps.values():
            failed.note_scale()

    def _state_of(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        failed = self._failed_steps.get(id(optimizer))
        if failed is not None and failed.is_over(optimizer):
            self._per_optimizer_states.pop(id(optimizer), None)
            self._forget_failed_step(optimizer)
        return self._per_optimizer_states[id(optimizer)]

    def _forget_failed_step(self, optimizer: torch.optim.Optimizer) -> None:
        others = {key: step for key, step in self._failed_steps.items() if key != id(optimizer)}
        if others:
            self._failed_steps = others
        else:
            del self._failed_steps  # back to the class's empty one: pickled state is stock's

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        found = _C.unscale_gradients(optimizer.param_groups, inv_scale, True, found_inf, allow_fp16)
        if found is None:
            # Stock does not look at what unscaling makes of gradients: NaN, by such an inverse.
            found_inf = torch.where(inv_scale.isfinite(), found_inf, 1.0)
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        return found

    def _unscales_by_core(self) -> bool:
        """Whether no override of ``_unscale_grads_`` wants to see inverse scale and flag."""
        return (
            type(self)._unscale_grads_ is GradScaler._unscale_grads_
            and "_unscale_grads_" not in self.__dict__
        )

    def _check_inf_per_device(self, optimizer: torch.optim.Optimizer) -> dict[Any, Any]:
        """Look for overflows in gradients that the optimizer divides by the scale itself.

        They stay as they are. A scale that has no reciprocal is an overflow too.
        """
        scale, _ = self._check_scale_growth_tracker("_check_inf_per_device")
        one = torch.ones_like(scale)
        found = self._unscale_grads_(optimizer, one, _has_no_reciprocal(scale), True)
        self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        return found

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the optimizer's gradients by the scale, in place, and remember overflows.

        Call it once an iteration, after all backward passes. Does not synchronise.

        Raises AssertionError before the first ``scale``, RuntimeError after ``unscale_`` or
        ``step`` of this optimizer in the same iteration, ValueError for float16 gradients.
        """
        if not self._enabled:
            return
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._state_of(optimizer)
        if state["stage"] is _UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update(). "
                "Call update() once every optimizer has stepped."
            )
        if state["stage"] is _STEPPED:
            raise RuntimeError(
                "unscale_() is being called after step(). Call it before step(), and update() once "
                "every optimizer has stepped."
            )
        found = None
        if self._unscales_by_core():
            found = _C.unscale_gradients(optimizer.param_groups, scale)
        if found is None:  # gradients that are not plain, or an override that wants to see them
            super().unscale_(optimizer)
            return
        state["found_inf_per_device"] = found
        state["stage"] = _UNSCALED

    def clip_grad_norm_(self, optimizer: torch.optim.Optimizer, max_norm: float) -> torch.Tensor:
        """Unscale the gradients unless ``unscale_`` did, and clip their 2-norm to ``max_norm``.

        One fused job in place of ``unscale_`` and ``torch.nn.utils.clip_grad_norm_``. After an
        overflow, which ``step`` then skips, gradients are left as they were. A disabled scaler
        clips too. Gradients that are not plain are unscaled and clipped by stock's functions.

        Returns the norm of the true gradients before clipping, 0-dim, on their device: float64
        (what stock gives if gradients are not plain); after an overflow it may be finite. Does not
        synchronise.

        Raises ValueError if ``max_norm`` is not 0 or more; otherwise as ``unscale_``, but may
        follow it once.
        """
        max_norm = float(max_norm)
        if not max_norm >= 0.0:
            raise ValueError(f"max_norm must be 0 or more, got {max_norm}.")
        if not self._enabled:
            clipped = _C.clip_gradients(optimizer.param_groups, None, max_norm, {}, True)
            return _clip_by_stock(optimizer, max_norm) if clipped is None else clipped[0]
        scale, _ = self._check_scale_growth_tracker("clip_grad_norm_")
        state = self._state_of(optimizer)
        if state["stage"] is _STEPPED:
            raise RuntimeError(
                "clip_grad_norm_() is being called after step(). Call it before step(), and "
                "update() once every optimizer has stepped."
            )
        if state.get("clipped"):
            # Gradients of an iteration that ended without update() would be taken for true ones.
            raise RuntimeError(
                "clip_grad_norm_() has already been called on this optimizer since the last "
                "update(). Call update() also when a batch is left out."
            )
        if state["stage"] is _READY and type(self).unscale_ is not GradScaler.unscale_:
            self.unscale_(optimizer)  # an override: it may share the flags between processes
        unscaled = state["stage"] is _UNSCALED
        clipped = None
        if unscaled or self._unscales_by_core():
            clipped = _C.clip_gradients(
                optimizer.param_groups,
                None if unscaled else scale,
                max_norm,
                state["found_inf_per_device"] if unscaled else {},
            )
        if clipped is None:
            if not unscaled:
                self.unscale_(optimizer)
            state["clipped"] = True
            return _clip_by_stock(optimizer, max_norm)
        norm, state["found_inf_per_device"] = clipped
        state["stage"] = _UNSCALED
        state["clipped"] = True
        return norm

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale gradients unless ``unscale_`` did, then step if all of them are finite.

        Returns what ``optimizer.step(*args, **kwargs)`` returns, None if it was skipped.
        Synchronises with each device of the parameters, except for optimizers that handle the
        scale themselves (``fused=True`` Adam, AdamW, SGD).

        Raises RuntimeError for a closure (it would see scaled gradients) and when called twice in
        an iteration, AssertionError before the first ``scale`` and if no parameter has a gradient.
        If the optimizer raises, its step may be tried again, or the next iteration begun with
        ``zero_grad`` and ``scale``; if other optimizers were unscaled or stepped by then, end this
        iteration with ``update`` first.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (args and callable(args[0])):
            raise RuntimeError(
                "Closure use is not currently supported if GradScaler is enabled: the closure "
                "would train on scaled gradients."
            )
        self._check_scale_growth_tracker("step")
        state = self._state_of(optimizer)
        if state["stage"] is _STEPPED:
            raise RuntimeError(
                "step() has already been called since the last update(). "
                "Call update() once every optimizer has stepped."
            )
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_with_scaling_optimizer(optimizer, state, args, kwargs)
        else:
            result = self._step_if_finite(optimizer, state, args, kwargs)
        state["stage"] = _STEPPED
        if id(optimizer) in self._failed_steps:
            self._forget_failed_step(optimizer)
        return result

    def _run_step(
        self,
        optimizer: torch.optim.Optimizer,
        step: Callable[..., Any],
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call what steps; if it raises, it may be tried again or a new iteration begun."""
        try:
            return step(*args, **kwargs)
        except BaseException:
            self._failed_steps = {**self._failed_steps, id(optimizer): FailedStep(optimizer)}
            raise

    def _step_if_finite(
        self,
        optimizer: torch.optim.Optimizer,
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if state["stage"] is _READY:
            self.unscale_(optimizer)
        if not state["found_inf_per_device"]:
            raise AssertionError(
                "No inf checks were recorded for this optimizer: none of its parameters has a "
                "gradient. Are they frozen, was the loss detached, or was the optimizer made "
                "before the model was moved or its parameters replaced?"
            )
        return self._run_step(optimizer, self._maybe_opt_step, optimizer, state, *args, **kwargs)

    # Stock's, without its generator, which takes longer than reading the flag.
    def _maybe_opt_step(
        self,
        optimizer: torch.optim.Optimizer,
        optimizer_state: dict[str, Any],
        *args: Any,
        **kwargs: Any,
    ) -> float | None:
        overflows = 0.0
        for flag in optimizer_state["found_inf_per_device"].values():
            overflows += flag.item()
        return None if overflows else optimizer.step(*args, **kwargs)

    def _step_with_scaling_optimizer(
        self,
        optimizer: Any,  # a torch.optim.Optimizer, which declares neither attribute
        state: dict[str, Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Step of an optimizer that unscales and skips by itself, told by two attributes.

        It is always called and reads ``optimizer.grad_scale`` (None if gradients were unscaled
        already) and ``optimizer.found_inf``. Older ones take the scaler as an argument instead.
        """
        if _takes_grad_scaler(optimizer.step):
            warnings.warn(
                "GradScaler is going to stop passing itself as a keyword argument to the passed "
                "optimizer. It will set `optimizer.grad_scale` and `optimizer.found_inf` instead.",
                FutureWarning,
                stacklevel=3,
            )
            kwargs = {**kwargs, "grad_scaler": self}
            return self._run_step(optimizer, optimizer.step, *args, **kwargs)
        if state["stage"] is _READY:
            self._check_inf_per_device(optimizer)
        scale = self._get_scale_async()
        if scale is None:
            raise AssertionError("_get_scale_async returned None")
        users = {"grad_scale": optimizer.grad_scale} if hasattr(optimizer, "grad_scale") else {}
        if state["stage"] is _UNSCALED:
            optimizer.grad_scale = users.get("grad_scale")
        else:
            optimizer.grad_scale = scale * users.get("grad_scale", 1)
        optimizer.found_inf = _any_flag(state["found_inf_per_device"], scale.device)
        try:
            result = self._run_step(optimizer, optimizer.step, *args, **kwargs)
        except BaseException:
            # As it was, to be tried again: a scale left behind would be multiplied in twice.
            for name in ("grad_scale", "found_inf"):
                with contextlib.suppress(AttributeError):  # its step may have done it
                    delattr(optimizer, name)
            if users:
                optimizer.grad_scale = users["grad_scale"]
            raise
        del optimizer.grad_scale, optimizer.found_inf
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the iteration: adapt the scale to what ``step`` found, or set it to ``new_scale``.

        ``new_scale`` is a number or a tensor of one element on a device of the scaler's type. Does
        not synchronise. Raises AssertionError before the first ``scale``, if no gradients were
        checked since the last ``update``, and for an unfit tensor; TypeError or ValueError
        for a factor or an interval that is no number.
        """
        if not self._enabled:
            return
        scale, growth_tracker = self._check_scale_growth_tracker("update")
        if new_scale is not None:
            self._set_scale(scale, new_scale)
        else:
            found_infs: list[torch.Tensor] = []
            for state in self._per_optimizer_states.values():
                found_infs += state["found_inf_per_device"].values()
            if not found_infs:
                raise AssertionError(
                    "No inf checks were recorded prior to update. Call step() or unscale_() for an "
                    "optimizer whose parameters have gradients first."
                )
            if not _C.update_scale(scale, growth_tracker, found_infs, *self._rule()):
                super().update()
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        if self._failed_steps:
            del self._failed_steps

    def _rule(self) -> tuple[float, float, int]:
        growth, backoff = self._growth_factor, self._backoff_factor
        interval = self._growth_interval
        are_plain = type(growth) is type(backoff) is float and type(interval) is int
        if are_plain and interval.bit_length() < 64:
            return growth, backoff, interval
        # Whether PyTorch takes it for a number; if not, it raises, naming the argument.
        zeros = torch.zeros(()), torch.zeros((), dtype=torch.int32), torch.zeros(())
        torch._amp_update_scale_(*zeros, growth, backoff, interval)
        return float(growth), float(backoff), int(interval)

    def _set_scale(self, scale: torch.Tensor, new_scale: float | torch.Tensor) -> None:
        if isinstance(new_scale, (int, float)):
            scale.fill_(float(new_scale))
            return
        if (
            new_scale.device.type != self._device
            or new_scale.numel() != 1
            or new_scale.requires_grad
        ):
            raise AssertionError(
                "new_scale should be a number or a 1-element tensor on a device of type "
                f"{self._device!r} with requires_grad=False, got a tensor of shape "
                f"{tuple(new_scale.shape)} on {new_scale.device}."
            )
        scale.copy_(new_scale.reshape(scale.shape))

    def state_dict(self) -> dict[str, Any]:
        """The state: scale, factors, interval and tracker; empty if disabled.

        Call it after ``update``. Synchronises with the scale's device.
        """
        self._warn_if_saved_without_device()
        return super().state_dict()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        self._warn_if_saved_without_device()
        for name in ("_warned_at_saving", "_failed_steps"):
            state.pop(name, None)
        return state

    def _warn_if_saved_without_device(self) -> None:
        if not self._misses_device or self._warned_at_saving:
            return
        self._warned_at_saving = True
        warnings.warn(
            f"A GradScaler that was disabled because {self._device!r} is not available is being "
            "saved: its state is empty, and an enabled GradScaler refuses to load that. Pass "
            "enabled=False where it is meant to be off, require_device=True to be told when it is "
            "made.",
            stacklevel=_user_stacklevel(),
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state that ``state_dict`` made. A disabled scaler ignores it.

        Raises RuntimeError for an empty one (saved from a disabled scaler), KeyError naming the
        keys that are missing, TypeError for what is no dict; nothing was changed then.
        """
        if self._enabled and len(state_dict) != 0:
            if isinstance(state_dict, (abc.Sequence, abc.Set)):
                raise TypeError(f"the state dict is a {type(state_dict).__name__}, not a dict")
            missing = [key for key in _STATE_KEYS if key not in state_dict]
            if missing:
                raise KeyError(f"the state dict has no {', '.join(missing)}")
        super().load_state_dict(state_dict)
