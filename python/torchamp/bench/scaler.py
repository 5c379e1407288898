"""What the GradScaler and autocast take themselves, from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import torchamp
from torchamp.bench.timing import Row, compare, host_timer, threads


class Idle(torch.optim.Optimizer):
    """An optimizer whose step does nothing: what remains is the scaler's own time."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    def step(self, closure: Any = None) -> Any:
        return None

    # PyTorch would wrap it in hooks and a profiler's range, which take longer than the scaler.
    step.hooked = True  # type: ignore[attr-defined]


def _scaler_calls(
    kind: type[torch.amp.GradScaler], optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Calls that unscale only, and that run a whole iteration."""
    scaler = kind(device.type, init_scale=1.0, growth_interval=2**30)
    loss = torch.ones((), device=device, requires_grad=True)

    def unscale() -> None:
        scaler._per_optimizer_states.clear()
        scaler.unscale_(optimizer)

    def iteration() -> None:
        scaler.scale(loss)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()

    iteration()
    return unscale, iteration


def bench_scaler(device: torch.device) -> Iterator[Row]:
    def optimizer_of(count: int, numel: int) -> torch.optim.Optimizer:
        params = [torch.nn.Parameter(torch.ones(numel, device=device)) for _ in range(count)]
        for param in params:
            param.grad = torch.ones_like(param)
        return Idle(params)

    kinds = {"torchamp": torchamp.GradScaler, "stock": torch.amp.GradScaler}
    with threads(1):
        for count in (4, 161, 1000):
            optimizer = optimizer_of(count, 16)
            calls = {
                name: _scaler_calls(kind, optimizer, device)[1] for name, kind in kinds.items()
            }
            row = compare(calls, 401 if count < 1000 else 101, host_timer(device, 1))
            where = {"dtype": "float32", "list": f"{count} parameters", "threads": 1}
            yield {"what": "scaler iteration", **where, **row}
        optimizer = optimizer_of(10000, 64)
        calls = {name: _scaler_calls(kind, optimizer, device)[0] for name, kind in kinds.items()}
        row = compare(calls, 41, host_timer(device, 1))
        where = {"dtype": "float32", "list": "10000x64", "threads": 1}
        yield {"what": "scaler.unscale_", **where, **row}


def bench_autocast(device: torch.device) -> Iterator[Row]:
    def many(kind: type[torch.amp.autocast]) -> Callable[[], None]:
        def call() -> None:
            for _ in range(100):
                with kind(device.type):
                    pass

        return call

    row = compare(
        {"torchamp": many(torchamp.autocast), "stock": many(torch.amp.autocast)},
        101,
        host_timer(device, 1),
    )
    for name in ("torchamp", "stock", "torchamp_min", "stock_min"):
        row[name] /= 100
    yield {"what": "autocast enter + exit", "dtype": "", "list": "", "threads": 1, **row}
