"""Runs scenarios in two processes on the CPU that are one gloo process group."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from stock_and_ours import OURS, STOCK, Outcome, differences, outcome

WORLD = 2

Scenario = Callable[[Any, int], Any]  # implementation, rank


def run_in_two_processes(scenarios: list[Scenario]) -> dict[str, list[tuple[Outcome, Outcome]]]:
    """The outcomes of each scenario on stock and on torchamp, by its name, one for each process."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (scenarios, folder), nprocs=WORLD)
        files = [Path(folder) / f"{rank}.pt" for rank in range(WORLD)]
        saved = [torch.load(file, weights_only=False) for file in files]
    return {name: [results[name] for results in saved] for name in saved[0]}


def assert_same_in_both(results: list[tuple[Outcome, Outcome]]) -> list[Any]:
    """Asserts that stock and torchamp gave the same in each process, and returns that."""
    for stock, ours in results:
        assert differences(vars(stock), vars(ours)) == []
        assert ours.error is None
    return [ours.value for _, ours in results]


def _process(rank: int, scenarios: list[Scenario], folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=120),
    )
    results = {}
    for scenario in scenarios:
        both = []
        for implementation in (STOCK, OURS):
            torch.manual_seed(0)
            dist.barrier()
            call = outcome(lambda i=implementation, s=scenario: s(i, rank))
            call.warned.clear()  # PyTorch gives many of its own, once a process
            both.append(call)
        results[scenario.__name__] = tuple(both)
    torch.save(results, Path(folder) / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()
