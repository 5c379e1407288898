"""torchamp.patch(): PyTorch's names replaced and restored."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
import torchamp
from torch._dynamo.testing import CompileCounter

ON_2_11 = torch.__version__.startswith("2.11.")
CLASSES = ("autocast", "GradScaler")
MODULES = (
    "",
    ".amp",
    ".amp.autocast_mode",
    ".amp.grad_scaler",
    ".cuda.amp",
    ".cuda.amp.autocast_mode",
    ".cuda.amp.grad_scaler",
    ".cuda.amp.common",
    ".cpu.amp",
    ".cpu.amp.autocast_mode",
    ".cpu.amp.grad_scaler",
)


def namespace() -> dict[str, dict[str, Any]]:
    """All that the modules hold."""
    return {path: dict(vars(importlib.import_module(f"torch{path}"))) for path in MODULES}


def stays(path: str, name: str) -> bool:
    """torch.compile knows autocast by its place in torch.amp.autocast_mode."""
    kept = {".amp.autocast_mode"} | ({"", ".amp"} if ON_2_11 else set())
    return name == "autocast" and path in kept


@pytest.fixture(autouse=True)
def everything_is_restored():
    before = namespace()
    yield
    assert namespace() == before


def test_every_name_is_replaced_and_nothing_else():
    before = namespace()
    with torchamp.patch():
        during = namespace()
    changed = {
        (path, name)
        for path, names in during.items()
        for name, value in names.items()
        if value is not before[path].get(name)
    }
    expected = {
        (path, name)
        for path in MODULES
        for name in CLASSES
        if name in before[path] and not stays(path, name)
    }
    for path in (".cuda.amp", ".cuda.amp.autocast_mode"):
        expected |= {(path, "custom_fwd"), (path, "custom_bwd")}
    expected.add((".cuda.amp.autocast_mode", "_cast"))
    assert changed == expected
    for path, name in changed:
        mirror = importlib.import_module(f"torchamp{path}")
        assert during[path][name] is getattr(mirror, name)
        assert during[path].keys() == before[path].keys()


def test_as_a_function_until_it_is_undone():
    patch = torchamp.patch()
    assert torch.GradScaler is torchamp.GradScaler
    assert torch.cuda.amp.autocast is torchamp.cuda.amp.autocast
    patch.undo()
    assert torch.GradScaler is not torchamp.GradScaler
    patch.undo()


def test_nested_and_repeated():
    outer, again = torchamp.patch(), torchamp.patch()
    with torchamp.patch(), torchamp.patch():
        assert torch.GradScaler is torchamp.GradScaler
    again.undo()
    again.undo()
    assert torch.GradScaler is torchamp.GradScaler
    outer.undo()


def is_patched() -> bool:
    return torch.GradScaler is torchamp.GradScaler


def test_an_object_entered_after_it_was_undone():
    patch = torchamp.patch()
    patch.undo()
    for _ in range(2):
        with patch as entered:
            assert is_patched()
            assert entered is patch
        assert not is_patched()


def test_an_object_entered_inside_itself():
    patch = torchamp.patch()
    with patch:
        with patch:
            assert is_patched()
        assert is_patched()
    assert not is_patched()


def test_undone_inside_its_block():
    with torchamp.patch() as patch:
        patch.undo()
        assert not is_patched()
        with patch:
            assert is_patched()
    assert not is_patched()


def test_a_scaler_of_pytorch_from_before_is_pickled_afterwards_only():
    scaler = torch.amp.GradScaler("cpu")
    with torchamp.patch(), pytest.raises(pickle.PicklingError):
        pickle.dumps(scaler)
    assert type(pickle.loads(pickle.dumps(scaler))) is type(scaler)


def test_an_exception_restores():
    with pytest.raises(ZeroDivisionError), torchamp.patch():
        raise ZeroDivisionError


def test_from_several_threads():
    barrier = threading.Barrier(8)
    seen = []

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            with torchamp.patch():
                seen.append(torch.GradScaler is torchamp.GradScaler)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 400


def test_what_another_put_there_is_restored(monkeypatch):
    class Other(torch.amp.GradScaler):
        pass

    monkeypatch.setattr(torch, "GradScaler", Other)
    with torchamp.patch():
        assert torch.GradScaler is torchamp.GradScaler
    assert torch.GradScaler is Other
    monkeypatch.undo()


def test_a_script_trains_the_same(recwarn):
    def train() -> Any:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=2)
        scales = []
        for _ in range(10):
            with torch.amp.autocast("cpu", torch.float16):
                loss = model(torch.ones(2, 4)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return type(scaler), model.weight.tolist(), scales

    stock = train()
    with torchamp.patch():
        ours = train()
    assert stock[0] is torch.amp.GradScaler
    assert ours[0] is torchamp.GradScaler
    assert stock[1:] == ours[1:]
    assert not recwarn.list


def test_checkpointing_and_custom_functions_of_torch_run():
    """Code of torch that uses the names itself."""

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="cpu")
        def backward(ctx, grad):
            return 2 * grad @ ctx.saved_tensors[0]

    def run() -> Any:
        torch.manual_seed(0)
        x = torch.randn(4, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.utils.checkpoint.checkpoint(lambda z: z @ z, x, use_reentrant=False)
            loss = Square.apply(x).sum() + y.sum()
        loss.backward()
        return loss.item(), x.grad.tolist()

    stock = run()
    with torchamp.patch():
        assert run() == stock


@pytest.mark.parametrize("when", ["names from before", "names while patched"])
def test_compiled_functions(when):
    """Also with names that were imported before, and after the patch is undone."""
    from torch import autocast as old

    def compile_one(autocast: Any) -> int:
        def function(x: torch.Tensor) -> torch.Tensor:
            with autocast("cpu", torch.float16):
                return x @ x

        torch._dynamo.reset()
        counter = CompileCounter()
        x = torch.randn(4, 4)
        assert torch.compile(function, backend=counter, fullgraph=True)(x).dtype is torch.float16
        return counter.frame_count

    with torchamp.patch():
        assert compile_one(old if when == "names from before" else torch.autocast) == 1
    assert compile_one(old) == 1
    assert compile_one(torch.autocast) == 1
    assert compile_one(torchamp.autocast) == 1


LOADED_WHILE_PATCHED = """
import sys, warnings
import torch, torchamp

warnings.simplefilter("ignore")
assert "torch._dynamo" not in sys.modules
old = torch.cuda.amp.autocast


def check(autocast):
    def function(x):
        with autocast(True, torch.float16):
            return x @ x

    torch._dynamo.reset()
    torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, 2))


with torchamp.patch():
    import torch._dynamo

    check(torch.cuda.amp.autocast)
assert torch.cuda.amp.autocast is old
check(old)
check(torchamp.cuda.amp.autocast)
"""


def test_the_compiler_loaded_while_patched():
    subprocess.run([sys.executable, "-c", LOADED_WHILE_PATCHED], check=True, timeout=300)
