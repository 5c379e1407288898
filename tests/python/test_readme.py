"""The loops of README.md: the Python one runs, the C++ one is that of a C++ test."""

from __future__ import annotations

import re
from pathlib import Path

import torch

CHECKOUT = Path(__file__).resolve().parents[2]


def block(language: str) -> str:
    """The first block of code in a language."""
    text = (CHECKOUT / "README.md").read_text()
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL).group(1)


def statements(code: str) -> str:
    """Without comments, preprocessor lines and white space."""
    lines = (re.sub(r"//.*", "", line) for line in code.splitlines() if not line.startswith("#"))
    return "".join("".join(lines).split())


def test_the_python_loop_trains() -> None:
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    names = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "loss_fn": torch.nn.MSELoss(),
        "loader": [(torch.ones(8, 2), torch.zeros(8, 1))] * 50,
    }
    before = model(torch.ones(1, 2)).abs().item()
    exec(block("python").replace('"cuda"', '"cpu"'), names)
    assert model(torch.ones(1, 2)).abs().item() < 0.1 * before


def test_the_cpp_loop_is_that_of_a_test() -> None:
    test = (CHECKOUT / "tests/cpp/test_grad_scaler.cpp").read_text()
    tested = re.search(r"compares the two\.\n(.*?)// The end of README", test, re.DOTALL).group(1)
    assert statements(block("cpp")) == statements(tested.replace("kCPU", "kCUDA"))
