"""The GradScaler on each device: whole trainings as with stock's, and parameters on two devices."""

from __future__ import annotations

import math

import pytest
import torch
import torchamp
from on_devices import INF, NAN, each_device, needs_cuda, no_synchronization, wait_on_device
from stock_and_ours import bits

OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "SGD, fused": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "Adam, fused": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
    "AdamW, fused": lambda params: torch.optim.AdamW(params, lr=0.01, fused=True),
}


def train(package, device: str, optimizer_of, clip: str = "", steps: int = 12) -> list:
    """Weights, optimizer state and scaler state after some steps, the fourth with an overflow."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)
    ).to(device)
    optimizer = optimizer_of(model.parameters())
    scaler = package.GradScaler(device, init_scale=2.0**10, growth_interval=4)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(8, 16, generator=generator).to(device)
        optimizer.zero_grad()
        with package.autocast(device):
            loss = model(data).float().square().mean()
        scaler.scale(loss * (INF if step == 3 else 1.0)).backward()
        if clip == "two calls":
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        elif clip == "one call":
            scaler.clip_grad_norm_(optimizer, 0.5)
        scaler.step(optimizer)
        scaler.update()
    return [list(model.state_dict().values()), scaler.state_dict()]


@each_device
@pytest.mark.parametrize("optimizer_of", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("clip", ["", "two calls"])
def test_training_is_that_of_stock_to_the_last_bit(device, optimizer_of, clip):
    stock = train(torch.amp, device, optimizer_of, clip)
    ours = train(torchamp, device, optimizer_of, clip)
    assert [bits(weight) for weight in ours[0]] == [bits(weight) for weight in stock[0]]
    assert ours[1] == stock[1]
    assert ours[1]["scale"] != 2.0**10  # it did move


@each_device
@pytest.mark.parametrize("optimizer_of", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_clipping_in_one_call_trains_as_stocks_two_calls(device, optimizer_of):
    stock = train(torch.amp, device, optimizer_of, "two calls")
    ours = train(torchamp, device, optimizer_of, "one call")
    for left, right in zip(ours[0], stock[0], strict=True):
        torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)
    assert ours[1] == stock[1]


def toy(device: str, scale: float = 8.0):
    param = torch.nn.Parameter(torch.ones(4, device=device))
    return (
        param,
        torch.optim.SGD([param], lr=1.0),
        torchamp.GradScaler(device, init_scale=scale),
    )


@each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64])
def test_k33_gradients_of_every_dtype(device, dtype):
    param = torch.nn.Parameter(torch.ones(4, dtype=dtype, device=device))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = torchamp.GradScaler(device, init_scale=8.0)
    scaler.scale(torch.ones((), device=device))
    param.grad = torch.full_like(param, 8.0)
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(param.detach(), torch.zeros_like(param))
    param.grad = torch.full_like(param, 8.0)
    param.grad[1] = INF
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(param.detach(), torch.zeros_like(param))
    assert scaler.get_scale() == 4.0


@each_device
def test_k22_one_of_two_optimizers_overflows(device):
    first, one, scaler = toy(device)
    second, two, _ = toy(device)
    scaler.scale(first.sum() + second.sum()).backward()
    second.grad[2] = NAN
    for optimizer in (one, two):
        scaler.step(optimizer)
    scaler.update()
    assert (first.tolist(), second.tolist()) == ([0.0] * 4, [1.0] * 4)
    assert scaler.get_scale() == 4.0


@each_device
def test_nothing_but_step_and_reading_the_scale_synchronizes(device):
    param, optimizer, scaler = toy(device)
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    for clips in (False, True):
        optimizer.zero_grad()
        with no_synchronization(device):
            scaler.scale(param.sum()).backward()
            if clips:
                scaler.clip_grad_norm_(optimizer, 1.0)
            else:
                scaler.unscale_(optimizer)
        scaler.step(optimizer)
        with no_synchronization(device):
            scaler.update()
            scaler.update(8.0)
    if device == "cuda":  # the guard does notice
        with pytest.raises(RuntimeError, match="synchroniz"), no_synchronization(device):
            scaler.get_scale()


@each_device
def test_a_fused_optimizer_needs_no_synchronization_at_all(device):
    param = torch.nn.Parameter(torch.ones(4, device=device))
    optimizer = torch.optim.Adam([param], lr=0.1, fused=True)
    scaler = torchamp.GradScaler(device, init_scale=8.0)
    for bad in (1.0, INF, 1.0):
        with no_synchronization(device):
            scaler.scale(param.sum()).backward()
            param.grad.mul_(bad)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert scaler.get_scale() == 4.0
    assert param.tolist() == pytest.approx([0.8] * 4, abs=1e-5)


@each_device
@pytest.mark.parametrize("set_device", [False, True])
def test_k54_a_state_loaded_on_this_device(device, set_device):
    param, optimizer, scaler = toy(device)
    scaler.scale(param.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    other = torchamp.GradScaler(device, init_scale=2.0)
    if set_device:  # the tensors exist already
        other.scale(torch.ones((), device=device))
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.scale(torch.ones((), device=device)).item() == 8.0


# --- parameters on two devices: some on the CPU, the rest on CUDA ---------------------------------

TWO_DEVICES = pytest.mark.parametrize(
    "devices",
    [
        ("cpu", "cpu"),
        pytest.param(("cuda", "cpu"), marks=needs_cuda),
        pytest.param(("cpu", "cuda"), marks=needs_cuda),
    ],
    ids=lambda devices: " and ".join(devices),
)


def wait_on_cuda(devices: tuple[str, str]) -> None:
    wait_on_device("cuda" if "cuda" in devices else "cpu")


def offloaded(devices: tuple[str, str], scale: float, bad: int | None = None):
    """Two parameters with gradients 8, their optimizer, and a scale on the first one's device.

    The gradient of parameter ``bad`` overflows.
    """
    params = [torch.nn.Parameter(torch.ones(4, device=device)) for device in devices]
    scaler = torchamp.GradScaler(devices[0], init_scale=scale)
    scaler.scale(torch.ones((), device=devices[0]))
    for param in params:
        param.grad = torch.full_like(param, 8.0)
    if bad is not None:
        params[bad].grad[3] = INF
    return params, torch.optim.SGD(params, lr=1.0, foreach=False), scaler


@TWO_DEVICES
@pytest.mark.parametrize("bad", [None, 0, 1])
def test_k48_one_decision_for_both_devices(devices, bad):
    params, optimizer, scaler = offloaded(devices, 8.0, bad)
    scaler.step(optimizer)
    wait_on_cuda(devices)  # a flag on its way takes its time
    scaler.update()
    expected = 0.0 if bad is None else 1.0
    assert [param.tolist() for param in params] == [[expected] * 4] * 2
    assert scaler.get_scale() == (8.0 if bad is None else 4.0)


@TWO_DEVICES
@pytest.mark.parametrize("bad", [None, 0, 1])
def test_k48_clipping_over_both_devices(devices, bad):
    params, optimizer, scaler = offloaded(devices, 8.0, bad)
    norm = scaler.clip_grad_norm_(optimizer, 1.0)
    scaler.step(optimizer)
    scaler.update()
    if bad is None:
        assert norm.item() == pytest.approx(math.sqrt(8.0), rel=1e-6)
        after = 1.0 - 1.0 / math.sqrt(8.0)
        assert [param.tolist() for param in params] == [[pytest.approx(after, rel=1e-5)] * 4] * 2
    else:
        assert [param.tolist() for param in params] == [[1.0] * 4] * 2
    assert scaler.get_scale() == (8.0 if bad is None else 4.0)


@TWO_DEVICES
def test_k48_a_scale_that_was_just_set_reaches_the_other_device(devices):
    """A copy from CUDA to the CPU may not be read before it has arrived."""
    params, optimizer, scaler = offloaded(devices, 2.0)
    for scale in (4.0, 16.0, 0.5, 8.0):
        new_scale = torch.tensor(scale, device=devices[0])
        for param in params:
            param.grad = torch.full_like(param, 3.0 * scale)
        wait_on_cuda(devices)
        scaler.update(new_scale)
        scaler.unscale_(optimizer)
        assert [param.grad.tolist() for param in params] == [[3.0] * 4] * 2
        scaler.step(optimizer)
        scaler.update()


@TWO_DEVICES
def test_k48_clipping_waits_for_the_norm_of_the_other_device(devices):
    params, optimizer, scaler = offloaded(devices, 8.0)
    for norm in (3.0, 30.0, 300.0):
        for param in params:
            param.grad = torch.zeros_like(param)
        scaler.update(8.0)
        wait_on_cuda(devices)
        for param in params:
            param.grad[1] = 8.0 * norm
        found = scaler.clip_grad_norm_(optimizer, 1.0).item()
        assert found == pytest.approx(norm * math.sqrt(2.0), rel=1e-6)
        for param in params:
            assert param.grad[1].item() == pytest.approx(math.sqrt(0.5), rel=1e-5)


@TWO_DEVICES
def test_k48_losses_on_both_devices_are_scaled(devices):
    scaler = torchamp.GradScaler(devices[0], init_scale=8.0)
    losses = [torch.full((), 3.0, device=device) for device in devices]
    scaler.scale(losses[0])
    for scale in (4.0, 16.0, 0.5):
        wait_on_cuda(devices)
        scaler.update(torch.tensor(scale, device=devices[0]))
        assert [loss.item() for loss in scaler.scale(losses)] == [3.0 * scale] * 2
        assert scaler.scale(losses[1]).item() == 3.0 * scale
