"""The operators on each device: the bits of stock's, and of plain arithmetic where it has none.

Values go through the same numbers on every device, so that the CUDA kernels are also held to the
CPU kernels, which test_ops.py compares with stock.
"""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torchamp
from on_devices import INF, NAN, copies, dtypes_of_stock, each_device, scalar
from stock_and_ours import bits

unscale_ = torch.ops.torchamp.unscale_
update_scale_ = torch.ops.torchamp.update_scale_
clip_grad_norm_ = torch.ops.torchamp.clip_grad_norm_

REAL = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128, torch.complex32]
LAYOUTS = {
    "dense": lambda t: t,
    "transposed": lambda t: t.t(),
    "every second row": lambda t: t[::2],
    "inner block": lambda t: t[1:-1, 1:-1],
    "misaligned": lambda t: t.flatten()[1:],
    "one element": lambda t: t[0, 0],
    "no elements": lambda t: t[:0],
}


def random_values(numel: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """On the CPU; magnitudes over the whole range of the type, zeros and subnormals among them."""
    generator = torch.Generator().manual_seed(seed)
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(dtype, dtype)
    real = torch.float16 if dtype is torch.complex32 else real
    info = torch.finfo(real)
    low, high = math.log2(info.tiny) - 8, math.log2(info.max) - 1
    count = numel * (2 if dtype.is_complex else 1)
    exponents = torch.rand(count, generator=generator, dtype=torch.float64) * (high - low) + low
    signs = torch.randint(0, 3, (count,), generator=generator, dtype=torch.float64) - 1
    values = (signs * torch.exp2(exponents)).to(real)
    return torch.view_as_complex(values.view(numel, 2)) if dtype.is_complex else values


def as_real(tensor: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def product(grad: torch.Tensor, inverse: float) -> torch.Tensor:
    """What unscaling must give, by plain arithmetic: formed in float (double), rounded once."""
    values = as_real(grad.cpu())
    factor = torch.tensor(inverse, dtype=torch.float32)
    if values.dtype is torch.float64:
        return values * factor.double()
    return (values.float() * factor).to(values.dtype)


def unscaled_by_stock(
    grads: list[torch.Tensor], inverse: float, device: str
) -> tuple[list[torch.Tensor], float]:
    """One tensor after the other: stock's CUDA operator takes mixed lists in some versions only."""
    found_inf, results = scalar(0.0, device), copies(grads)
    for result in results:
        torch._amp_foreach_non_finite_check_and_unscale_(
            [result], found_inf, scalar(inverse, device)
        )
    return results, found_inf.item()


@each_device
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("bad", [None, INF, NAN])
def test_unscale_has_the_bits_and_the_flag_of_stock(device, layout, bad):
    for dtype, inverse in itertools.product(
        dtypes_of_stock(device), (1.0, 0.5, 2.0**-16, 1 / 3, 0.0)
    ):
        base = random_values(65 * 67, dtype, seed=1).view(65, 67).to(device)
        if bad is not None and layout(base).numel():
            layout(base)[(-1,) * layout(base).dim()] = bad
        ours, found_inf = base.clone(), scalar(0.0, device)
        unscale_([layout(ours)], found_inf, scalar(inverse, device), True)
        stock = base.clone()
        flag = scalar(0.0, device)
        if layout(stock).numel():
            torch._amp_foreach_non_finite_check_and_unscale_(
                [layout(stock)], flag, scalar(inverse, device)
            )
        assert bits(ours) == bits(stock), (dtype, inverse)
        assert found_inf.item() == flag.item(), (dtype, inverse)


@each_device
@pytest.mark.parametrize("dtype", REAL + COMPLEX)
def test_k33_every_dtype_is_rounded_once(device, dtype):
    """On CUDA stock refuses bfloat16 and complex."""
    for numel, inverse in itertools.product((1, 7, 4099, 40000), (2.0**-16, 1 / 3, 3.0)):
        grad = random_values(numel, dtype, seed=numel).to(device)
        expected = product(grad, inverse)
        found_inf = scalar(0.0, device)
        unscale_([grad], found_inf, scalar(inverse, device), True)
        assert bits(as_real(grad).cpu()) == bits(expected)
        assert found_inf.item() == float(not expected.isfinite().all())


@each_device
@pytest.mark.parametrize("seed", range(8))
def test_k47_random_mixed_lists(device, seed):
    """Any mix of types, sizes around the boundaries of packs and chunks, empty and misaligned."""
    choose = random.Random(seed)
    sizes = [0, 1, 2, 7, 8, 9, 255, 1024, 16383, 16384, 16385, 40000]
    for _ in range(6):
        grads = []
        for _ in range(choose.randrange(1, 30)):
            dtype, numel = choose.choice(REAL), choose.choice(sizes)
            start = choose.choice([0, 0, 1, 3])
            grads.append(
                random_values(numel + start, dtype, choose.getrandbits(32)).to(device)[start:]
            )
        if choose.random() < 0.5:
            grads.append(torch.ones(choose.choice(sizes[1:]), device=device))
            grads[-1][choose.randrange(grads[-1].numel())] = choose.choice([INF, -INF, NAN])
        inverse = choose.choice([2.0**-16, 1 / 3, 0.125])
        expected = [product(grad, inverse) for grad in grads]
        for_stock = [grad for grad in grads if grad.dtype in dtypes_of_stock(device)]
        stock, flag = unscaled_by_stock(for_stock, inverse, device)
        found_inf = scalar(0.0, device)
        unscale_(grads, found_inf, scalar(inverse, device), True)
        assert [bits(grad.cpu()) for grad in grads] == [bits(tensor) for tensor in expected]
        assert [bits(grad) for grad in for_stock] == [bits(tensor) for tensor in stock]
        assert found_inf.item() == float(not all(t.isfinite().all() for t in expected))
        assert flag <= found_inf.item()


@each_device
def test_the_inverse_is_that_of_stock(device):
    """Stock takes it in double: 1 / scale, one rounding; for subnormal and huge scales too."""
    generator = torch.Generator().manual_seed(3)
    patterns = torch.randint(1, 0x7F800000, (400,), generator=generator, dtype=torch.int32)
    scales = torch.cat([patterns.view(torch.float32), 2.0 ** torch.arange(-149.0, 128.0)])
    on_device = scales.to(device)
    grads = torch.ones(len(scales), 1, device=device)
    found_inf = scalar(0.0, device)
    for i in range(len(scales)):
        unscale_([grads[i]], found_inf, on_device[i])
    expected = scales.double().reciprocal().float()
    assert bits(grads.flatten().cpu()) == bits(expected)


@each_device
def test_k5_a_finite_gradient_that_unscales_to_infinity_is_an_overflow(device):
    for dtype, value in ((torch.float32, 1e36), (torch.float16, 6e4), (torch.bfloat16, 1e36)):
        found_inf = scalar(0.0, device)
        grad = torch.full((3,), value, dtype=dtype, device=device)
        unscale_([grad], found_inf, scalar(2.0**-10, device))
        assert found_inf.item() == 1.0


@each_device
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("position", [0, 1, 7, 8, 1023, 1024, 16383, 16384, 32767, 40000])
def test_an_overflow_at_any_position_is_found(device, dtype, position):
    grad = torch.ones(40001, dtype=dtype, device=device)
    grad[position] = NAN
    found_inf = scalar(0.0, device)
    unscale_([torch.ones(3, device=device), grad], found_inf, scalar(4.0, device))
    assert found_inf.item() == 1.0
    grad[position] = 0.25
    assert (grad == 0.25).all()


@each_device
@pytest.mark.parametrize("scale", [1.0, 3.0, 65536.0, 2.0**127, 1e-45, INF, NAN])
@pytest.mark.parametrize("factors", [(2.0, 0.5), (1.1, 0.9), (1e300, 1e-300)])
def test_update_as_stock(device, scale, factors):
    for tracker, found in itertools.product((0, 3, 4), (0.0, 1.0, 0.5, NAN)):
        ours = scalar(scale, device), scalar(tracker, device, torch.int32)
        stock = scalar(scale, device), scalar(tracker, device, torch.int32)
        update_scale_(*ours, [scalar(found, device)], *factors, 5)
        torch._amp_update_scale_(*stock, scalar(found, device), *factors, 5)
        assert list(map(bits, ours)) == list(map(bits, stock)), (tracker, found)


@each_device
@pytest.mark.parametrize("count", [1, 2, 33, 500, 501, 1200])
@pytest.mark.parametrize("where", [None, 0, -1])
def test_k22_update_combines_any_number_of_flags(device, count, where):
    flags = [scalar(0.0, device) for _ in range(count)]
    if where is not None:
        flags[where].fill_(1.0)
    scale, tracker = scalar(8.0, device), scalar(4, device, torch.int32)
    update_scale_(scale, tracker, flags, 2.0, 0.5, 5)
    assert scale.item() == (16.0 if where is None else 4.0)
    assert tracker.item() == 0
    assert sum(flag.item() for flag in flags) == (where is not None)  # they are left as they are


@each_device
def test_k8_update_grows_when_the_tracker_is_above_the_interval(device):
    scale, tracker = scalar(8.0, device), scalar(9, device, torch.int32)
    update_scale_(scale, tracker, [scalar(0.0, device)], 2.0, 0.5, 5)
    assert (scale.item(), tracker.item()) == (16.0, 0)


def exact_norm(grads: list[torch.Tensor]) -> float:
    """In double; a power of two is taken out first, so that no square leaves its range."""
    parts = [as_real(grad.cpu()).double().flatten() for grad in grads if grad.numel()]
    if not parts:
        return 0.0
    values = torch.cat(parts)
    largest = values.abs().max().item()
    if largest == 0.0:
        return 0.0
    unit = 2.0 ** math.floor(math.log2(largest))
    return math.sqrt(math.fsum((values / unit).square().tolist())) * unit


@each_device
@pytest.mark.parametrize("dtype", REAL + COMPLEX)
@pytest.mark.parametrize("max_norm", [0.0, 1.0, 1e9, INF])
def test_k36_norm_and_clipping(device, dtype, max_norm):
    generator = torch.Generator().manual_seed(5)
    kind = torch.complex64 if dtype.is_complex else torch.float32
    grads = [
        (torch.randn(numel, dtype=kind, generator=generator) * 100).to(dtype).to(device)
        for numel in (1, 0, 1000, 16384, 16391, 70000)
    ]
    before = [as_real(grad).double().cpu().clone() for grad in grads]
    norm = exact_norm(grads) / 4.0
    found_inf = scalar(0.0, device)
    result = clip_grad_norm_(grads, found_inf, scalar(4.0, device), max_norm)
    assert (result.dtype, result.device.type, found_inf.item()) == (torch.float64, device, 0.0)
    assert result.item() == pytest.approx(norm, rel=2e-7)
    factor = min(1.0, max_norm / (norm + 1e-6)) / 4.0
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3}.get(as_real(grads[0]).dtype, 1e-6)
    for grad, values in zip(grads, before, strict=True):
        torch.testing.assert_close(
            as_real(grad.cpu()).double(), values * factor, rtol=tolerance, atol=1e-7
        )


@each_device
@pytest.mark.parametrize("value", [1e30, 3e38, 1e-30, 1e-42])
def test_squares_that_leave_the_range_of_float_do_not_spoil_the_norm(device, value):
    grad = torch.full((100,), value, device=device)
    expected = exact_norm([grad])
    norm = clip_grad_norm_([grad], scalar(0.0, device), None, 1.0).item()
    assert norm == pytest.approx(expected, rel=2e-7)
    if value > 1.0:
        torch.testing.assert_close(grad, torch.full_like(grad, 0.1), rtol=1e-5, atol=0.0)


@each_device
@pytest.mark.parametrize("bad", [INF, NAN])
def test_k37_after_an_overflow_gradients_are_left_as_they_were(device, bad):
    grads = [torch.full((5,), 2.0, device=device), torch.ones(40000, device=device)]
    grads[1][-1] = bad
    before = [bits(grad) for grad in grads]
    found_inf = scalar(0.0, device)
    norm = clip_grad_norm_(grads, found_inf, scalar(8.0, device), 1.0)
    assert found_inf.item() == 1.0
    assert not math.isfinite(norm.item())
    assert [bits(grad) for grad in grads] == before


@each_device
def test_the_norm_has_the_same_bits_each_time(device):
    generator = torch.Generator().manual_seed(6)
    grads = [torch.randn(n, generator=generator).to(device) for n in (100000, 3, 70001, 1)]
    norms = {
        clip_grad_norm_(copies(grads), scalar(0.0, device), scalar(3.0, device), 1.0).item()
        for _ in range(5)
    }
    assert len(norms) == 1


@each_device
def test_our_kernels_under_stocks_operators(device):
    if device.upper() not in torchamp._C.native_kernels():
        pytest.skip(f"built without {device} kernels")
    grads = [random_values(1000, dtype, 7).to(device) for dtype in REAL]
    expected = [product(grad, 1 / 3) for grad in grads]
    torchamp.install_kernels()
    try:
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, scalar(0.0, device), scalar(1 / 3, device)
        )
    finally:
        torchamp.uninstall_kernels()
    assert [bits(grad.cpu()) for grad in grads] == [bits(tensor) for tensor in expected]
