"""CUDA graphs: a recorded iteration follows overflows of its replays. On the CPU: called again."""

from __future__ import annotations

import pytest
import torch
import torchamp
from on_devices import INF, NAN, Recorded, each_device, scalar
from stock_and_ours import bits

FACTORS = [1.0, 2.0, INF, 1.0, NAN, 0.5, 1.0, 1.0, INF, INF, 1.0]


class Training:
    """Scale, backward, unscale, step and update as one function of a factor in device memory."""

    def __init__(self, package, device: str, *, tensors: int, clip: bool = False) -> None:
        self.factor = scalar(1.0, device)
        self.params = [torch.nn.Parameter(torch.ones(5, device=device)) for _ in range(tensors)]
        self.optimizer = torch.optim.Adam(
            self.params, lr=0.1, fused=True, capturable=device == "cuda"
        )
        self.scaler = package.GradScaler(device, init_scale=8.0, growth_interval=2)
        self.scaler.scale(torch.ones((), device=device))  # makes its tensors
        self.clip = clip

    def iteration(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss = sum(param.square().sum() for param in self.params) * self.factor
        self.scaler.scale(loss).backward()
        if self.clip:
            self.scaler.clip_grad_norm_(self.optimizer, 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def reset(self) -> None:
        self.scaler._scale.fill_(8.0)
        self.scaler._growth_tracker.zero_()
        with torch.no_grad():
            for param in self.params:
                param.fill_(1.0)
            for state in self.optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def state(self) -> list:
        tensors = [*self.params, self.scaler._scale, self.scaler._growth_tracker]
        return [bits(tensor) for tensor in tensors]


@each_device
@pytest.mark.parametrize("tensors", [1, 4, 200, 1500])
def test_replays_follow_overflows_as_stock_does_step_by_step(device, tensors):
    """Every replay is held to an ordinary iteration with stock's scaler, to the last bit."""
    ours = Training(torchamp, device, tensors=tensors)
    recorded = Recorded(device, ours.iteration, ours.reset)
    stock = Training(torch.amp, device, tensors=tensors)
    assert ours.state() == stock.state()
    for factor in FACTORS[:5] if tensors > 1000 else FACTORS:
        before = bits(ours.params[0])
        ours.factor.fill_(factor)
        recorded.replay()
        stock.factor.fill_(factor)
        stock.iteration()
        assert ours.state() == stock.state()
        assert (bits(ours.params[0]) == before) == (factor in (INF,) or factor != factor)


@each_device
@pytest.mark.parametrize("clip", [False, True])
def test_k19_an_overflow_in_the_fourth_of_ten_replays(device, clip):
    ours = Training(torchamp, device, tensors=3, clip=clip)
    ours.scaler.set_growth_interval(100)
    recorded = Recorded(device, ours.iteration, ours.reset)
    state = (ours.scaler._scale, ours.scaler._growth_tracker)
    addresses = [tensor.data_ptr() for tensor in state]
    scales, unchanged = [], []
    for replay in range(10):
        before = [bits(param) for param in ours.params]
        ours.factor.fill_(INF if replay == 3 else 1.0)
        recorded.replay()
        scales.append(ours.scaler.get_scale())
        unchanged.append([bits(param) for param in ours.params] == before)
    assert scales == [8.0] * 3 + [4.0] * 7
    assert unchanged == [replay == 3 for replay in range(10)]
    assert (ours.scaler._scale, ours.scaler._growth_tracker) == state
    assert [tensor.data_ptr() for tensor in state] == addresses


@each_device
def test_clipping_in_a_graph(device):
    ours = Training(torchamp, device, tensors=3, clip=True)
    recorded = Recorded(device, ours.iteration, ours.reset)
    plain = Training(torchamp, device, tensors=3, clip=True)
    for factor in FACTORS:
        for training, call in ((ours, recorded.replay), (plain, plain.iteration)):
            training.factor.fill_(factor)
            call()
        assert ours.state() == plain.state()
    assert ours.scaler.get_scale() < 8.0


@each_device
def test_unscale_and_update_without_a_step(device):
    """For optimizers that no graph can hold: unscaled in the graph, stepped outside of it."""
    grads = [torch.empty(5, device=device) for _ in range(3)]
    params = [torch.nn.Parameter(torch.ones(5, device=device)) for _ in range(3)]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer = torch.optim.SGD(params, lr=1.0)
    scaler = torchamp.GradScaler(device, init_scale=8.0)
    scaler.scale(torch.ones((), device=device))
    source = scalar(16.0, device)

    def iteration() -> None:
        for grad in grads:
            grad.copy_(source.expand(5))
        scaler.unscale_(optimizer)
        scaler.update()

    recorded = Recorded(device, iteration, lambda: scaler._scale.fill_(8.0))
    for value, scale, grad in ((16.0, 8.0, 2.0), (INF, 4.0, INF), (16.0, 4.0, 4.0)):
        source.fill_(value)
        recorded.replay()
        assert scaler.get_scale() == scale
        assert [g.tolist() for g in grads] == [[grad] * 5] * 3


@each_device
@pytest.mark.parametrize("count", [3, 500, 3000])
def test_the_operators_in_a_graph(device, count):
    """Flag and scale at fixed addresses; a short list, a long one, and one of several launches."""
    grads = list(torch.empty(7 * count, device=device).split(7))
    flat = grads[0]._base
    found_inf, scale = scalar(0.0, device), scalar(8.0, device)
    tracker = scalar(0, device, torch.int32)
    value, norm = scalar(8.0, device), scalar(0.0, device, torch.float64)

    def iteration() -> None:
        found_inf.zero_()
        flat.copy_(value.expand_as(flat))
        norm.copy_(torch.ops.torchamp.clip_grad_norm_(grads, found_inf, scale, 1.0))
        torch.ops.torchamp.update_scale_(scale, tracker, [found_inf], 2.0, 0.5, 1000)

    def reset() -> None:
        scale.fill_(8.0)
        tracker.zero_()

    recorded = Recorded(device, iteration, reset)
    for step, (given, after) in enumerate(((8.0, 8.0), (INF, 4.0), (4.0, 4.0), (NAN, 2.0))):
        value.fill_(given)
        recorded.replay()
        assert (scale.item(), found_inf.item()) == (after, float(step % 2))
        if step % 2:
            assert bits(flat) == bits(torch.full_like(flat, given))
        else:
            assert norm.item() == pytest.approx((7 * count) ** 0.5, rel=1e-6)
            assert flat.norm().item() == pytest.approx(1.0, rel=1e-5)
