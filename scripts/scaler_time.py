"""Where the microseconds of a GradScaler's iteration go, from Python: prints a table.

Four parameters on the CPU, one thread, an optimizer whose step does nothing. Medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torchamp
from torchamp import _C
from torchamp.bench.scaler import Idle

ROUNDS = 15
CALLS = 2000


def microseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Of each call, measured in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            times[name].append((time.perf_counter_ns() - begin) / CALLS / 1000)
    return {name: statistics.median(values) for name, values in times.items()}


def steps(scaler: torch.amp.GradScaler, optimizer: Idle, loss: torch.Tensor) -> dict[str, float]:
    """The four calls of an iteration: they need each other, so they are timed one by one."""
    times: list[list[int]] = [[], [], [], []]
    now = time.perf_counter_ns
    for _ in range(CALLS):
        marks = [now()]
        for call, argument in (
            (scaler.scale, loss),
            (scaler.unscale_, optimizer),
            (scaler.step, optimizer),
            (scaler.update, None),
        ):
            call(argument)
            marks.append(now())
        for values, begin, end in zip(times, marks, marks[1:], strict=False):
            values.append(end - begin)
    names = ("scale", "unscale_", "step", "update")
    return {
        name: statistics.median(values) / 1000 for name, values in zip(names, times, strict=True)
    }


def main() -> None:
    torch.set_num_threads(1)
    params = [torch.nn.Parameter(torch.ones(16)) for _ in range(4)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = Idle(params)
    loss = torch.ones((), requires_grad=True)
    options = {"init_scale": 1.0, "growth_interval": 2**30}
    ours, stock = (
        steps(kind("cpu", **options), optimizer, loss)
        for kind in (torchamp.GradScaler, torch.amp.GradScaler)
    )

    scaler = torchamp.GradScaler("cpu", **options)
    scaler.scale(loss)
    scale, tracker = scaler._check_scale_growth_tracker("step")
    scaler.unscale_(optimizer)
    flags = [*scaler._found_inf_per_device(optimizer).values()]
    inside = microseconds(
        {
            "scale": lambda: loss * scale,
            "unscale_": lambda: _C.unscale_gradients(optimizer.param_groups, scale),
            "step": lambda: flags[0].item(),
            "update": lambda: _C.update_scale(scale, tracker, flags, 2.0, 0.5, 2000),
        }
    )
    print(f"torch {torch.__version__}\n")
    print("| call | PyTorch | torchamp | of it in operators and compiled code |")
    print("| --- | --- | --- | --- |")
    for name in ours:
        print(f"| `{name}` | {stock[name]:.1f} | {ours[name]:.1f} | {inside[name]:.1f} |")
    sums = [sum(column.values()) for column in (stock, ours, inside)]
    print("| sum | " + " | ".join(f"{value:.1f}" for value in sums) + " |")
    print(f"\nPyTorch's time is {sums[0] / sums[1]:.1f} times torchamp's.")


if __name__ == "__main__":
    main()
