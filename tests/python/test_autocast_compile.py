"""torchamp.autocast and GradScaler.scale under torch.compile, torch.export and torch.jit.

TorchScript (torch.jit.script) compiles `with torch.autocast(...)` by the name of stock's class; a
subclass it cannot: see docs/autocast.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchamp
from stock_and_ours import OURS, STOCK, Implementation
from torch._dynamo.testing import CompileCounter

BOTH = pytest.mark.parametrize("implementation", [STOCK, OURS], ids=lambda i: i.name)
ON_2_11 = torch.__version__.startswith("2.11.")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    torch.autocast_decrement_nesting()


def make_inside(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast("cpu", torch.float16):
            return x @ x

    return function


def make_inside_by_keyword(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast(device_type="cpu", dtype=torch.float16, cache_enabled=False):
            y = x @ x
        return y + x

    return function


def make_inside_nested(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast("cpu", torch.float16):
            y = x @ x
            with amp.autocast("cpu", torch.bfloat16):
                y = y + (x @ x)
            with amp.autocast("cpu", enabled=False):
                return y + (x @ x)

    return function


def make_outside(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    region = amp.autocast("cpu", torch.float16)

    def function(x: torch.Tensor) -> torch.Tensor:
        with region:
            return x @ x

    return function


def make_decorated(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return amp.autocast("cpu", torch.float16)(lambda x: x @ x)


def make_for_cuda(amp: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.autocast("cuda", torch.float16):
            return x @ x

    return function


MAKERS = [
    make_inside,
    make_inside_by_keyword,
    make_inside_nested,
    make_outside,
    make_decorated,
    make_for_cuda,
]


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.filterwarnings("ignore:User provided device_type")
@pytest.mark.parametrize("make", MAKERS)
@BOTH
def test_one_graph(implementation, make):
    function = make(implementation.amp)
    counter = CompileCounter()
    x = torch.randn(4, 4)
    result = torch.compile(function, backend=counter, fullgraph=True)(x)
    assert counter.frame_count == 1
    assert torch.equal(result, function(x))
    assert result.dtype is function(x).dtype


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.filterwarnings("ignore:User provided device_type")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_graph_with_the_mirrors(device):
    autocast = getattr(torchamp, device).amp.autocast

    def function(x: torch.Tensor) -> torch.Tensor:
        with autocast(True, torch.float16):
            return x @ x

    counter = CompileCounter()
    x = torch.randn(4, 4)
    result = torch.compile(function, backend=counter, fullgraph=True)(x)
    assert counter.frame_count == 1
    assert torch.equal(result, function(x))


def test_a_compiled_region_trains_as_stock():
    def losses(implementation: Implementation) -> list[float]:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def forward(x: torch.Tensor) -> torch.Tensor:
            with implementation.amp.autocast("cpu", torch.bfloat16):
                return model(x).square().mean()

        compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)
        values = []
        for _ in range(5):
            loss = compiled(torch.ones(4, 8))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    stock, ours = losses(STOCK), losses(OURS)
    assert stock == ours
    assert ours[0] > ours[-1]


@BOTH
def test_a_graph_break_inside_a_region(implementation):
    def function(x: torch.Tensor) -> torch.Tensor:
        with implementation.amp.autocast("cpu", torch.float16):
            y = x @ x
            torch._dynamo.graph_break()
            return y @ x

    counter = CompileCounter()
    x = torch.randn(4, 4)
    result = torch.compile(function, backend=counter)(x)
    assert torch.equal(result, function(x))
    # With 2.11 a function with a break inside our region runs uncompiled, to the same result.
    assert counter.frame_count == (0 if ON_2_11 and implementation is OURS else 2)


def test_regions_that_uncompiled_code_enters():
    """torch.compile tries what an uncompiled function calls; not our enter and exit."""
    before = torchamp.autocast("cpu", torch.float16)

    class Unknown:
        def __enter__(self):
            torch._dynamo.graph_break()

        def __exit__(self, *exception):
            pass

    def function(x: torch.Tensor) -> torch.Tensor:
        with Unknown():
            with before, torchamp.autocast("cpu", torch.bfloat16):
                torch._dynamo.graph_break()
                y = x @ x
            return y + x

    x = torch.randn(4, 4)
    expected = function(x)
    assert torch.equal(torch.compile(function, backend="eager")(x), expected)


class Subclass(torchamp.autocast):
    pass


@pytest.mark.skipif(ON_2_11, reason="torch 2.11 compiles no subclass that is made inside")
def test_a_subclass_in_one_graph():
    def function(x: torch.Tensor) -> torch.Tensor:
        with Subclass("cpu", torch.float16):
            return x @ x

    x = torch.randn(4, 4)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), function(x))


def test_a_subclass_with_graph_breaks():
    def function(x: torch.Tensor) -> torch.Tensor:
        with Subclass("cpu", torch.float16):
            y = x @ x
            torch._dynamo.graph_break()
            return y @ x

    x = torch.randn(4, 4)
    assert torch.equal(torch.compile(function, backend="eager")(x), function(x))


def test_surroundings_are_seen_by_compiled_code():
    counter = CompileCounter()
    compiled = torch.compile(lambda x: x @ x, backend=counter, fullgraph=True)
    x = torch.randn(4, 4)
    seen = []
    for dtype in (torch.float16, torch.bfloat16, torch.float16):
        with torchamp.autocast("cpu", dtype):
            seen.append(compiled(x).dtype)
    seen.append(compiled(x).dtype)
    assert seen == [torch.float16, torch.bfloat16, torch.float16, torch.float32]
    assert counter.frame_count == 3


class Model(torch.nn.Module):
    def __init__(self, amp: Any, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.amp, self.how = amp, how
        self.region = amp.autocast("cpu", torch.bfloat16)
        self.decorated = self.region(self.linear.forward)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "inside":
            with self.amp.autocast("cpu", torch.bfloat16):
                return self.linear(x)
        if self.how == "outside":
            with self.region:
                return self.linear(x)
        return self.decorated(x)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
@pytest.mark.parametrize("how", ["inside", "outside", "decorated"])
def test_export_as_stock(how, strict):
    x = torch.randn(2, 4)
    programs = []
    for amp in (torch.amp, torchamp.amp):
        torch._dynamo.reset()
        model = Model(amp, how)
        program = torch.export.export(model, (x,), strict=strict)
        assert torch.equal(program.module()(x), model(x))
        programs.append([str(node.target) for node in program.graph.nodes])
    assert programs[0] == programs[1]
    assert any("autocast" in target for target in programs[1])


def test_export_of_one_region_entered_again():
    """Both entries go through stock's methods, which keep the settings of one entry only."""

    class Again(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.region = torchamp.autocast("cpu", torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with self.region, self.region:
                y = x @ x
            return y + x @ x

    x = torch.randn(4, 4)
    assert torch.equal(torch.export.export(Again(), (x,)).module()(x), Again()(x))
    assert Again()(x).dtype is torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("how", ["inside", "outside", "decorated"])
def test_trace_as_stock(how):
    x = torch.randn(2, 4)
    graphs = []
    for amp in (torch.amp, torchamp.amp):
        model = Model(amp, how)
        traced = torch.jit.trace(model, (x,))
        assert torch.equal(traced(x), model(x))
        graphs.append([node.kind() for node in traced.inlined_graph.nodes()])
    assert graphs[0] == graphs[1]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_difference_script_knows_the_class_of_stock_only():
    def stock(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x

    def ours(x: torch.Tensor) -> torch.Tensor:
        with torchamp.autocast("cpu", torch.bfloat16):
            return x @ x

    x = torch.randn(4, 4)
    assert torch.jit.script(stock)(x).dtype is torch.bfloat16
    with pytest.raises((RuntimeError, torch.jit.frontend.NotSupportedError)):
        torch.jit.script(ours)


# --- GradScaler.scale ---
@pytest.mark.parametrize("made", ["before", "lazily"])
@BOTH
def test_scale_under_compile(implementation, made):
    scaler = implementation.scaler(init_scale=8.0)
    if made == "before":
        scaler.scale(torch.ones(()))

    def function(x: torch.Tensor) -> torch.Tensor:
        return scaler.scale((x @ x).sum())

    x = torch.randn(4, 4)
    result = torch.compile(function, backend="aot_eager")(x)
    assert torch.equal(result, (x @ x).sum() * 8.0)
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize("made", ["before", "lazily"])
def test_scale_under_compile_in_one_graph(made):
    """Stock's scale is on torch.compile's list of what it does not enter."""
    scaler = torchamp.GradScaler("cpu", init_scale=8.0)
    if made == "before":
        scaler.scale(torch.ones(()))

    def function(x: torch.Tensor) -> torch.Tensor:
        return scaler.scale((x @ x).sum())

    x = torch.randn(4, 4)
    result = torch.compile(function, backend="aot_eager", fullgraph=True)(x)
    assert torch.equal(result, (x @ x).sum() * 8.0)
    assert scaler.get_scale() == 8.0


def test_a_scaled_loss_of_a_compiled_forward_trains_as_stock():
    def weights(implementation: Implementation) -> Any:
        torch.manual_seed(0)
        torch._dynamo.reset()
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = implementation.scaler(init_scale=1024.0, growth_interval=2)

        def loss(x: torch.Tensor) -> torch.Tensor:
            with implementation.amp.autocast("cpu", torch.float16):
                return model(x).square().mean()

        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        for _ in range(5):
            optimizer.zero_grad()
            scaler.scale(compiled(torch.ones(4, 4))).backward()
            scaler.step(optimizer)
            scaler.update()
        return model.weight.tolist(), scaler.state_dict()

    assert weights(STOCK) == weights(OURS)
