"""Importing the package: with a torch that it was not built for, and without CUDA."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
import torch
from torchamp import _build


def fresh_import(monkeypatch):
    """Imports the package anew; the one that is imported is put back afterwards."""
    for name in [name for name in sys.modules if name.split(".")[0] == "torchamp"]:
        monkeypatch.delitem(sys.modules, name)
    return importlib.import_module("torchamp")


@pytest.mark.parametrize("other", ["2.4.1", "3.0.0+cu130"])
def test_k78_another_torch_is_told_in_one_sentence(monkeypatch, other):
    monkeypatch.setattr(torch, "__version__", other)
    with pytest.raises(ImportError) as raised:
        fresh_import(monkeypatch)
    message = str(raised.value)
    assert message.startswith(f"torchamp was built for torch {_build.torch_version}, but torch ")
    assert other in message
    assert "Rebuild it" in message
    # Before the extension, whose undefined symbols would be the error otherwise.
    assert "torchamp._C" not in sys.modules


def test_k78_a_patch_release_of_the_same_torch_is_accepted():
    major, minor = _build.torch_version.split(".")[:2]
    program = f"import torch; torch.__version__ = '{major}.{minor}.99'; import torchamp"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_k78_import_and_train_where_no_cuda_device_is_seen():
    program = """
import torch, torchamp
param = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([param], lr=1.0)
scaler = torchamp.GradScaler("cpu", init_scale=8.0)
scaler.scale(param.sum()).backward()
scaler.step(optimizer)
scaler.update()
print(torch.cuda.is_available(), param.tolist())
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout.split("\n")[0] == "False [0.0, 0.0, 0.0, 0.0]"
