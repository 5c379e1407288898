"""GradScaler.clip_grad_norm_: unscale, norm and clip in one job, beside stock's two calls."""

from __future__ import annotations

import math

import pytest
import torch
import torchamp
from torch.nn.utils import clip_grad_norm_ as stock_clip


def a_model(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def toy(scale: float) -> tuple[torch.nn.Parameter, torch.optim.SGD, torchamp.GradScaler]:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([param], lr=1.0)
    return param, optimizer, torchamp.GradScaler("cpu", init_scale=scale)


def test_k36_norm_and_clipping() -> None:
    a, b = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    optimizer = torch.optim.SGD([a, b], lr=1.0)
    scaler = torchamp.GradScaler("cpu", init_scale=64.0)
    scaler.scale(3 * a.sum() + 4 * b.sum()).backward()
    norm = scaler.clip_grad_norm_(optimizer, 1.0)
    assert norm.shape == ()
    assert norm.item() == pytest.approx(5.0, rel=1e-9)
    torch.testing.assert_close(a.grad, torch.tensor([0.6]))
    torch.testing.assert_close(b.grad, torch.tensor([0.8]))


@pytest.mark.parametrize("max_norm", [0.0, 0.1, 1.0, 1e9, math.inf])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_training_equals_stocks_two_calls(
    max_norm: float, fused: bool, unscale_first: bool
) -> None:
    results = []
    for ours in (False, True):
        model = a_model(0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = (torchamp if ours else torch.amp).GradScaler("cpu", init_scale=2.0**10)
        for step in range(6):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = model(torch.randn(5, 8)).pow(2).sum() * (math.inf if step == 3 else 1.0)
            scaler.scale(loss).backward()
            if unscale_first or not ours:
                scaler.unscale_(optimizer)
            if ours:
                norm = scaler.clip_grad_norm_(optimizer, max_norm)
            else:
                norm = stock_clip(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
        results.append((model.state_dict(), scaler.state_dict(), float(norm)))
    stock, torchamp_result = results
    for key, value in stock[0].items():
        torch.testing.assert_close(torchamp_result[0][key], value, rtol=1e-5, atol=1e-6)
    assert torchamp_result[1] == stock[1]
    assert torchamp_result[2] == pytest.approx(stock[2], rel=1e-5)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_k37_after_an_overflow_gradients_are_left_as_they_were(bad: float) -> None:
    param, optimizer, scaler = toy(8.0)
    scaler.scale(param.sum()).backward()
    param.grad[2] = bad
    before = param.grad.clone()
    norm = scaler.clip_grad_norm_(optimizer, 1.0)
    assert not math.isfinite(norm.item())
    torch.testing.assert_close(param.grad, before, equal_nan=True, rtol=0, atol=0)
    assert scaler.step(optimizer) is None
    scaler.update()
    assert torch.equal(param.detach(), torch.ones(4))
    assert scaler.get_scale() == 4.0


def test_calls_out_of_order() -> None:
    param, optimizer, scaler = toy(8.0)
    with pytest.raises(AssertionError):
        scaler.clip_grad_norm_(optimizer, 1.0)
    scaler.scale(param.sum()).backward()
    for bad in (-1.0, math.nan):
        with pytest.raises(ValueError, match="max_norm"):
            scaler.clip_grad_norm_(optimizer, bad)
    assert torch.equal(param.grad, torch.full((4,), 8.0))
    scaler.clip_grad_norm_(optimizer, 10.0)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.clip_grad_norm_(optimizer, 1.0)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="after step"):
        scaler.clip_grad_norm_(optimizer, 1.0)


@pytest.mark.parametrize("plain", [True, False])
def test_a_batch_left_out_without_update_is_an_error(plain) -> None:
    """Else the next gradients, which are scaled, would be taken for unscaled ones."""

    class Subclass(torch.Tensor):
        pass

    param, optimizer, scaler = toy(1024.0)

    def clip() -> float:
        param.grad = None
        scaler.scale(param.sum()).backward()
        param.grad = param.grad if plain else param.grad.as_subclass(Subclass)
        return float(scaler.clip_grad_norm_(optimizer, 1e6))

    assert clip() == pytest.approx(2.0)
    with pytest.raises(RuntimeError, match="also when a batch is left out"):
        clip()
    scaler.update()
    assert clip() == pytest.approx(2.0)


def test_clipping_may_follow_unscale_once() -> None:
    param, optimizer, scaler = toy(8.0)
    scaler.scale(10 * param.sum()).backward()
    scaler.unscale_(optimizer)
    assert float(scaler.clip_grad_norm_(optimizer, 1.0)) == pytest.approx(20.0)
    torch.testing.assert_close(param.grad, torch.full((4,), 0.5))
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.clip_grad_norm_(optimizer, 1.0)


def test_a_disabled_scaler_clips_too() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler("cpu", enabled=False)
    scaler.scale(10 * param.sum()).backward()
    assert scaler.clip_grad_norm_(optimizer, 1.0).item() == pytest.approx(20.0)
    torch.testing.assert_close(param.grad, torch.full((4,), 0.5))


def test_gradients_that_are_not_plain_go_through_stocks_functions() -> None:
    class Subclass(torch.Tensor):
        pass

    param, optimizer, scaler = toy(8.0)
    scaler.scale(param.sum()).backward()
    param.grad = param.grad.as_subclass(Subclass)
    assert float(scaler.clip_grad_norm_(optimizer, 1.0)) == pytest.approx(2.0)
    torch.testing.assert_close(torch.Tensor(param.grad), torch.full((4,), 0.5))
    scaler.step(optimizer)
    scaler.update()


def test_an_override_of_unscale_grads_is_called() -> None:
    class Counting(torchamp.GradScaler):
        calls = 0

        def _unscale_grads_(self, *args, **kwargs):
            self.calls += 1
            return super()._unscale_grads_(*args, **kwargs)

    param, optimizer, _ = toy(8.0)
    scaler = Counting("cpu", init_scale=8.0)
    scaler.scale(param.sum()).backward()
    assert float(scaler.clip_grad_norm_(optimizer, 1.0)) == pytest.approx(2.0)
    assert scaler.calls == 1
    torch.testing.assert_close(param.grad, torch.full((4,), 0.5))
