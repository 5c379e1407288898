"""Tests that run on the CPU and, where there is one, on a CUDA device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])

INF = float("inf")
NAN = float("nan")


def dtypes_of_stock(device: str) -> list[torch.dtype]:
    """What stock's unscale operator takes; on CUDA neither bfloat16 nor complex."""
    common = [torch.float32, torch.float64, torch.float16]
    return common if device == "cuda" else [*common, torch.bfloat16]


def scalar(value: float, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def wait_on_device(device: str) -> None:
    """Keep the current stream busy for some milliseconds: what does not wait for it comes first."""
    if device == "cuda":
        torch.cuda._sleep(20_000_000)  # clock cycles


def copies(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone(memory_format=torch.preserve_format) for tensor in tensors]


class Recorded:
    """A function whose work can be repeated: a CUDA graph, on the CPU just another call.

    On CUDA the function runs three times on a side stream first, as graphs want it; ``reset`` then
    puts back, in place, what that has changed.
    """

    def __init__(self, device: str, function: Callable[[], Any], reset: Callable[[], None]) -> None:
        self._function = function
        self._graph: torch.cuda.CUDAGraph | None = None
        if device != "cuda":
            function()
            reset()
            return
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                function()
        torch.cuda.current_stream().wait_stream(side)
        reset()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            function()

    def replay(self) -> None:
        if self._graph is None:
            self._function()
        else:
            self._graph.replay()


@contextlib.contextmanager
def no_synchronization(device: str):
    """Any call that waits for the device is an error in here."""
    if device != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
