"""The scaler in a forked child, where the parent's OpenMP threads do not exist any more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys, torch, torchamp
torch.set_num_threads(2)
torch.ones(10**6).add_(1)  # starts the threads
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
signal.alarm(60)  # ends a child that hangs
# Each tensor is too small for PyTorch to start threads, all together are enough for torchamp.
params = [torch.nn.Parameter(torch.ones(1000)) for _ in range(100)]
for param in params:
    param.grad = torch.full((1000,), 8.0)
optimizer = torch.optim.SGD(params, lr=1.0)
scaler = torchamp.GradScaler("cpu", init_scale=8.0)
scaler.scale(torch.ones(()))
norm = scaler.clip_grad_norm_(optimizer, 1e9) if "clip" in sys.argv else None
scaler.step(optimizer)
scaler.update()
os._exit(any(param.any() for param in params))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("method", ["step", "clip"])
def test_a_forked_child_does_not_wait_for_threads_of_its_parent(method):
    subprocess.run([sys.executable, "-c", PROGRAM, method], check=True, timeout=120)
