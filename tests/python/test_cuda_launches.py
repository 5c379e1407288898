"""What an iteration enqueues, by the profiler: kernels, copies and waits; on the CPU, operators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torchamp
from on_devices import each_device, scalar, synchronize
from torch.profiler import ProfilerActivity, profile
from torchamp.bench.scaler import Idle

ROUNDS = 5
# What scaling and the overflow flag take beside the kernels of ours: a multiplication and a fill.
OF_PYTORCH = 2
OURS = ("unscale_kernel", "grad_norm_kernel", "clip_factor_kernel", "apply_factor_kernel")
OURS += ("update_scale_kernel",)


class Trace:
    """Events of some calls, by category and name, a call."""

    def __init__(self, call: Callable[[], None], device: str, path: Path) -> None:
        activities = [ProfilerActivity.CPU]
        if device == "cuda":
            activities.append(ProfilerActivity.CUDA)
        for _ in range(3):
            call()
        synchronize(device)
        with profile(activities=activities) as profiler:
            for _ in range(ROUNDS):
                call()
            synchronize(device)
        profiler.export_chrome_trace(str(path))
        self._events = [
            event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"
        ]
        assert self._events

    def names(self, category: str) -> dict[str, float]:
        counts = Counter(event["name"] for event in self._events if event.get("cat") == category)
        return {name: count / ROUNDS for name, count in counts.items()}

    def count(self, category: str, part: str = "") -> float:
        return sum(count for name, count in self.names(category).items() if part in name)

    def bytes_copied(self) -> list[int]:
        return [
            event["args"]["bytes"] for event in self._events if event.get("cat") == "gpu_memcpy"
        ]

    def table(self) -> str:
        lines = [
            f"{count:6.1f}  {category}  {name[:110]}"
            for category in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
            for name, count in sorted(self.names(category).items())
        ]
        return "\n".join(lines)


def iteration_of(device: str, tensors: int, clip: bool) -> Callable[[], None]:
    params = [torch.nn.Parameter(torch.ones(16, device=device)) for _ in range(tensors)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = Idle(params)
    scaler = torchamp.GradScaler(device, init_scale=1.0, growth_interval=2**30)
    loss = torch.ones((), device=device, requires_grad=True)

    def iteration() -> None:
        scaler.scale(loss)
        if clip:
            scaler.clip_grad_norm_(optimizer, 1e9)
        scaler.step(optimizer)
        scaler.update()

    return iteration


@each_device
@pytest.mark.parametrize(
    ("tensors", "clip", "expected"),
    [
        (4, False, {"unscale_kernel": 1}),
        (161, False, {"unscale_kernel": 1}),
        (1000, False, {"unscale_kernel": 1}),
        (10000, False, {"unscale_kernel": 8}),
        (161, True, {"grad_norm_kernel": 1, "clip_factor_kernel": 1, "apply_factor_kernel": 1}),
        # K40: tens of launches at most, not thousands.
        (2000, True, {"grad_norm_kernel": 2, "clip_factor_kernel": 1, "apply_factor_kernel": 2}),
    ],
)
def test_k40_kernels_and_waits_of_an_iteration(device, tensors, clip, expected, tmp_path):
    trace = Trace(iteration_of(device, tensors, clip), device, tmp_path / "trace.json")
    print(f"{device}, {tensors} tensors, clip {clip}\n{trace.table()}")
    operator = "torchamp::clip_grad_norm_" if clip else "torchamp::unscale_"
    assert trace.names("cpu_op")[operator] == 1
    assert trace.names("cpu_op")["torchamp::update_scale_"] == 1
    assert trace.names("cpu_op")["aten::item"] == 1  # the flag that step reads
    if device != "cuda":
        return
    ours = {name: trace.count("kernel", name) for name in OURS if trace.count("kernel", name)}
    assert ours == {**expected, "update_scale_kernel": 1}
    assert trace.count("kernel") <= sum(ours.values()) + OF_PYTORCH, trace.table()
    assert trace.names("gpu_memset") == {}
    assert trace.bytes_copied() == [4] * ROUNDS
    assert trace.count("cuda_runtime", "cudaMalloc") == 0
    waits = trace.count("cuda_runtime", "StreamSynchronize")
    waits += trace.count("cuda_runtime", "EventSynchronize")
    assert waits == 1, trace.table()  # for the flag
    # After the last round the test waits, and the profiler may.
    assert trace.count("cuda_runtime", "DeviceSynchronize") <= 2 / ROUNDS, trace.table()


@each_device
def test_an_update_with_several_flags_is_one_kernel(device, tmp_path):
    scale, tracker = scalar(8.0, device), scalar(0, device, torch.int32)
    flags = [scalar(0.0, device) for _ in range(40)]

    def update() -> None:
        torch.ops.torchamp.update_scale_(scale, tracker, flags, 2.0, 0.5, 2**30)

    trace = Trace(update, device, tmp_path / "trace.json")
    assert trace.names("cpu_op") == {"torchamp::update_scale_": 1}
    if device == "cuda":
        assert trace.count("kernel") == trace.count("kernel", "update_scale_kernel") == 1


@each_device
def test_dense_gradients_are_neither_copied_nor_looked_up_elsewhere(device, tmp_path):
    grads = [
        torch.ones(6, 4, 4, 4, device=device).contiguous(memory_format=torch.channels_last),
        torch.ones(5, 7, device=device).t(),
        torch.ones(33, device=device)[1:],
        torch.ones(4, dtype=torch.complex64, device=device),
    ]
    found_inf, scale = scalar(0.0, device), scalar(1.0, device)

    def unscale() -> None:
        torch.ops.torchamp.unscale_(grads, found_inf, scale)

    trace = Trace(unscale, device, tmp_path / "trace.json")
    assert trace.names("cpu_op") == {"torchamp::unscale_": 1}
    if device == "cuda":
        assert trace.count("kernel") == 1
        assert trace.bytes_copied() == []
