"""Types: the stub of the compiled module, and a type checker on programs that use the package."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torchamp
from torchamp import _C

PACKAGE = Path(torchamp.__file__).parent
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
needs_checker = pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None, reason="mypy is not installed"
)

# Names, arguments and results that a user's program relies on.
PROGRAM = """
from typing import Any, assert_type

import torch

import torchamp
import torchamp.cpu.amp
from torchamp.cuda.amp import GradScaler as CudaGradScaler
from torchamp.cuda.amp import autocast as cuda_autocast

model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torchamp.GradScaler("cpu", init_scale=8.0, growth_interval=10, enabled=True)
stock: torch.amp.GradScaler = scaler
region: torch.amp.autocast = torchamp.autocast("cpu", torch.bfloat16, cache_enabled=None)
with torchamp.autocast("cpu", dtype=torch.bfloat16) as entered:
    assert_type(entered, torchamp.autocast)
    loss = model(torch.ones(1, 2)).sum()
scaler.scale(loss).backward()
scaler.unscale_(optimizer)
scaler.step(optimizer)
scaler.update()
assert_type(scaler.get_scale(), float)
assert_type(torchamp.load_state("file"), dict[str, float | int])


@torchamp.autocast("cpu")
def forward(x: torch.Tensor, times: int) -> torch.Tensor:
    return model(x) * times


@cuda_autocast(enabled=False)
async def later() -> int:
    return 1


assert_type(forward(torch.ones(2), 3), torch.Tensor)
CudaGradScaler(8.0, enabled=False)
torchamp.cpu.amp.autocast(True, torch.float16)
torchamp.install_kernels()
torchamp.uninstall_kernels()
with torchamp.patch() as patch:
    patch.undo()
if torchamp.is_autocast_available("cpu"):
    torchamp.custom_fwd(forward, device_type="cpu")
"""
MISTAKES = """
import torch

import torchamp


@torchamp.autocast("cpu")
def forward(x: torch.Tensor) -> torch.Tensor:
    return x


forward("text")
torchamp.autocast(3)
torchamp.cuda.amp.autocast(dtype="float16")
torchamp.GradScaler(initial_scale=8.0)
torchamp.load_state(3)
torchamp.no_such_name
"""


def check(*words: str | Path) -> subprocess.CompletedProcess[str]:
    options = ["--follow-imports=silent", "--no-error-summary", "--hide-error-context"]
    return subprocess.run(
        [sys.executable, "-m", "mypy", *options, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
    assert (PACKAGE / "_C.pyi").exists()


def test_the_stub_declares_what_the_module_has():
    stub = ast.parse((PACKAGE / "_C.pyi").read_text())
    declared = {
        node.name: node for node in stub.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))
    }
    assert set(declared) == {name for name in dir(_C) if not name.startswith("__")}
    for name, node in declared.items():
        value = getattr(_C, name)
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            assert methods == {item for item in vars(value) if not item.startswith("_")}
            continue
        # pybind11 writes the signature into the first line of the documentation.
        signature = value.__doc__.splitlines()[0]
        expected = re.findall(r"[(,] ?(\w+): ", re.sub(r"\[.*?\]", "", signature))
        assert [argument.arg for argument in node.args.args] == expected, name


@needs_checker
def test_a_checker_accepts_a_program_and_finds_its_mistakes(tmp_path):
    program, mistakes = tmp_path / "program.py", tmp_path / "mistakes.py"
    program.write_text(PROGRAM)
    mistakes.write_text(MISTAKES)
    done = check(program)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
    found = re.findall(r"mistakes\.py:(\d+): error", check(mistakes).stdout)
    lines = MISTAKES.splitlines()
    wrong = {str(number) for number, line in enumerate(lines, 1) if line and number > 10}
    assert set(found) == wrong


@needs_checker
def test_a_checker_accepts_the_examples():
    programs = [path for path in EXAMPLES.rglob("*.py") if "import torchamp" in path.read_text()]
    assert programs
    done = check(*programs)
    assert done.stdout == ""
    assert done.returncode == 0, done.stderr
