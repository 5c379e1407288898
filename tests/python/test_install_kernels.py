"""torchamp.install_kernels(): torchamp's kernels under PyTorch's operators."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import torch
import torchamp
from stock_and_ours import bits, differences, outcome, parameters, snapshot
from torchamp import _C

UNSCALE = "aten::_amp_foreach_non_finite_check_and_unscale_"
UPDATE = "aten::_amp_update_scale_"


def unscale(grads: list[torch.Tensor], inv_scale: float) -> float:
    found_inf = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, torch.tensor(inv_scale))
    return found_inf.item()


def runs_on_ours() -> bool:
    """Only our kernel calls it an overflow if a finite gradient unscales to infinity."""
    return unscale([torch.tensor([1e38])], 1e10) == 1.0


def registrations() -> list[str]:
    return [torch._C._dispatch_dump(name) for name in (UNSCALE, UPDATE)]


@pytest.fixture(autouse=True)
def everything_is_restored():
    before = registrations()
    assert not runs_on_ours()
    yield
    assert registrations() == before
    assert not runs_on_ours()


@pytest.fixture
def installed():
    torchamp.install_kernels()
    yield
    torchamp.uninstall_kernels()


def test_installed_and_restored():
    before = registrations()
    torchamp.install_kernels()
    try:
        assert runs_on_ours()
        changed = registrations()
        assert changed != before
    finally:
        torchamp.uninstall_kernels()
    assert not runs_on_ours()


def test_only_for_devices_with_kernels_of_ours(installed):
    for name, dump in zip((UNSCALE, UPDATE), registrations(), strict=True):
        table = torch._C._dispatch_dump_table(name)
        for key in ("CPU", "CUDA"):
            ours = [line for line in dump.splitlines() if line.startswith(f"{key}: ")]
            assert any("aten_override" in line for line in ours) == (key in _C.native_kernels())
        assert "aten_override" not in "".join(
            line for line in table.splitlines() if not line.startswith(("CPU:", "CUDA:"))
        )


def test_calls_are_counted():
    for _ in range(3):
        torchamp.install_kernels()
    for left in (2, 1, 0):
        torchamp.uninstall_kernels()
        assert runs_on_ours() == (left > 0)


def test_uninstalling_what_is_not_installed():
    with pytest.raises(RuntimeError, match="install_kernels"):
        torchamp.uninstall_kernels()
    torchamp.install_kernels()
    torchamp.uninstall_kernels()
    with pytest.raises(RuntimeError, match="install_kernels"):
        torchamp.uninstall_kernels()


def test_from_several_threads():
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            barrier.wait()
            for _ in range(30):
                torchamp.install_kernels()
                torchamp.uninstall_kernels()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


QUIET = """
import warnings
import torch, torchamp
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torchamp.install_kernels()
    torchamp.uninstall_kernels()
    torchamp.install_kernels()
