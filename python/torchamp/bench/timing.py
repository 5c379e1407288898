"""Contenders, called in turn and timed one by one."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

Row = dict[str, Any]  # of the table: what was measured, times in microseconds, ratios
Timer = Callable[[Callable[[], Any]], float]


def _clock(clock: Callable[[], int], device: torch.device) -> Timer:
    def timer(call: Callable[[], Any]) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = clock()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (clock() - start) / 1e3

    return timer


def host_timer(device: torch.device, threads: int) -> Timer:
    """Microseconds until the host has everything done, with what it waits for."""
    alone = device.type == "cpu" and threads == 1
    return _clock(time.thread_time_ns if alone else time.perf_counter_ns, device)


def device_timer(device: torch.device, threads: int) -> Timer:
    """Microseconds on the device."""
    if device.type != "cuda":
        return host_timer(device, threads)

    def timer(call: Callable[[], Any]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e3

    return timer


def compare(contenders: dict[str, Callable[[], Any]], rounds: int, timer: Timer) -> Row:
    """Call each contender once a round; `torchamp` among them, `stock` and `limit` if there are."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    generator = random.Random(1)
    for _ in range(2):
        for call in contenders.values():
            call()
    for _ in range(rounds):
        generator.shuffle(names)  # nobody always follows the same one
        for name in names:
            times[name].append(timer(contenders[name]))
    row: Row = {name: statistics.median(taken) for name, taken in times.items()}
    row |= {f"{name}_min": min(taken) for name, taken in times.items()}
    ours = times["torchamp"]
    deciles = statistics.quantiles(ours, n=10)
    row["spread"] = (deciles[-1] - deciles[0]) / row["torchamp"]
    for name, ratio in (("stock", "of_stock"), ("limit", "of_limit")):
        if name in times:
            pairs = zip(times[name], ours, strict=True)
            row[ratio] = statistics.median(
                other / own if name == "stock" else own / other for other, own in pairs
            )
    return row


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
