"""K51: gradients from side streams, the scaler on the same or on another stream: as without any."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
import torchamp
from on_devices import INF, each_device, synchronize, wait_on_device
from stock_and_ours import bits

STEPS = 8


def new_stream(device: str):
    return torch.cuda.Stream() if device == "cuda" else None


def on(stream):
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def wait_for(stream) -> None:
    """Make the current stream wait for another one."""
    if stream is not None:
        torch.cuda.current_stream().wait_stream(stream)


def wait_for_current(stream) -> None:
    """Make another stream wait for the current one."""
    if stream is not None:
        stream.wait_stream(torch.cuda.current_stream())


class Job:
    """Gradients come late on their stream, so that whoever does not wait for them sees old ones."""

    def __init__(self, device: str, *, fused: bool, seed: int = 0) -> None:
        self.device = device
        generator = torch.Generator().manual_seed(seed)
        sizes = (3, 1000, 70001)
        self.params = [
            torch.nn.Parameter(torch.randn(size, generator=generator).to(device)) for size in sizes
        ]
        self.data = [torch.randn(size, generator=generator).to(device) for size in sizes]
        self.optimizer = torch.optim.SGD(self.params, lr=0.1, momentum=0.9, fused=fused)
        self.scaler = torchamp.GradScaler(device, init_scale=2.0**10, growth_interval=3)

    def backward(self, step: int) -> None:
        wait_on_device(self.device)
        self.optimizer.zero_grad()
        factor = INF if step == 4 else 1.0
        pairs = zip(self.params, self.data, strict=True)
        loss = sum((param * data).square().mean() for param, data in pairs) * factor
        self.scaler.scale(loss).backward()

    def finish(self, clip: bool) -> None:
        if clip:
            self.scaler.clip_grad_norm_(self.optimizer, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, clip: bool) -> Job:
        for step in range(STEPS):
            self.backward(step)
            self.finish(clip)
        return self

    def state(self) -> list:
        synchronize(self.device)
        return [[bits(param) for param in self.params], self.scaler.state_dict()]


@each_device
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_k51_all_on_one_side_stream(device, fused, clip):
    serial = Job(device, fused=fused).run(clip).state()
    side = new_stream(device)
    job = Job(device, fused=fused)
    wait_for_current(side)
    with on(side):
        job.run(clip)
    assert job.state() == serial
    assert serial[1]["scale"] != 2.0**10


@each_device
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_k51_gradients_from_a_side_stream_finished_on_the_default_stream(device, fused, clip):
    serial = Job(device, fused=fused).run(clip).state()
    side = new_stream(device)
    job = Job(device, fused=fused)
    for step in range(STEPS):
        wait_for_current(side)
        with on(side):
            job.backward(step)
        wait_for(side)
        job.finish(clip)
    assert job.state() == serial


@each_device
@pytest.mark.parametrize("fused", [False, True])
def test_two_scalers_in_turn_on_two_streams(device, fused):
    serial = [Job(device, fused=fused, seed=seed).run(False).state() for seed in (1, 2)]
    jobs = [Job(device, fused=fused, seed=seed) for seed in (1, 2)]
    streams = [new_stream(device) for _ in jobs]
    synchronize(device)
    for step in range(STEPS):
        for job, stream in zip(jobs, streams, strict=True):
            with on(stream):
                job.backward(step)
                job.finish(False)
    assert [job.state() for job in jobs] == serial


@each_device
def test_two_scalers_in_two_threads_on_two_streams(device):
    serial = [Job(device, fused=False, seed=seed).run(True).state() for seed in (1, 2)]
    jobs = [Job(device, fused=False, seed=seed) for seed in (1, 2)]
    synchronize(device)
    failures: list[BaseException] = []

    def work(job: Job) -> None:
        try:
            with on(new_stream(device)):
                job.run(True)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert [job.state() for job in jobs] == serial
