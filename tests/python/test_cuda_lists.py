"""Long lists, empty tensors in every place and a tensor beyond 2^31 elements, on each device."""

from __future__ import annotations

import statistics
import time

import pytest
import torch
import torchamp  # noqa: F401  registers the operators
from on_devices import NAN, each_device, needs_cuda, scalar, synchronize

unscale_ = torch.ops.torchamp.unscale_
clip_grad_norm_ = torch.ops.torchamp.clip_grad_norm_

SHORT_TABLE, LONG_TABLE = 168, 1360  # tensors that one launch takes, see docs/kernels.md


class Views:
    """Tensors of three elements that lie one after the other, so that all can be looked at once."""

    def __init__(self, count: int, device: str) -> None:
        self.flat = torch.empty(3 * count, device=device)
        self.views = list(self.flat.split(3))
        self.empty = torch.empty(0, device=device)
        self.scale = scalar(8.0, device)
        self.found_inf = scalar(0.0, device)
        self.wrong = scalar(0, device, torch.int64)

    def check(self, length: int, empty_at: int) -> None:
        """Unscales a list with an empty tensor in it; wrong elements are counted on the device."""
        self.flat.fill_(8.0)
        grads = self.views[: length - 1]
        grads.insert(empty_at, self.empty)
        unscale_(grads, self.found_inf, self.scale)
        touched = 3 * (length - 1)
        self.wrong += (self.flat[:touched] != 1.0).sum() + (self.flat[touched:] != 8.0).sum()


@each_device
def test_k42_an_empty_tensor_in_every_place_of_every_list(device):
    lists = Views(250, device)
    for length in range(1, 251):
        for empty_at in range(length):
            lists.check(length, empty_at)
    assert (lists.wrong.item(), lists.found_inf.item()) == (0, 0.0)


@each_device
@pytest.mark.parametrize("slots", [SHORT_TABLE, LONG_TABLE, 2 * LONG_TABLE])
def test_k42_an_empty_tensor_in_the_last_slot_and_more_after_it(device, slots):
    lists = Views(slots + 41, device)
    for length in (slots, slots + 1, slots + 2, slots + 41):
        for empty_at in {0, slots - 2, slots - 1, slots, slots + 1, length - 1} & set(
            range(length)
        ):
            lists.check(length, empty_at)
    assert (lists.wrong.item(), lists.found_inf.item()) == (0, 0.0)


@each_device
@pytest.mark.parametrize("count", [1, 167, 168, 169, 1359, 1360, 1361, 2720, 10000])
def test_a_non_finite_element_in_the_last_tensor_of_a_long_list(device, count):
    flat = torch.full((5 * count,), 8.0, device=device)
    grads = list(flat.split(5))
    found_inf = scalar(0.0, device)
    unscale_(grads, found_inf, scalar(8.0, device))
    assert found_inf.item() == 0.0
    assert (flat == 1.0).all()
    grads[-1][-1] = NAN
    unscale_(grads, found_inf, scalar(8.0, device))
    assert found_inf.item() == 1.0
    assert (flat[:-1] == 0.125).all()


@each_device
def test_k40_many_small_tensors_take_less_host_time_than_stock(device):
    """unscale + norm + clip of 2000 tensors; the number of launches: test_cuda_launches.py."""
    params = [torch.nn.Parameter(torch.ones(16, device=device)) for _ in range(2000)]
    for param in params:
        param.grad = torch.ones_like(param)
    grads = [param.grad for param in params]
    one, found_inf = scalar(1.0, device), scalar(0.0, device)

    def ours() -> None:
        clip_grad_norm_(grads, found_inf, one, 1e9)

    def stock() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, one)
        torch.nn.utils.clip_grad_norm_(params, 1e9, foreach=True)

    times: dict[str, list[float]] = {"ours": [], "stock": []}
    for _ in range(9):
        for call in (ours, stock):
            synchronize(device)
            start = time.perf_counter()
            call()
            times[call.__name__].append(time.perf_counter() - start)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    print({name: f"{median * 1e6:.0f} us" for name, median in medians.items()})
    assert medians["ours"] < medians["stock"]


ELEMENTS = {"cpu": 2**20 + 1, "cuda": 2**31 + 1}


def require_memory() -> None:
    if torch.cuda.mem_get_info()[0] < 8 * 2**30:
        pytest.skip("needs 8 GiB of free device memory")


@each_device
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("operator", ["unscale", "clip"])
def test_k43_a_non_finite_last_element_of_a_huge_tensor(device, dtype, operator):
    """More than 2^31 elements on CUDA; on the CPU a short one, for the test's own sake."""
    numel = ELEMENTS[device]
    if device == "cuda":
        require_memory()
    found_inf = scalar(0.0, device)

    def call(grad: torch.Tensor) -> None:
        if operator == "unscale":
            unscale_([grad], found_inf, scalar(8.0, device))
        else:
            clip_grad_norm_([grad], found_inf, scalar(8.0, device), float("inf"))

    grad = torch.full((numel,), 8.0, dtype=dtype, device=device)
    call(grad)
    assert found_inf.item() == 0.0
    assert all(bool((part == 1.0).all()) for part in grad.split(2**28))
    grad.fill_(8.0)
    grad[-1] = NAN
    call(grad)
    assert found_inf.item() == 1.0
    expected = 1.0 if operator == "unscale" else 8.0  # clipping leaves all as it was
    assert grad[-2].item() == expected
    assert all(bool((part == expected).all()) for part in grad[:-1].split(2**28))
    del grad
    if device == "cuda":
        torch.cuda.empty_cache()


@needs_cuda
def test_k43_the_norm_of_a_huge_tensor():
    require_memory()
    numel = 2**31 + 1
    grad = torch.full((numel,), 2.0, dtype=torch.bfloat16, device="cuda")
    norm = clip_grad_norm_([grad], scalar(0.0, "cuda"), None, float("inf")).item()
    assert norm == pytest.approx(2.0 * numel**0.5, rel=1e-6)
    del grad
    torch.cuda.empty_cache()