assert not caught, [str(warning.message) for warning in caught]
"""


def test_it_says_nothing_and_survives_the_end_of_the_process():
    """PyTorch warns once a process of a kernel that is overridden: on either stream of it."""
    done = subprocess.run(
        [sys.executable, "-c", QUIET], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_beside_an_override_in_python():
    """The newest registration wins, and either may go first."""
    calls = []

    def mine(self, growth_tracker, found_inf, growth, backoff, interval):
        calls.append(found_inf.item())
        return self

    def update() -> float:
        scale = torch.tensor(8.0)
        torch._amp_update_scale_(
            scale, torch.zeros((), dtype=torch.int32), torch.ones(()), 2.0, 0.5, 2
        )
        return scale.item()

    for ours_goes_first in (True, False):
        torchamp.install_kernels()
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("_amp_update_scale_", mine, "CPU")
        assert update() == 8.0
        if ours_goes_first:
            torchamp.uninstall_kernels()
            assert update() == 8.0
            library._destroy()
        else:
            library._destroy()
            assert runs_on_ours()
            torchamp.uninstall_kernels()
        assert update() == 4.0
    assert calls == [1.0] * 3


# --- the operators give what stock's give ---
LISTS = {
    "empty": lambda: [],
    "one": lambda: [torch.randn(33)],
    "many sizes": lambda: [torch.randn(n) for n in (0, 1, 7, 64, 65, 1000, 0)],
    "mixed dtypes": lambda: [
        torch.randn(17).to(dtype)
        for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    ],
    "transposed and sliced": lambda: [torch.randn(5, 7).t(), torch.randn(20)[::3]],
    "infinite": lambda: [torch.ones(3), torch.tensor([1.0, torch.inf])],
    "nan": lambda: [torch.tensor([torch.nan]), torch.ones(3)],
    "subnormal": lambda: [torch.tensor([1e-40, -1e-42])],
    "a leaf": lambda: [torch.ones(3, requires_grad=True)],
    "a leaf with gaps": lambda: [torch.ones(6)[::2].requires_grad_()],
}


@pytest.mark.parametrize("inv_scale", [0.125, 1.0, 0.3, 1 / 65536, 0.0])
@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
def test_unscale_as_stock(make, inv_scale):
    """The inverse is used as it is given: 0.3 is not rounded through a scale."""

    def program() -> Any:
        torch.manual_seed(0)
        grads = make()
        with torch.no_grad():
            flag = unscale(grads, inv_scale)
        return flag, [bits(grad) for grad in grads], [grad._version for grad in grads]

    stock = outcome(program)
    torchamp.install_kernels()
    try:
        ours = outcome(program)
    finally:
        torchamp.uninstall_kernels()
    assert stock.error is None
    assert differences(vars(stock), vars(ours)) == []


@pytest.mark.parametrize("found", [0.0, 1.0, 2.0, float("nan")])
@pytest.mark.parametrize("scale", [8.0, 2.0**127, 2.0**-149, 0.0])
@pytest.mark.parametrize("tracker", [0, 1, 2])
def test_update_as_stock(scale, tracker, found):
    def program() -> Any:
        values = torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32)
        result = torch._amp_update_scale_(*values, torch.tensor(found), 2.0, 0.5, 3)
        assert result is values[0]
        return [bits(value) for value in values], [value._version for value in values]

    stock = outcome(program)
    torchamp.install_kernels()
    try:
        assert differences(vars(stock), vars(outcome(program))) == []
    finally:
        torchamp.uninstall_kernels()


def scalar(value: float = 1.0, **options: Any) -> torch.Tensor:
    return torch.tensor(value, **options)


WRONG_CALLS = {
    "found_inf of two": lambda: unscale_with(torch.zeros(2), scalar()),
    "found_inf double": lambda: unscale_with(scalar(dtype=torch.float64), scalar()),
    "inv_scale of two": lambda: unscale_with(scalar(), torch.ones(2)),
    "inv_scale half": lambda: unscale_with(scalar(), scalar(dtype=torch.float16)),
    "integers": lambda: unscale([torch.ones(2, dtype=torch.int64)], 1.0),
    "float8": lambda: unscale([torch.ones(2).to(torch.float8_e4m3fn)], 1.0),
    "expanded": lambda: unscale([torch.ones(1).expand(3)], 0.5),
    "sparse": lambda: unscale([torch.ones(2, 2).to_sparse()], 0.5),
    "tracker of another dtype": lambda: torch._amp_update_scale_(
        scalar(), torch.zeros((), dtype=torch.int64), scalar(), 2.0, 0.5, 3
    ),
    "scale of another dtype": lambda: torch._amp_update_scale_(
        scalar(dtype=torch.float64), torch.zeros((), dtype=torch.int32), scalar(), 2.0, 0.5, 3
    ),
    "two flags": lambda: torch._amp_update_scale_(
        scalar(), torch.zeros((), dtype=torch.int32), torch.ones(2), 2.0, 0.5, 3
    ),
}


def unscale_with(found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(2)], found_inf, inv_scale)


@pytest.mark.parametrize("call", WRONG_CALLS.values(), ids=WRONG_CALLS)
def test_the_same_errors(call):
    stock = outcome(call)
    torchamp.install_kernels()
    try:
        assert outcome(call).error is stock.error
    finally:
        torchamp.uninstall_kernels()
    assert stock.error is not None


def test_other_faces_of_the_operators_end_there_too(installed):
    """Functional and out= overloads, inference mode, functionalization, vmap's fallback."""
    grads, inv_scale = [torch.tensor([1e38])], torch.tensor(1e10)
    functional = torch.ops.aten._amp_foreach_non_finite_check_and_unscale.default
    results, flag = functional(grads, torch.zeros(()), inv_scale)
    assert results[0].item() == float("inf")
    assert flag.item() == 1.0
    assert grads[0].item() == pytest.approx(1e38)
    with torch.inference_mode():
        assert runs_on_ours()

    def wrapped(grad: torch.Tensor) -> torch.Tensor:
        found_inf = torch.zeros(())
        torch._amp_foreach_non_finite_check_and_unscale_([grad], found_inf, inv_scale)
        return found_inf

    assert torch.func.functionalize(wrapped)(torch.tensor([1e38])).item() == 1.0
    compiled = torch.compile(wrapped, backend="aot_eager", fullgraph=True)
    assert compiled(torch.tensor([1e38])).item() == 1.0


