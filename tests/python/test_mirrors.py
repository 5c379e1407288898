"""torchamp's modules beside those of torch that they mirror."""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torchamp
from stock_and_ours import arguments_of_stock, assert_same

# Names of torch's modules that users and libraries import; private ones among them.
NAMES = {
    "amp": [
        "GradScaler",
        "_enter_autocast",
        "_exit_autocast",
        "autocast",
        "custom_bwd",
        "custom_fwd",
        "is_autocast_available",
    ],
    "amp.autocast_mode": [
        "_cast",
        "autocast",
        "autocast_decorator",
        "custom_bwd",
        "custom_fwd",
        "is_autocast_available",
    ],
    "amp.grad_scaler": [
        "GradScaler",
        "OptState",
        "_MultiDeviceReplicator",
        "_refresh_per_optimizer_state",
    ],
    "cuda.amp": [
        "GradScaler",
        "amp_definitely_not_available",
        "autocast",
        "custom_bwd",
        "custom_fwd",
    ],
    "cuda.amp.autocast_mode": ["_cast", "autocast", "custom_bwd", "custom_fwd"],
    "cuda.amp.grad_scaler": ["GradScaler", "OptState"],
    "cuda.amp.common": ["amp_definitely_not_available"],
    "cpu.amp": ["GradScaler", "autocast"],
    "cpu.amp.autocast_mode": ["autocast"],
    "cpu.amp.grad_scaler": ["GradScaler"],
}
PAIRS = [(module, name) for module, names in NAMES.items() for name in names]


def modules(path: str) -> tuple[Any, Any]:
    return importlib.import_module(f"torch.{path}"), importlib.import_module(f"torchamp.{path}")


@pytest.mark.parametrize("path", NAMES)
def test_every_public_name_is_there(path):
    stock, ours = modules(path)
    public = set(getattr(stock, "__all__", NAMES[path]))
    assert public <= set(vars(ours))
    assert set(ours.__all__) >= {name for name in NAMES[path] if not name.startswith("_")} & public


@pytest.mark.parametrize(("path", "name"), PAIRS)
def test_names_take_the_same_arguments(path, name):
    stock, ours = (getattr(module, name) for module in modules(path))
    assert callable(stock) == callable(ours)
    if isinstance(stock, type) and issubclass(stock, (tuple, dict)):
        return
    assert arguments_of_stock(ours) == arguments_of_stock(stock)


@pytest.mark.parametrize("name", ["autocast", "GradScaler"])
def test_names_of_torch_itself(name):
    assert getattr(torchamp, name) is getattr(torchamp.amp, name)
    assert issubclass(getattr(torchamp, name), getattr(torch, name))


def test_exported_names_exist():
    for name in torchamp.__all__:
        assert hasattr(torchamp, name)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_difference_no_future_warning(device):
    stock, ours = modules(f"{device}.amp")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for module in (stock, ours):
            module.autocast(enabled=False)
            module.GradScaler(enabled=False)
            if device == "cuda":
                module.custom_fwd(lambda ctx: None)
                module.custom_bwd(lambda ctx: None)
                module.autocast_mode._cast(1, torch.float16)
    expected = 5 if device == "cuda" else 2
    categories = [warning.category for warning in caught]
    assert categories == [FutureWarning] * expected, "more than stock's own, or fewer"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "arguments",
    [(), (False,), (True, torch.bfloat16), (True, torch.float16, False), (False, torch.float32)],
    ids=repr,
)
def test_the_deprecated_classes_make_the_same_regions(device, arguments):
    def attributes(amp: Any) -> Any:
        module = importlib.import_module(f"{amp.amp.__name__.split('.')[0]}.{device}.amp")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            region = module.autocast(*arguments)
        with region:
            inside = (torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device)))
        return {**{key: str(value) for key, value in vars(region).items()}, "inside": inside}

    assert_same(attributes)


def square(amp: Any, device: str, cast_inputs: torch.dtype | None) -> type[torch.autograd.Function]:
    """A custom function that notes what it sees; amp is torch.amp, torch.cuda.amp or ours."""
    generic = amp.__name__.endswith("torch.amp") or amp.__name__ == "torchamp.amp"
    options = {"device_type": device} if generic else {}

    class Square(torch.autograd.Function):
        seen: list[Any] = []  # noqa: RUF012

        @staticmethod
        @amp.custom_fwd(cast_inputs=cast_inputs, **options)
        def forward(ctx, x):
            Square.seen.append(("forward", x.dtype, torch.is_autocast_enabled(device)))
            ctx.save_for_backward(x)
            return (x @ x).float()

        @staticmethod
        @(amp.custom_bwd(**options) if generic else amp.custom_bwd)
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            product = grad @ x.to(grad.dtype)
            Square.seen.append(("backward", product.dtype, torch.is_autocast_enabled(device)))
            return 2 * product.to(x.dtype)

    return Square


@pytest.mark.parametrize("cast_inputs", [None, torch.float32, torch.float16])
@pytest.mark.parametrize("enabled", [True, False])
def test_custom_functions_as_stock(enabled, cast_inputs):
    def program(implementation: Any) -> Any:
        function = square(implementation.amp, "cpu", cast_inputs)
        x = torch.randn(4, 4, requires_grad=True)
        with implementation.amp.autocast("cpu", torch.bfloat16, enabled):
            loss = function.apply(x).sum()
        loss.backward()
        return [str(function.seen), loss, x.grad]

    ours = assert_same(program)
    assert ours.error is None


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("cast_inputs", [None, torch.float16])
def test_custom_functions_of_cuda_amp_as_stock(cast_inputs):
    results = []
    for package in (torch, torchamp):
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = square(package.cuda.amp, "cuda", cast_inputs)
            torch.set_autocast_enabled("cuda", True)
            try:
                x = torch.randn(4, 4, requires_grad=True)
                function.apply(x).sum().backward()
            finally:
                torch.set_autocast_enabled("cuda", False)
        results.append((function.seen, x.grad.tolist()))
    assert results[0] == results[1]


def test_cast_of_cuda_amp_as_stock():
    values = {"a": [torch.ones(2), "text", b"bytes"], "b": (torch.ones(1, dtype=torch.float64), 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stock = torch.cuda.amp.autocast_mode._cast(values, torch.float16)
    assert str(torchamp.cuda.amp.autocast_mode._cast(values, torch.float16)) == str(stock)


@pytest.mark.parametrize("device", [None, 3, torch.device("cpu")], ids=repr)
@pytest.mark.parametrize("name", ["custom_fwd", "custom_bwd"])
def test_custom_functions_refuse_devices_as_stock(name, device):
    assert_same(lambda amp: getattr(amp.amp, name)(print, device_type=device) and None)
    assert_same(lambda amp: getattr(amp.amp, name)(print) and None)


def test_every_difference_in_the_docs_has_its_test():
    tests = Path(__file__).resolve().parents[1]
    page = (tests.parent / "docs" / "differences.md").read_text()
    named = re.findall(r"`(\w+\.py)::(\w+)`", page)
    assert len(named) > 20
    for file, name in named:
        assert f"def {name}(" in (tests / "python" / file).read_text(), f"{file}::{name}"
    in_cpp = "".join(path.read_text() for path in (tests / "cpp").glob("*.cpp"))
    rows = [line for line in page.splitlines() if line.startswith("|")]
    quoted = re.findall(r'"([^"]+)"', "\n".join(row.rsplit(" | ", 1)[-1] for row in rows))
    assert len(quoted) > 8
    for name in quoted:
        assert f'"{name}"' in in_cpp, name
