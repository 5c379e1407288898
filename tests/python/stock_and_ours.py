"""Running the same code on PyTorch's GradScaler and on torchamp's, and comparing everything."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torchamp


@dataclass(frozen=True)
class Implementation:
    """The names of torch.amp, from torch or from torchamp."""

    name: str
    amp: Any  # module with GradScaler and autocast

    def scaler(self, device: str = "cpu", **options: Any) -> torch.amp.GradScaler:
        return self.amp.GradScaler(device, **options)


STOCK = Implementation("stock", torch.amp)
OURS = Implementation("torchamp", torchamp.amp)


def bits(tensor: torch.Tensor) -> Any:
    """Values as integers, every NaN as one: equal bits mean equal numbers, +0 and -0 differ."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        return snapshot_sparse(tensor)
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if tensor.is_floating_point():
        tensor = torch.where(tensor.isnan(), torch.full_like(tensor, torch.nan), tensor)
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    values = tensor.contiguous().view(integers[tensor.element_size()])
    return (str(tensor.dtype), tuple(tensor.shape), values.flatten().tolist())


def snapshot_sparse(tensor: torch.Tensor) -> Any:
    if tensor.layout is torch.sparse_coo:
        return (tensor.is_coalesced(), tensor._indices().tolist(), bits(tensor._values()))
    return (tensor.crow_indices().tolist(), tensor.col_indices().tolist(), bits(tensor.values()))


def snapshot(value: Any) -> Any:
    """A value that compares by ==, for results, states and gradients of any kind."""
    if isinstance(value, torch.Tensor):
        return bits(value)
    if isinstance(value, dict):
        return {str(key): snapshot(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(snapshot, value)]
    if isinstance(value, float):
        return ("float", np.float64(value).tobytes() if value == value else "nan")
    return value


@dataclass
class Outcome:
    """What a call did: its value, or the type of its exception; and the warnings it gave."""

    value: Any
    error: type[BaseException] | None
    warned: list[type[Warning]]


def outcome(function: Callable[[], Any]) -> Outcome:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            value, error = function(), None
        except Exception as raised:  # the type is compared
            value, error = None, type(raised)
    return Outcome(snapshot(value), error, [warning.category for warning in caught])


def run_both(function: Callable[[Implementation], Any]) -> tuple[Outcome, Outcome]:
    """The outcomes of a function on stock and on torchamp, from the same random seed."""
    results = []
    for implementation in (STOCK, OURS):
        torch.manual_seed(0)
        results.append(outcome(lambda implementation=implementation: function(implementation)))
    return results[0], results[1]


def differences(stock: Any, ours: Any, where: str = "") -> list[str]:
    """Where two snapshots differ, one line each."""
    if isinstance(stock, dict) and isinstance(ours, dict) and stock.keys() == ours.keys():
        pairs = [(key, stock[key], ours[key]) for key in stock]
    elif isinstance(stock, list) and isinstance(ours, list) and len(stock) == len(ours):
        pairs = [(i, left, right) for i, (left, right) in enumerate(zip(stock, ours, strict=True))]
    else:
        return [] if stock == ours else [f"{where}: stock {stock!r}, torchamp {ours!r}"]
    return [line for key, *both in pairs for line in differences(*both, f"{where}[{key!r}]")]


def assert_same(function: Callable[[Implementation], Any]) -> Outcome:
    """Asserts the same values, exception type and warning categories, and returns them."""
    stock, ours = run_both(function)
    assert differences(vars(stock), vars(ours)) == []
    return ours


def parameters(*grads: torch.Tensor | None, dtype: torch.dtype | None = None) -> list:
    """One parameter of ones for each gradient, on the gradient's device and of its type."""
    made = []
    for grad in grads:
        parameter = torch.nn.Parameter(
            torch.ones(2) if grad is None else torch.ones(grad.shape, dtype=dtype or grad.dtype)
        )
        parameter.grad = grad
        made.append(parameter)
    return made


OWN_OPTIONS = {"require_device"}  # of torchamp's GradScaler
# Torchamp's own attributes, there only after an exception or where the device is missing
OWN_ATTRIBUTES = {"_failed_steps", "_misses_device", "_warned_at_saving"}


def arguments_of_stock(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    """Name, kind and default of each argument; torchamp's own ones may only follow, as keywords."""
    arguments = [
        (p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()
    ]
    own = [argument for argument in arguments if argument[0] in OWN_OPTIONS]
    first_own = len(arguments) - len(own)
    assert arguments[first_own:] == own
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for _, kind, _ in own)
    return arguments[:first_own]


def scaler_state(scaler: torch.amp.GradScaler) -> Any:
    """All attributes of a scaler, private ones too, with the ids of optimizers left out."""
    state = {key: value for key, value in vars(scaler).items() if key not in OWN_ATTRIBUTES}
    if "_per_optimizer_states" in state:
        state["_per_optimizer_states"] = [
            (str(entry["stage"]), snapshot(entry["found_inf_per_device"]))
            for entry in state["_per_optimizer_states"].values()
        ]
    return {key: snapshot(value) for key, value in state.items()}