def test_what_ours_does_not_take_still_works_as_stock(installed):
    """Meta and fake tensors have kernels of their own."""
    from torch._subclasses import FakeTensorMode

    unscale_meta = torch.ones(2, device="meta"), torch.ones((), device="meta")
    torch._amp_foreach_non_finite_check_and_unscale_([unscale_meta[0]], *unscale_meta[1:] * 2)
    with FakeTensorMode():
        torch._amp_foreach_non_finite_check_and_unscale_(
            [torch.ones(2)], torch.zeros(()), torch.ones(())
        )


# --- stock's GradScaler ---
def train(optimizer_class: type[torch.optim.Optimizer], **options: Any) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(8, 4, sparse=options.pop("sparse", False)))
    model.append(torch.nn.Linear(4, 4))
    optimizer = optimizer_class(model.parameters(), lr=0.1, **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126, growth_interval=2)
    scales = []
    for _ in range(12):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.tensor([1, 2, 1])).square().sum() * 8
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return snapshot([model.state_dict(), scales, scaler.state_dict()])


@pytest.mark.parametrize(
    ("optimizer_class", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"sparse": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"fused": True}),
    ],
    ids=["SGD", "SGD, sparse", "AdamW", "AdamW, fused"],
)
def test_the_scaler_of_stock_trains_the_same_on_our_kernels(optimizer_class, options):
    stock = train(optimizer_class, **options)
    torchamp.install_kernels()
    try:
        assert differences(stock, train(optimizer_class, **options)) == []
    finally:
        torchamp.uninstall_kernels()


def test_difference_the_scaler_of_stock_sees_overflows_of_unscaling(installed):
    """K5: true gradients beyond float32 are not stepped with."""
    (parameter,) = parameters(torch.full((2,), 1e36))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-10)
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)
    scaler.update()
    assert parameter.tolist() == [1.0, 1.0]
    assert scaler.get_scale() == 2.0**-11


def test_difference_the_scaler_of_stock_skips_at_a_collapsed_scale(installed):
    (parameter,) = parameters(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.update(1e-40)
    scaler.step(optimizer)
    assert parameter.tolist() == [1.0, 1.0]


def test_difference_the_scaler_of_stock_unscales_complex_gradients(installed):
    (parameter,) = parameters(torch.full((2,), 8 + 16j))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)
    assert parameter.grad.tolist() == [1 + 2j] * 2


def test_our_scaler_on_our_kernels(installed):
    """Its slow way calls the operators, and those call our kernels, not the slow way again."""
    grad = torch.sparse_coo_tensor([[0, 1]], [8.0, 16.0], (3,), check_invariants=False)
    (parameter,) = parameters(grad.coalesce())
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD([parameter], lr=1.0))
    assert parameter.grad.to_dense().tolist() == [1.0, 2.0, 0.0]
